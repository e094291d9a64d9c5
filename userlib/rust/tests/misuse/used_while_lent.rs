// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0502: a box that is used while a task has it
use ebbdsm::{scope, Box, Error, Loan};

pub fn f(table: &mut Box<u64>, send: impl Fn(Loan<u64>)) -> Result<u64, Error> {
    scope(|s| -> Result<(), Error> {
        let (_, loan) = s.lend(table)?;
        send(loan);
        #[cfg(misuse)]
        table.get()?;
        Ok(())
    })??;
    table.get()
}
