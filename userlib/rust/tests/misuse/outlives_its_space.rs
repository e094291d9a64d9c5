// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0505: a box that is used after its space is closed
use ebbdsm::{Box, Error, Space};

pub fn f(space: Space) -> Result<u64, Error> {
    let table = Box::new(&space, &1u64)?;
    #[cfg(misuse)]
    drop(space);
    let value = table.get()?;
    Ok(value)
}
