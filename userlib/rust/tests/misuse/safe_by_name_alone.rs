// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0200: a promise about a type that is not marked as one
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Row(pub u64);

#[cfg(misuse)]
impl ebbdsm::FarSafe for Row {}
// SAFETY: a number.
#[cfg(not(misuse))]
unsafe impl ebbdsm::FarSafe for Row {}
