// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
use std::ffi::{CStr, CString};
use std::fmt;
use std::mem::size_of;
use std::os::raw::{c_char, c_uint, c_void};
use std::ptr::{self, NonNull};
use std::sync::Mutex;

use crate::content::Content;
use crate::error::{Error, Refused};
use crate::names::{Loan, Parcel, View};
use crate::owned::{Box, Of, Ref};
use crate::sys;
use crate::tasks::Registered;

/// How to open a space.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// "HOST:PORT" or "unix:/PATH", the same donors in all processes, in the same order.
    pub donors: Vec<String>,
    /// Index of the donor of this process's boxes.
    pub home: u32,
    /// 1 to 31 printable characters, no blanks; created if needed.
    pub pool: String,
    /// Key file for donors over TCP.
    pub key: Option<String>,
    /// Bytes of copies at most; 0 = 64 MiB.
    pub cache: usize,
    /// Of ebbfar_open(3); 0 = 10 s.
    pub timeout_ms: u32,
    /// Of ebbfar_open(3); 0 = the donor's grace period.
    pub resume_ms: u32,
    /// 1: each value is at a second donor, too, and survives the exit of one; in all processes.
    pub replicas: u32,
}

/// Since [`Space::open`], except `cached`, `places` and `bare`, which are of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Borrows that needed a copy, and had one.
    pub hits: u64,
    pub misses: u64,
    /// Waits for a donor over TCP.
    pub round_trips: u64,
    /// Requests that were waited for, and those that were not.
    pub requests: u64,
    pub posted: u64,
    /// Bytes in the cache.
    pub cached: u64,
    /// Places of this process's objects, at all donors.
    pub places: u64,
    /// Values that were read at second donors, and those that are lost.
    pub at_twins: u64,
    pub lost: u64,
    /// Bytes of this process's memory that should be at a second donor and is not.
    pub bare: u64,
}

/// This process's part of a space.  Any thread may use it.
///
/// Boxes and borrows have the lifetime of a reference to it: it is closed after all of them.
pub struct Space {
    handle: NonNull<sys::ebbdsm>,
    pub(crate) tasks: Mutex<Option<Registered>>,
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Space")
    }
}

// SAFETY: the library permits any thread to use a handle.
unsafe impl Send for Space {}
unsafe impl Sync for Space {}

pub(crate) fn c_string(what: &str, text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| {
        Error::with_text(sys::EINVAL, format!("options: {what} has a NUL byte; remove it"))
    })
}

impl Space {
    /// Connects to all donors.
    pub fn open(options: &Options) -> Result<Space, Error> {
        let donors = options.donors.iter().map(|d| c_string("a donor", d));
        let donors = donors.collect::<Result<Vec<_>, _>>()?;
        let listed: Vec<*const c_char> = donors.iter().map(|d| d.as_ptr()).collect();
        let pool = c_string("the pool", &options.pool)?;
        let key = options.key.as_ref().map(|k| c_string("the key", k)).transpose()?;
        let mut raw = sys::ebbdsm_options {
            size: size_of::<sys::ebbdsm_options>(),
            donors: listed.as_ptr(),
            donor_count: c_uint::try_from(listed.len()).unwrap_or(c_uint::MAX),
            home: options.home,
            pool: pool.as_ptr(),
            key: key.as_ref().map_or(ptr::null(), |k| k.as_ptr()),
            cache: options.cache,
            timeout_ms: options.timeout_ms,
            resume_ms: options.resume_ms,
            error: [0; sys::ERROR_BYTES],
            replicas: options.replicas,
            unused: 0,
        };
        let mut handle = ptr::null_mut();
        // SAFETY: what @raw refers to lives until the call returns.
        let result = unsafe { sys::ebbdsm_open(&mut raw, &mut handle) };
        match NonNull::new(handle) {
            Some(handle) if result == 0 => Ok(Space { handle, tasks: Mutex::new(None) }),
            _ => {
                // SAFETY: the library ends the text within the array.
                let text = unsafe { CStr::from_ptr(raw.error.as_ptr()) };
                Err(Error::with_text(-result, text.to_string_lossy().into_owned()))
            }
        }
    }

    pub(crate) fn raw(&self) -> *mut sys::ebbdsm {
        self.handle.as_ptr()
    }

    /// Returns why a donor cannot be used any more, "THING: CAUSE; REMEDY", or "".
    pub fn why(&self) -> String {
        // SAFETY: the text is valid until close.
        let text = unsafe { CStr::from_ptr(sys::ebbdsm_why(self.raw())) };
        text.to_string_lossy().into_owned()
    }

