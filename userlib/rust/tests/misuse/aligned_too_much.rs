// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0080: content whose alignment no borrow has
use ebbdsm::{Box, Error, FarSafe, Space};

#[cfg_attr(misuse, repr(C, align(64)))]
#[cfg_attr(not(misuse), repr(C, align(16)))]
#[derive(Clone, Copy)]
pub struct Line(pub [u8; 64]);

// SAFETY: numbers.
unsafe impl FarSafe for Line {}

pub fn f(space: &Space) -> Result<Box<'_, Line>, Error> {
    Box::new(space, &Line([0; 64]))
}
