// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0502: a mutable borrow while a shared one is used
use ebbdsm::{Box, Error};

pub fn f(table: &mut Box<u64>) -> Result<u64, Error> {
    let shared = table.borrow()?;
    #[cfg(misuse)]
    {
        *table.borrow_mut()? = 1;
    }
    let value = *shared;
    drop(shared);
    *table.borrow_mut()? = value + 1;
    Ok(value)
}
