// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0597: a box that ends before the scope in which it is lent
use ebbdsm::{scope, Box, Error, Loan, Space};

pub fn f(space: &Space, send: impl Fn(Loan<u64>)) -> Result<(), Error> {
    #[cfg(not(misuse))]
    let mut table = Box::new(space, &1u64)?;
    scope(|s| -> Result<(), Error> {
        #[cfg(misuse)]
        let mut table = Box::new(space, &1u64)?;
        send(s.lend(&mut table)?.1);
        Ok(())
    })?
}
