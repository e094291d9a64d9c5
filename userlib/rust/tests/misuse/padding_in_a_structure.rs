// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0080: a structure with bytes that have no value
#[cfg(misuse)]
type Count = u32;
#[cfg(not(misuse))]
type Count = u64;

ebbdsm::far_safe! {
    pub struct Row {
        pub key: u64,
        pub count: Count,
    }
}
