// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0277: a structure with a bool, of which not every byte is a value
#[cfg(misuse)]
type Flag = bool;
#[cfg(not(misuse))]
type Flag = u8;

ebbdsm::far_safe! {
    pub struct Row {
        pub key: u64,
        pub is_new: [Flag; 8],
    }
}