    /// Borrows a value for reading, in any process of the space: a copy in the cache, or one round
    /// trip.
    pub fn read<T: Content + ?Sized>(&self, view: View<T>) -> Result<Ref<'_, T>, Error> {
        let raw = view.raw();
        let mut size = 0;
        // SAFETY: the handle is open.
        let content = unsafe { sys::ebbdsm_borrow_view(self.raw(), &raw, &mut size) };
        if content.is_null() {
            return Err(Error::last());
        }
        match T::at(content as *mut c_void, size) {
            // SAFETY: the library does not change or free the content until its return.
            Some(p) => Ok(unsafe { Ref::new(Of::View(self, raw), p) }),
            None => {
                // SAFETY: the borrow is ended once.
                unsafe { sys::ebbdsm_return_view(self.raw(), &raw, content) };
                Err(Error::new(sys::EINVAL))
            }
        }
    }

    /// Accepts a parcel: the object moves to this process's home.
    ///
    /// If the object cannot be a `T`, it is dropped, and the error is
    /// [`Invalid`](crate::Kind::Invalid).
    pub fn accept<T: Content + ?Sized>(
        &self,
        parcel: Parcel<T>,
    ) -> Result<Box<'_, T>, Refused<Parcel<T>>> {
        let mut own = sys::ebbdsm_box { at: 0, stamp: 0 };
        // SAFETY: the handle is open, and the box is zero.
        let result = unsafe { sys::ebbdsm_accept(self.raw(), &parcel.raw(), &mut own) };
        if let Err(error) = Error::check(result) {
            return Err(Refused { error, kept: parcel });
        }
        let accepted = Box::of_raw(self, own);
        match T::at(ptr::null_mut(), accepted.bytes()) {
            Some(_) => Ok(accepted),
            None => Err(Refused { error: Error::new(sys::EINVAL), kept: parcel }),
        }
    }

    /// Borrows what is lent, for reading and writing, while @change runs; then returns it.
    ///
    /// The borrow ends with the closure, in every case: there is no guard that could be forgotten,
    /// for which the owner would wait in vain.  If @change panics, what it has stored until then is
    /// returned.  An error of the return is one of this function: the owner has no change then.
    pub fn with_loan<T: Content + ?Sized, R>(
        &self,
        loan: Loan<T>,
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Error> {
        let mut size = 0;
        // SAFETY: the handle is open.
        let content = unsafe { sys::ebbdsm_borrow_loan(self.raw(), &loan.raw(), &mut size) };
        if content.is_null() {
            return Err(Error::last());
        }
        let borrowed = BorrowedLoan { space: self, loan: loan.raw(), content };
        let done = match T::at(content, size) {
            // SAFETY: the content is this borrow's alone until it ends.
            Some(p) => Ok(change(unsafe { &mut *p })),
            None => Err(Error::new(sys::EINVAL)),
        };
        borrowed.end()?;
        done
    }

    /// Frees the places of objects that others have taken, and notices donors that have exited.
    /// Call it every few seconds.
    pub fn settle(&self) -> Result<(), Error> {
        // SAFETY: the handle is open.
        Error::check(unsafe { sys::ebbdsm_settle(self.raw()) })
    }

    pub fn counts(&self) -> Counts {
        let mut c = sys::ebbdsm_counts {
            size: size_of::<sys::ebbdsm_counts>(),
            hits: 0,
            misses: 0,
            round_trips: 0,
            requests: 0,
            posted: 0,
            cached: 0,
            places: 0,
            at_twins: 0,
            lost: 0,
            bare: 0,
        };
        // SAFETY: the handle is open.
        unsafe { sys::ebbdsm_count(self.raw(), &mut c) };
        Counts {
            hits: c.hits,
            misses: c.misses,
            round_trips: c.round_trips,
            requests: c.requests,
            posted: c.posted,
            cached: c.cached,
            places: c.places,
            at_twins: c.at_twins,
            lost: c.lost,
            bare: c.bare,
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: what uses the handle has borrowed self, so that there is no more of it.
        unsafe { sys::ebbdsm_close(self.raw()) }
    }
}

/// Returns the content when it is dropped, also while a panic unwinds.
struct BorrowedLoan<'s> {
    space: &'s Space,
    loan: sys::ebbdsm_loan,
    content: *mut c_void,
}

impl BorrowedLoan<'_> {
    fn end(self) -> Result<(), Error> {
        let this = std::mem::ManuallyDrop::new(self);
        this.give_back()
    }

    fn give_back(&self) -> Result<(), Error> {
        // SAFETY: the borrow is ended once.
        Error::check(unsafe { sys::ebbdsm_return_loan(self.space.raw(), &self.loan, self.content) })
    }
}

impl Drop for BorrowedLoan<'_> {
    fn drop(&mut self) {
        let _ = self.give_back();
    }
}
