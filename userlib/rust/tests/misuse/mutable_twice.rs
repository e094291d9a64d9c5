// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0499: two mutable borrows
use ebbdsm::{Box, Error};

pub fn f(table: &mut Box<u64>) -> Result<(), Error> {
    #[allow(unused_mut)]
    let mut first = table.borrow_mut()?;
    #[cfg(not(misuse))]
    first.end()?;
    let mut second = table.borrow_mut()?;
    *second = 2;
    #[cfg(misuse)]
    {
        *first = 1;
    }
    Ok(())
}
