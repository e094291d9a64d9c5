// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0521: what a task has borrowed is used after its return
use ebbdsm::{Error, Loan, Space};

pub fn f(space: &Space, loan: Loan<[u64]>) -> Result<u64, Error> {
    #[cfg(misuse)]
    {
        let mut kept = None;
        space.with_loan(loan, |rows| kept = Some(rows))?;
        Ok(kept.unwrap()[0])
    }
    #[cfg(not(misuse))]
    {
        let mut kept = None;
        space.with_loan(loan, |rows| kept = Some(rows[0]))?;
        Ok(kept.unwrap())
    }
}
