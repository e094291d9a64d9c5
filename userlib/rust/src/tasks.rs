// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! Tasks that run in other processes of the program, next to their boxes.
use std::any::{type_name, TypeId};
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::fmt;
use std::marker::PhantomData;
use std::mem::{forget, size_of, ManuallyDrop, MaybeUninit};
use std::os::raw::{c_char, c_int, c_uint, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use crate::content::{Content, FarSafe};
use crate::error::{Error, Refused};
use crate::owned::Box;
use crate::scope::{Entry, Scope};
use crate::space::{c_string, Space};
use crate::sys;

/// A function that runs in a process of the same build, at the donor of its box.
pub trait Task: 'static {
    /// What it is told: copied.
    type Args: FarSafe;
    /// The content of its box.
    type Own: Content + ?Sized;
    /// What it returns: copied.
    type Output: FarSafe;

    /// @own is the task's alone, and goes back to the scope when this returns or panics.  It may
    /// be replaced by another box of @space; one of another space is dropped, and the scope's is
    /// lost: [`Invalid`](crate::Kind::Invalid).
    fn run<'s>(space: &'s Space, args: &Self::Args, own: &mut Box<'s, Self::Own>) -> Self::Output;
}

/// The tasks of a program, in the same order in all its processes.
#[derive(Default)]
pub struct Tasks {
    ids: Vec<TypeId>,
    table: Vec<sys::ebbdsm_function>,
    waiting: u32,
    build: Option<String>,
}

impl Tasks {
    pub fn new() -> Tasks {
        Tasks::default()
    }

    /// Adds a task.
    pub fn with<T: Task>(mut self) -> Tasks {
        self.ids.push(TypeId::of::<T>());
        self.table.push(execute::<T>);
        self
    }

    /// How many may wait in this process, up to 64; 0, the default: none run here.  Others choose
    /// the process as long as it lives, so keep threads in [`Space::work`].
    pub fn waiting(mut self, waiting: u32) -> Tasks {
        self.waiting = waiting;
        self
    }

    /// Equal in processes that have the same tasks: up to 63 printable characters.  Without it, the
    /// build id of the executable.
    pub fn build(mut self, build: &str) -> Tasks {
        self.build = Some(build.to_string());
        self
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tasks", self.ids.len())
    }
}

/// What the library refers to until the space is closed, and the numbers of tasks.
pub(crate) struct Registered {
    ids: Vec<TypeId>,
    _table: Vec<sys::ebbdsm_function>,
    _build: Option<CString>,
}

thread_local! {
    /// The space whose work() this thread is in.
    static WORKING: Cell<*const Space> = Cell::new(ptr::null());
}

/// The text of an array that the library has set, or the errno's own.
fn error_of(result: c_int, text: &[c_char]) -> Error {
    // SAFETY: the library ends the text within the array.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    Error::with_text(-result, text.to_string_lossy().into_owned())
}

fn milliseconds(timeout: Option<Duration>) -> c_int {
    timeout.map_or(-1, |t| t.as_millis().try_into().unwrap_or(c_int::MAX))
}

impl Space {
    /// Registers the tasks that this process may spawn and, with [`Tasks::waiting`], execute; once.
    pub fn register(&self, tasks: Tasks) -> Result<(), Error> {
        let build = tasks.build.as_ref().map(|b| c_string("the build", b)).transpose()?;
        let mut functions = sys::ebbdsm_functions {
            size: size_of::<sys::ebbdsm_functions>(),
            table: tasks.table.as_ptr(),
            count: c_uint::try_from(tasks.table.len()).unwrap_or(c_uint::MAX),
            waiting: tasks.waiting,
            build: build.as_ref().map_or(ptr::null(), |b| b.as_ptr()),
            error: [0; sys::TASK_ERROR_BYTES],
        };
        let mut registered = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the table is kept until the space is closed.
        let result = unsafe { sys::ebbdsm_register(self.raw(), &mut functions) };
        if result < 0 {
            return Err(error_of(result, &functions.error));
        }
        *registered = Some(Registered { ids: tasks.ids, _table: tasks.table, _build: build });
        Ok(())
    }

    /// Waits for a task, `None` = without limit, and executes it.  Returns whether one came.
    ///
    /// Does what [`settle`](Self::settle) does.
    pub fn work(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let before = WORKING.with(|w| w.replace(self));
        // SAFETY: the handle is open.
        let result = unsafe { sys::ebbdsm_work(self.raw(), milliseconds(timeout)) };
        WORKING.with(|w| w.set(before));
        if result == -sys::EAGAIN {
            return Ok(false);
        }
        Error::check(result).map(|()| true)
    }

