// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0599: a second owner of an object
use ebbdsm::Box;

#[allow(clippy::redundant_clone)]
pub fn f(table: Box<u64>) {
    #[cfg(misuse)]
    let second = table.clone();
    #[cfg(not(misuse))]
    let second = table;
    drop(second);
}
