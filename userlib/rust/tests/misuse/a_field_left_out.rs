// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0609: a field that one build has not, and whose size would pass for that of padding
ebbdsm::far_safe! {
    pub struct Row {
        pub key: u64,
        #[cfg(not(misuse))]
        pub flags: u32,
        pub count: u32,
    }
}