    fn number_of<T: Task>(&self) -> Result<c_uint, Error> {
        let registered = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let ids = registered.as_ref().map_or(&[][..], |r| &r.ids);
        match ids.iter().position(|id| *id == TypeId::of::<T>()) {
            Some(number) => Ok(number as c_uint),
            None => Err(Error::with_text(
                sys::EINVAL,
                format!("task {}: not registered; add it by Tasks::with()", type_name::<T>()),
            )),
        }
    }
}

// --- the process that executes it ---

/// Statuses.
const DONE: c_int = 0;
const PANICKED: c_int = -1;
const MISFIT: c_int = -2;

/// Puts the box, whichever it is then, where the joiner gets it from.
struct GoesBack<'c, 's, T: Content + ?Sized> {
    space: &'s Space,
    own: ManuallyDrop<Box<'s, T>>,
    to: &'c mut sys::ebbdsm_box,
}

impl<T: Content + ?Sized> GoesBack<'_, '_, T> {
    /// Returns whether the box is of the space of the task, and not of another one of this process.
    fn fits(&self) -> bool {
        ptr::eq(self.own.space(), self.space)
    }
}

impl<T: Content + ?Sized> Drop for GoesBack<'_, '_, T> {
    fn drop(&mut self) {
        if self.fits() {
            // SAFETY: no other thread has the box.
            *self.to = unsafe { *self.own.raw().1 };
        } else {
            *self.to = sys::ebbdsm_box { at: 0, stamp: 0 };
            // SAFETY: it is not used after that.
            unsafe { ManuallyDrop::drop(&mut self.own) };
        }
    }
}

extern "C" fn execute<T: Task>(_dsm: *mut sys::ebbdsm, call: *mut sys::ebbdsm_call) -> c_int {
    // SAFETY: the library calls this from work(), with a call of its own.
    match catch_unwind(AssertUnwindSafe(|| unsafe { run::<T>(&mut *call) })) {
        Ok(status) => status,
        Err(panic) => {
            // Its end may panic, too, and no panic may reach C.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                forget(again);
            }
            PANICKED
        }
    }
}

unsafe fn run<T: Task>(call: &mut sys::ebbdsm_call) -> c_int {
    // SAFETY: work() has a reference to it.
    let space = unsafe { &*WORKING.with(|w| w.get()) };
    let own = Box::<T::Own>::of_raw(space, call.r#box[0]);
    let mut kept = GoesBack { space, own: ManuallyDrop::new(own), to: &mut call.r#box[0] };
    if T::Own::at(ptr::null_mut(), kept.own.bytes()).is_none()
        || call.args_size != size_of::<T::Args>()
        || call.result_size < size_of::<T::Output>()
    {
        return MISFIT;
    }
    // SAFETY: the arguments are plain data of their size.
    let args = unsafe { ptr::read_unaligned(or_none(call.args as *mut c_void) as *const T::Args) };
    let output = T::run(space, &args, &mut kept.own);
    if !kept.fits() {
        return MISFIT;
    }
    // SAFETY: there is room for it.
    unsafe { ptr::write_unaligned(or_none(call.result) as *mut T::Output, output) };
    call.result_size = size_of::<T::Output>();
    DONE
}

/// Returns an address for nothing if there is none.
fn or_none(p: *mut c_void) -> *mut c_void {
    if p.is_null() {
        16 as *mut c_void
    } else {
        p
    }
}

// --- the process that spawns it ---

/// Between attempts to take a result for which there was no memory.
const PAUSE: Duration = Duration::from_millis(10);

/// A task that is not joined, as C calls it, and its box.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Job {
    dsm: *mut sys::ebbdsm,
    own: *mut sys::ebbdsm_box,
    job: *mut sys::ebbdsm_job,
    room: usize,
}

impl Job {
    /// Waits for its end.  The box is the scope's again, or lost with the task's process.
    ///
    /// # Safety
    ///
    /// The box is the caller's alone, and the task was not joined.
    pub(crate) unsafe fn join(self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0u8; self.room];
        let mut result = sys::ebbdsm_result {
            size: size_of::<sys::ebbdsm_result>(),
            bytes: bytes.as_mut_ptr() as *mut c_void,
            bytes_size: self.room,
            status: 0,
            donor: 0,
            member: 0,
            r#box: [sys::ebbdsm_box { at: 0, stamp: 0 }; sys::EBBDSM_TASK_BOXES],
            error: [0; sys::TASK_ERROR_BYTES],
        };
        let mut job = self.job;
        let r = loop {
            result.bytes_size = self.room;
            // SAFETY: the caller's promise.
            let r = unsafe { sys::ebbdsm_join(self.dsm, &mut job, -1, &mut result) };
            if job.is_null() || ![-sys::ENOSPC, -sys::ENOBUFS, -sys::ENOMEM].contains(&r) {
                break r;
            }
            // The result stays where it is until there is memory for it.
            // SAFETY: a handle outlives its boxes.
            unsafe { sys::ebbdsm_settle(self.dsm) };
            thread::sleep(PAUSE);
        };
        // SAFETY: the caller's promise.
        unsafe { *self.own = result.r#box[0] };
        if r < 0 {
            return Err(error_of(r, &result.error));
        }
        bytes.truncate(result.bytes_size);
        match result.status {
            DONE => Ok(bytes),
            PANICKED => Err(Error::new(sys::ENOTRECOVERABLE)),
            _ => Err(Error::new(sys::EINVAL)),
        }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Spawns a task at the donor of its box, which is the task's until it ends.  Joined by
    /// [`Spawned::join`], or by the end of the scope.
    pub fn spawn<'s, T: Task>(
        &'scope self,
        own: &'scope mut Box<'s, T::Own>,
        args: &T::Args,
    ) -> Result<Spawned<'scope, 'env, 's, T>, Error> {
        let mut task = sys::ebbdsm_task {
            size: size_of::<sys::ebbdsm_task>(),
            function: own.space().number_of::<T>()?,
            args: args as *const T::Args as *const c_void,
            args_size: size_of::<T::Args>(),
            result_size: size_of::<T::Output>(),
            r#box: [sys::ebbdsm_box { at: 0, stamp: 0 }; sys::EBBDSM_TASK_BOXES],
            error: [0; sys::TASK_ERROR_BYTES],
        };
        let kept = NonNull::from(own);
        // SAFETY: it was a reference just now.
        let (dsm, own) = unsafe { kept.as_ref() }.raw();
        let mut job = ptr::null_mut();
        // SAFETY: the box is this call's alone; the arguments are plain data of their size.
        let result = unsafe {
            task.r#box[0] = *own;
            let result = sys::ebbdsm_spawn(dsm, &mut task, &mut job);
            *own = task.r#box[0];
            result
        };
        if result < 0 {
            return Err(error_of(result, &task.error));
        }
        let job = Job { dsm, own, job, room: size_of::<T::Output>() };
        self.list().push(Entry::Spawned(job));
        Ok(Spawned { scope: self, job, kept, own: PhantomData })
    }
}

