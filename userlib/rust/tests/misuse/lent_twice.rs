// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0499: a box that is lent to two tasks at the same time
use ebbdsm::{scope, Box, Error, Loan};

pub fn f(table: &mut Box<u64>, send: impl Fn(Loan<u64>)) -> Result<(), Error> {
    scope(|s| -> Result<(), Error> {
        send(s.lend(table)?.1);
        #[cfg(misuse)]
        send(s.lend(table)?.1);
        Ok(())
    })?
}
