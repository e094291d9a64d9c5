// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0277: a reference as an argument of a task in another process
use ebbdsm::{Box, Space, Task};

#[cfg(misuse)]
type Factor = &'static u64;
#[cfg(not(misuse))]
type Factor = u64;

pub struct Scale;

impl Task for Scale {
    type Args = Factor;
    type Own = u64;
    type Output = ();

    fn run<'s>(_: &'s Space, _: &Factor, _: &mut Box<'s, u64>) {}
}