/// A task of a scope.  It may be forgotten: the scope joins it in any case.
pub struct Spawned<'scope, 'env, 's, T: Task> {
    scope: &'scope Scope<'scope, 'env>,
    job: Job,
    kept: NonNull<Box<'s, T::Own>>,
    own: PhantomData<&'scope mut Box<'s, T::Own>>,
}

// SAFETY: it stands for a reference to a box, which is Send and Sync; any thread may join.
unsafe impl<T: Task> Send for Spawned<'_, '_, '_, T> {}
unsafe impl<T: Task> Sync for Spawned<'_, '_, '_, T> {}

impl<'scope, 's, T: Task> Spawned<'scope, '_, 's, T> {
    /// Waits for the end of the task, and for memory for its box, which other boxes may use up;
    /// returns its box and its output.
    ///
    /// On failure, the box is as the task has left it; after [`Cancelled`](crate::Kind::Cancelled)
    /// as it was; and after [`OwnerDead`](crate::Kind::OwnerDead) lost:
    /// [`Stale`](crate::Kind::Stale).
    #[allow(clippy::type_complexity)]
    pub fn join(
        self,
    ) -> Result<(&'scope mut Box<'s, T::Own>, T::Output), Refused<&'scope mut Box<'s, T::Own>>>
    {
        self.scope.list().retain(|entry| *entry != Entry::Spawned(self.job));
        // SAFETY: the scope does not have it any more, and self ends.
        let (result, own) = unsafe { (self.job.join(), &mut *self.kept.as_ptr()) };
        let bytes = match result {
            Ok(bytes) if bytes.len() == size_of::<T::Output>() => bytes,
            Ok(_) => return Err(Refused { error: Error::new(sys::EINVAL), kept: own }),
            Err(error) => return Err(Refused { error, kept: own }),
        };
        let mut output = MaybeUninit::<T::Output>::uninit();
        // SAFETY: every pattern of bits is a value.
        let output = unsafe {
            ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                output.as_mut_ptr() as *mut u8,
                size_of::<T::Output>(),
            );
            output.assume_init()
        };
        Ok((own, output))
    }
}

impl<T: Task> fmt::Debug for Spawned<'_, '_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spawned {}", type_name::<T>())
    }
}
