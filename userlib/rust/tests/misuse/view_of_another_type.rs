// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0308: a view of one type, read as another
use ebbdsm::{Error, Space, View};

pub fn f(space: &Space, view: View<u32>) -> Result<u32, Error> {
    #[cfg(misuse)]
    let value = *space.read::<u64>(view)? as u32;
    #[cfg(not(misuse))]
    let value = *space.read::<u32>(view)?;
    Ok(value)
}
