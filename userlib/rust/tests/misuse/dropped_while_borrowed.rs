// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0505: a box that is dropped while it is borrowed
use ebbdsm::{Box, Error};

pub fn f(table: Box<u64>) -> Result<u64, Error> {
    let shared = table.borrow()?;
    #[cfg(misuse)]
    drop(table);
    let value = *shared;
    Ok(value)
}
