// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! Loans that end with a scope.
use std::fmt;
use std::marker::PhantomData;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::content::Content;
use crate::error::{Error, Kind, Refused};
use crate::names::Loan;
use crate::owned::{reclaim, Box, Ended};
use crate::sys;
use crate::tasks::Job;

/// Waits between two questions whether a borrower has returned what it has.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(32);

/// See [`scope`](crate::scope()).
pub struct Scope<'scope, 'env: 'scope> {
    lent: Mutex<Vec<Entry>>,
    // As of std::thread::Scope: the lifetimes can be neither shortened nor extended.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A box that is lent, or a task's, as C calls it: borrowed for the scope.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Lent(*mut sys::ebbdsm, *mut sys::ebbdsm_box),
    Spawned(Job),
}

// SAFETY: boxes are Send, and any thread may use a handle.
unsafe impl Send for Entry {}

/// Runs @f, which lends boxes to tasks in other processes by [`Scope::lend`], and gets all of them
/// back before it returns.
///
/// The compiler prevents every use of a lent box within the scope, and after it the box can be used
/// as before.  No guard stands for that, which could be forgotten.  At its end, the scope withdraws
/// loans that no task has borrowed, and waits for the return of the others, for as long as their
/// borrowers live.  So let @f wait until its tasks have what is for them.  It joins the tasks that
/// were spawned.
///
/// [`OwnerDead`](Kind::OwnerDead): a borrower has exited without a return; its box is as it was
/// before the loan.  After other errors, of donors that have exited and memory that is used up, a
/// box may still be lent: [`Busy`](Kind::Busy) until [`Box::reclaim`].
pub fn scope<'env, R>(
    f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
) -> Result<R, Error> {
    let scope = Scope { lent: Mutex::new(Vec::new()), scope: PhantomData, env: PhantomData };
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    let ended = scope.end();
    match result {
        Ok(r) => ended.map(|()| r),
        Err(panic) => resume_unwind(panic),
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    pub(crate) fn list(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a loan for one task.  It ends with the scope, or by [`Lent::reclaim`] before that.
    pub fn lend<'s, T: Content + ?Sized>(
        &'scope self,
        own: &'scope mut Box<'s, T>,
    ) -> Result<(Lent<'scope, 'env, 's, T>, Loan<T>), Error> {
        let loan = own.lend_unscoped()?;
        let kept = NonNull::from(own);
        // SAFETY: it was a reference just now.
        let (dsm, own) = unsafe { kept.as_ref() }.raw();
        let entry = Entry::Lent(dsm, own);
        self.list().push(entry);
        Ok((Lent { scope: self, entry, dsm, raw: own, kept, own: PhantomData }, loan))
    }

    /// Gets back what is lent.  Returns the first error.
    fn end(&self) -> Result<(), Error> {
        let mut result = Ok(());
        for entry in self.list().drain(..) {
            let ended = match entry {
                Entry::Lent(dsm, own) => wait(dsm, own).and_then(|ended| match ended {
                    Ended::Returned => Ok(()),
                    Ended::Died => Err(Error::new(sys::EOWNERDEAD)),
                }),
                // SAFETY: the box is borrowed for the scope, and the task is not joined.
                Entry::Spawned(job) => unsafe { job.join() }.map(|_| ()),
            };
            result = result.and(ended);
        }
        result
    }
}

fn wait(dsm: *mut sys::ebbdsm, own: *mut sys::ebbdsm_box) -> Result<Ended, Error> {
    let mut pause = FIRST_WAIT;
    loop {
        // SAFETY: the box is borrowed for the scope, which has not ended.
        match unsafe { reclaim(dsm, own) } {
            Err(e) if e.kind() == Kind::Busy => {}
            ended => return ended,
        }
        // Keeps connections up, and notices donors that have exited: reclaim() fails without one
        // that the box needs, and the others do not matter.
        // SAFETY: a handle outlives its boxes.
        unsafe { sys::ebbdsm_settle(dsm) };
        thread::sleep(pause);
        pause = LONGEST_WAIT.min(pause * 2);
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scope")
    }
}

/// A box that is lent in a scope.  It may be forgotten: the scope ends the loan in any case.
pub struct Lent<'scope, 'env, 's, T: Content + ?Sized> {
    scope: &'scope Scope<'scope, 'env>,
    entry: Entry,
    dsm: *mut sys::ebbdsm,
    raw: *mut sys::ebbdsm_box,
    kept: NonNull<Box<'s, T>>,
    own: PhantomData<&'scope mut Box<'s, T>>,
}

// SAFETY: it stands for a reference to a box, which is Send and Sync.
unsafe impl<T: Content + ?Sized> Send for Lent<'_, '_, '_, T> {}
unsafe impl<T: Content + ?Sized> Sync for Lent<'_, '_, '_, T> {}

impl<'scope, 's, T: Content + ?Sized> Lent<'scope, '_, 's, T> {
    /// Gets the box back before the scope ends, without waiting.  [`Busy`](Kind::Busy): its
    /// borrower has it.
    pub fn reclaim(self) -> Result<(&'scope mut Box<'s, T>, Ended), Refused<Self>> {
        // SAFETY: the scope, too, has the box by this pointer, and uses it when it ends.
        let result = unsafe { reclaim(self.dsm, self.raw) };
        self.ended(result)
    }

    /// Gets the box back as soon as its borrower has returned it or has exited, or at once if no
    /// task has borrowed it.
    pub fn wait(self) -> Result<(&'scope mut Box<'s, T>, Ended), Refused<Self>> {
        let result = wait(self.dsm, self.raw);
        self.ended(result)
    }

    fn ended(
        self,
        result: Result<Ended, Error>,
    ) -> Result<(&'scope mut Box<'s, T>, Ended), Refused<Self>> {
        match result {
            Ok(ended) => {
                self.scope.list().retain(|lent| *lent != self.entry);
                // SAFETY: the scope does not have it any more, and self ends.
                Ok((unsafe { &mut *self.kept.as_ptr() }, ended))
            }
            Err(error) => Err(Refused { error, kept: self }),
        }
    }
}

impl<T: Content + ?Sized> fmt::Debug for Lent<'_, '_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lent")
    }
}
