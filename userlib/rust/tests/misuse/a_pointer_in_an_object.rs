// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0277: an object with a pointer, which means nothing in another process
use ebbdsm::{Box, Error, Space};

pub fn f<'s>(space: &'s Space, text: &'static str) -> Result<Box<'s, [u8]>, Error> {
    #[cfg(misuse)]
    Box::new(space, &text)?;
    Box::new(space, text.as_bytes())
}
