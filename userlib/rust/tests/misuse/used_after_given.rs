// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0382: a box that was given is used
use ebbdsm::{Box, Error, Parcel};

pub fn f(table: Box<u64>) -> Result<Parcel<u64>, Error> {
    let last = *table.borrow()?;
    let (_, parcel) = table.give()?;
    #[cfg(misuse)]
    let last = *table.borrow()?;
    let _ = last;
    Ok(parcel)
}
