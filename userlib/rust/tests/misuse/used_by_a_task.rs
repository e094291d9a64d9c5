// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0502: a box that is used while a spawned task has it
use ebbdsm::{scope, Box, Error, Space, Task};

struct Sum;

impl Task for Sum {
    type Args = ();
    type Own = [u64];
    type Output = u64;

    fn run<'s>(_: &'s Space, _: &(), rows: &mut Box<'s, [u64]>) -> u64 {
        rows.borrow().map_or(0, |rows| rows.iter().sum())
    }
}

pub fn f(rows: &mut Box<[u64]>) -> Result<u64, Error> {
    let sum = scope(|s| {
        let sum = s.spawn::<Sum>(rows, &())?;
        #[cfg(misuse)]
        drop(rows.borrow()?);
        Ok::<u64, Error>(sum.join().map_err(|refused| refused.error)?.1)
    })??;
    drop(rows.borrow()?);
    Ok(sum)
}
