// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0204: content that has a destructor

#[cfg(misuse)]
type Values = Vec<f64>;
#[cfg(not(misuse))]
type Values = [f64; 4];

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Row {
    pub values: Values,
}

// SAFETY: numbers.
unsafe impl ebbdsm::FarSafe for Row {}
