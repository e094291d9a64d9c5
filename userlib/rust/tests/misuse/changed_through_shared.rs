// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0594: a change through a shared borrow
use ebbdsm::{Box, Error};

pub fn f(table: &mut Box<u64>) -> Result<(), Error> {
    #[cfg(misuse)]
    {
        *table.borrow()? = 1;
    }
    *table.borrow_mut()? = 1;
    Ok(())
}
