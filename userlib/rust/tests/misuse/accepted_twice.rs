// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0382: a parcel that is accepted twice
use ebbdsm::{Error, Parcel, Space};

pub fn f(space: &Space, parcel: Parcel<u64>) -> Result<u64, Error> {
    let own = space.accept(parcel)?;
    #[cfg(misuse)]
    let own = space.accept(parcel)?;
    own.get()
}
