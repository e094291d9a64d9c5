// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! E0382: a loan that two tasks borrow
use ebbdsm::{Error, Loan, Space};

pub fn f(space: &Space, loan: Loan<u64>) -> Result<(), Error> {
    space.with_loan(loan, |count| *count += 1)?;
    #[cfg(misuse)]
    space.with_loan(loan, |count| *count += 1)?;
    Ok(())
}
