// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
use std::fmt;
use std::io;
use std::os::raw::c_int;

use crate::sys;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The box, view, loan or parcel is an old one: the object was changed, dropped, moved or
    /// withdrawn.  Of [`Given::withdraw`](crate::Given::withdraw): the parcel was accepted.
    Stale,
    /// The process that owns the object has exited.  Of loans that end: the borrower has, and the
    /// box is as it was before.
    OwnerDead,
    /// The box is borrowed, lent, or in transit.
    Busy,
    /// The name cannot be, or the object has another size than the type.
    Invalid,
    /// A donor has exited, or this process is fenced there: [`Space::why`](crate::Space::why).
    Lost,
    /// The donor's far memory is used up.
    NoSpace,
    /// The cache budget is used up by borrows.
    NoBuffers,
    NoMemory,
    /// The space was opened before fork(2).
    Forked,
    /// The task was not begun and never will be: it can be spawned again.
    Cancelled,
    /// No process executes tasks, or none that has room.
    NoProcess,
    /// No process of this build executes tasks.
    OtherBuild,
    /// The task has panicked.
    Panicked,
    /// Another errno, of [`Space::open`](crate::Space::open).
    Other,
}

/// An error of libebbdsm.
#[derive(Clone, Debug)]
pub struct Error {
    errno: i32,
    text: String,
}

impl Error {
    pub(crate) fn new(errno: i32) -> Error {
        Error { errno, text: String::new() }
    }

    /// @text is "THING: CAUSE; REMEDY".
    pub(crate) fn with_text(errno: i32, text: String) -> Error {
        Error { errno, text }
    }

    /// The error of a function that has returned NULL.
    pub(crate) fn last() -> Error {
        Error::new(io::Error::last_os_error().raw_os_error().unwrap_or(sys::EIO))
    }

    /// 0 or a negative errno.
    pub(crate) fn check(result: c_int) -> Result<(), Error> {
        if result < 0 {
            Err(Error::new(-result))
        } else {
            Ok(())
        }
    }

    pub fn errno(&self) -> i32 {
        self.errno
    }

    pub fn kind(&self) -> Kind {
        match self.errno {
            sys::ESTALE => Kind::Stale,
            sys::EOWNERDEAD => Kind::OwnerDead,
            sys::EBUSY => Kind::Busy,
            sys::EINVAL => Kind::Invalid,
            sys::EIO => Kind::Lost,
            sys::ENOSPC => Kind::NoSpace,
            sys::ENOBUFS => Kind::NoBuffers,
            sys::ENOMEM => Kind::NoMemory,
            sys::ECHILD => Kind::Forked,
            sys::ECANCELED => Kind::Cancelled,
            sys::ESRCH | sys::EAGAIN => Kind::NoProcess,
            sys::ENOEXEC => Kind::OtherBuild,
            sys::ENOTRECOVERABLE => Kind::Panicked,
            _ => Kind::Other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.text.is_empty() {
            return f.write_str(&self.text);
        }
        f.write_str(match self.kind() {
            Kind::Stale => "object: changed, dropped, moved or withdrawn; get its present name",
            Kind::OwnerDead => "object: the process that had it has exited; ask its next owner",
            Kind::Busy => "object: borrowed, lent or in transit; try again after its return",
            Kind::Invalid => "object: no such name, or not of a size that the type has; check both",
            Kind::Lost => "donor: exited, or it has fenced this process; open the space again",
            Kind::NoSpace => "donor: its far memory is used up; raise ebb-donord --far",
            Kind::NoBuffers => "cache: used up by borrows; end some, or raise Options::cache",
            Kind::NoMemory => "memory: used up; try again",
            Kind::Forked => "space: opened before fork(2); open it in the child",
            Kind::Cancelled => "task: not begun; spawn it again",
            Kind::NoProcess => "task: no process has room for it; start more, or join tasks",
            Kind::OtherBuild => "task: other processes have another build; start this program",
            Kind::Panicked => "task: panicked; see the standard error of its process",
            Kind::Other => return write!(f, "{}", io::Error::from_raw_os_error(self.errno)),
        })
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(e: Error) -> io::Error {
        io::Error::new(io::Error::from_raw_os_error(e.errno).kind(), e)
    }
}

/// A call that takes a value and has failed: the value is the caller's again.
#[derive(Debug)]
pub struct Refused<T> {
    pub error: Error,
    pub kept: T,
}

impl<T> From<Refused<T>> for Error {
    fn from(r: Refused<T>) -> Error {
        r.error
    }
}
