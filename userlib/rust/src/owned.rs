// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! Boxes in their owner's process.
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{size_of, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::os::raw::c_void;
use std::ptr::{self, NonNull};

use crate::content::{Content, FarSafe};
use crate::error::{Error, Kind, Refused};
use crate::names::{Loan, Parcel, View};
use crate::space::Space;
use crate::sys;

/// An object that this process owns, at its home donor.  Dropped with the box.
///
/// It is neither `Clone` nor `Copy`: an object has one owner.  References follow Rust's rules, as
/// of a `std::boxed::Box`.  The library checks them again when it runs, so that a borrow that was
/// forgotten (`std::mem::forget`) makes the box [`Busy`](crate::Kind::Busy) for ever, and no more.
#[must_use]
pub struct Box<'s, T: Content + ?Sized> {
    space: &'s Space,
    /// Of C, which changes it in calls that need the box for themselves alone.
    own: UnsafeCell<sys::ebbdsm_box>,
    content: PhantomData<T>,
}

// SAFETY: content is Sync, and the library permits threads to borrow one box at the same time.
// What changes @own takes &mut self.
unsafe impl<T: Content + ?Sized> Sync for Box<'_, T> {}

impl<'s, T: Content + ?Sized> Box<'s, T> {
    /// Makes an object: a copy of @content.
    pub fn new(space: &'s Space, content: &T) -> Result<Self, Error> {
        let (content, size) = content.parts();
        // SAFETY: they are @size bytes of plain data.
        unsafe { Self::made(space, content, size) }
    }

    /// @content is NULL, or has @size bytes.
    unsafe fn made(space: &'s Space, content: *const c_void, size: usize) -> Result<Self, Error> {
        let mut own = sys::ebbdsm_box { at: 0, stamp: 0 };
        // SAFETY: the caller's promise; the handle is open, and the box is zero.
        Error::check(unsafe { sys::ebbdsm_new(space.raw(), content, size, &mut own) })?;
        Ok(Self::of_raw(space, own))
    }

    pub(crate) fn of_raw(space: &'s Space, own: sys::ebbdsm_box) -> Self {
        Box { space, own: UnsafeCell::new(own), content: PhantomData }
    }

    /// Returns the size of the object, or 0 if it was lost.  The library is asked each time:
    /// another process that has had the box may have replaced it.
    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: the handle is open, and the function changes nothing.
        unsafe { sys::ebbdsm_size(self.space.raw(), self.own.get()) }
    }

    /// Fails if the box was lost with a task's process: C would call that a mistake.
    fn present(&self) -> Result<(), Error> {
        // SAFETY: no other thread changes it while self is borrowed.
        let own = unsafe { *self.own.get() };
        if own.at == 0 && own.stamp == 0 {
            return Err(Error::new(sys::ESTALE));
        }
        Ok(())
    }

    /// Borrows the content for reading.  Any number of threads may at the same time.
    pub fn borrow(&self) -> Result<Ref<'_, T>, Error> {
        self.present()?;
        // SAFETY: shared borrows do not change the box.
        let content = unsafe { sys::ebbdsm_borrow(self.space.raw(), self.own.get()) };
        if content.is_null() {
            return Err(Error::last());
        }
        let of = Of::Box(self.space, self.own.get());
        match T::at(content as *mut c_void, self.bytes()) {
            // SAFETY: the content does not change while it is borrowed.
            Some(content) => Ok(unsafe { Ref::new(of, content) }),
            None => {
                // SAFETY: the borrow is ended once.
                unsafe { sys::ebbdsm_return(self.space.raw(), self.own.get(), content) };
                Err(Error::new(sys::EINVAL))
            }
        }
    }

    /// Borrows the content for reading and writing.
    pub fn borrow_mut(&mut self) -> Result<RefMut<'_, T>, Error> {
        self.present()?;
        let own = self.own.get();
        // SAFETY: the box is this call's alone.
        let content = unsafe { sys::ebbdsm_borrow_mut(self.space.raw(), own) };
        if content.is_null() {
            return Err(Error::last());
        }
        match T::at(content, self.bytes()) {
            Some(p) => Ok(RefMut {
                // SAFETY: it is not NULL.
                content: unsafe { NonNull::new_unchecked(p) },
                space: self.space,
                own,
                lifetime: PhantomData,
            }),
            None => {
                // SAFETY: the borrow is ended once.
                unsafe { sys::ebbdsm_return_mut(self.space.raw(), own, content) };
                Err(Error::new(sys::EINVAL))
            }
        }
    }

    /// Returns the name of the present value, for any number of readers.  After a change, it has
    /// another one.
    pub fn view(&self) -> View<T> {
        // SAFETY: no other thread changes it while self is borrowed.
        let own = unsafe { *self.own.get() };
        View::new(sys::ebbdsm_view { at: own.at, stamp: own.stamp })
    }

    /// Lends the content to one borrower in another process, beyond the end of this call: until
    /// [`reclaim`](Self::reclaim) the box is [`Busy`](crate::Kind::Busy).
    ///
    /// [`scope`](crate::scope()) has the compiler prevent uses until then.
    pub fn lend_unscoped(&mut self) -> Result<Loan<T>, Error> {
        self.present()?;
        let mut loan = sys::ebbdsm_loan { at: 0, stamp: 0 };
        // SAFETY: the box is this call's alone.
        Error::check(unsafe { sys::ebbdsm_lend_mut(self.space.raw(), self.own.get(), &mut loan) })?;
        Ok(Loan::new(loan))
    }

    /// Gets the box back after [`lend_unscoped`](Self::lend_unscoped), or after a
    /// [`scope`](crate::scope()) that has failed.
    ///
    /// [`Busy`](crate::Kind::Busy): a borrower has it, try again.
    /// [`Invalid`](crate::Kind::Invalid): it is not lent.
    pub fn reclaim(&mut self) -> Result<Ended, Error> {
        // SAFETY: the box is this call's alone.
        unsafe { reclaim(self.space.raw(), self.own.get()) }
    }

    /// Offers the box to one receiver: send it the parcel.
    pub fn give(self) -> Result<(Given<'s, T>, Parcel<T>), Refused<Self>> {
        if let Err(error) = self.present() {
            return Err(Refused { error, kept: self });
        }
        let mut parcel = sys::ebbdsm_parcel { at: 0, stamp: 0 };
        // SAFETY: the box is this call's alone.
        let result = unsafe { sys::ebbdsm_give(self.space.raw(), self.own.get(), &mut parcel) };
        match Error::check(result) {
            Ok(()) => Ok((Given { kept: ManuallyDrop::new(self) }, Parcel::new(parcel))),
            Err(error) => Err(Refused { error, kept: self }),
        }
    }

    pub(crate) fn space(&self) -> &'s Space {
        self.space
    }

    /// What C calls the box.  Used as long as it is borrowed mutably.
    pub(crate) fn raw(&self) -> (*mut sys::ebbdsm, *mut sys::ebbdsm_box) {
        (self.space.raw(), self.own.get())
    }
}

/// How a loan has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The borrower has returned the box, or none had borrowed it.
    Returned,
    /// The borrower has exited without a return: the box is as it was before the loan.
    Died,
}

/// @own is a box of the space @dsm, and this call's alone.
pub(crate) unsafe fn reclaim(
    dsm: *mut sys::ebbdsm,
    own: *mut sys::ebbdsm_box,
) -> Result<Ended, Error> {
    // SAFETY: the caller's promise.
    match Error::check(unsafe { sys::ebbdsm_reclaim(dsm, own) }) {
        Ok(()) => Ok(Ended::Returned),
        Err(e) if e.kind() == Kind::OwnerDead => Ok(Ended::Died),
        Err(e) => Err(e),
    }
}

impl<'s, T: FarSafe> Box<'s, T> {
    /// Makes an object of zeros.
    pub fn zeroed(space: &'s Space) -> Result<Self, Error> {
        // SAFETY: every pattern of bits is a value, also this one.
        unsafe { Self::made(space, ptr::null(), size_of::<T>()) }
    }

    /// Returns a copy of the content.
    pub fn get(&self) -> Result<T, Error> {
        Ok(*self.borrow()?)
    }
}

impl<'s, T: FarSafe> Box<'s, [T]> {
    /// Makes a slice of @length zeros.
    pub fn zeroed_slice(space: &'s Space, length: usize) -> Result<Self, Error> {
        let size = length.checked_mul(size_of::<T>()).ok_or_else(|| Error::new(sys::EINVAL))?;
        // SAFETY: every pattern of bits is a value, also this one.
        unsafe { Self::made(space, ptr::null(), size) }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.bytes() / size_of::<T>()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Content + ?Sized> Drop for Box<'_, T> {
    fn drop(&mut self) {
        // A box that is lent, or whose borrow was forgotten, stays until the space is closed.
        // SAFETY: the box is this call's alone.
        unsafe { sys::ebbdsm_drop(self.space.raw(), self.own.get()) };
    }
}

impl<T: Content + ?Sized> fmt::Debug for Box<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Box of {:?}", self.view())
    }
}

pub(crate) enum Of<'b> {
    Box(&'b Space, *mut sys::ebbdsm_box),
    View(&'b Space, sys::ebbdsm_view),
}

/// A shared borrow, which ends when this is dropped.
#[must_use]
pub struct Ref<'b, T: Content + ?Sized> {
    content: NonNull<T>,
    of: Of<'b>,
    lifetime: PhantomData<&'b T>,
}

// SAFETY: content is Send and Sync, and any thread may end a borrow.
unsafe impl<T: Content + ?Sized> Send for Ref<'_, T> {}
unsafe impl<T: Content + ?Sized> Sync for Ref<'_, T> {}

impl<'b, T: Content + ?Sized> Ref<'b, T> {
    /// # Safety
    ///
    /// @content is borrowed, and is not NULL.
    pub(crate) unsafe fn new(of: Of<'b>, content: *mut T) -> Self {
        // SAFETY: the caller's promise.
        Ref { content: unsafe { NonNull::new_unchecked(content) }, of, lifetime: PhantomData }
    }
}

impl<T: Content + ?Sized> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: it is borrowed until self is dropped.
        unsafe { self.content.as_ref() }
    }
}

impl<T: Content + ?Sized> Drop for Ref<'_, T> {
    fn drop(&mut self) {
        let content = self.content.as_ptr() as *const c_void;
        // SAFETY: the borrow is ended once.
        unsafe {
            match &self.of {
                Of::Box(space, own) => sys::ebbdsm_return(space.raw(), *own, content),
                Of::View(space, view) => sys::ebbdsm_return_view(space.raw(), view, content),
            }
        };
    }
}

impl<T: Content + ?Sized + fmt::Debug> fmt::Debug for Ref<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A mutable borrow, which ends when this is dropped.  Views from before are old then.
#[must_use]
pub struct RefMut<'b, T: Content + ?Sized> {
    content: NonNull<T>,
    space: &'b Space,
    own: *mut sys::ebbdsm_box,
    lifetime: PhantomData<&'b mut T>,
}

// SAFETY: content is Send and Sync, and any thread may end a borrow.
unsafe impl<T: Content + ?Sized> Send for RefMut<'_, T> {}
unsafe impl<T: Content + ?Sized> Sync for RefMut<'_, T> {}

impl<T: Content + ?Sized> RefMut<'_, T> {
    /// Ends the borrow as its drop does, and returns whether the change is at the donor, which over
    /// TCP can fail.
    pub fn end(self) -> Result<(), Error> {
        ManuallyDrop::new(self).give_back()
    }

    fn give_back(&mut self) -> Result<(), Error> {
        let content = self.content.as_ptr() as *mut c_void;
        // SAFETY: the borrow is ended once.
        Error::check(unsafe { sys::ebbdsm_return_mut(self.space.raw(), self.own, content) })
    }
}

impl<T: Content + ?Sized> Deref for RefMut<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: it is borrowed until self is dropped.
        unsafe { self.content.as_ref() }
    }
}

impl<T: Content + ?Sized> DerefMut for RefMut<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: it is this borrow's alone until self is dropped.
        unsafe { self.content.as_mut() }
    }
}

impl<T: Content + ?Sized> Drop for RefMut<'_, T> {
    fn drop(&mut self) {
        let _ = self.give_back();
    }
}

impl<T: Content + ?Sized + fmt::Debug> fmt::Debug for RefMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A box that was given, as far as its giver knows.  It may be forgotten: when the receiver has
/// accepted the parcel, [`Space::settle`] frees the memory.
pub struct Given<'s, T: Content + ?Sized> {
    kept: ManuallyDrop<Box<'s, T>>,
}

impl<'s, T: Content + ?Sized> Given<'s, T> {
    /// Takes the box out of the parcel again.
    ///
    /// [`Stale`](crate::Kind::Stale): it was accepted.  [`Busy`](crate::Kind::Busy): the receiver
    /// is copying it, try again.
    pub fn withdraw(mut self) -> Result<Box<'s, T>, Refused<Self>> {
        match self.kept.reclaim() {
            Ok(_) => Ok(ManuallyDrop::into_inner(self.kept)),
            Err(error) => Err(Refused { error, kept: self }),
        }
    }
}

impl<T: Content + ?Sized> fmt::Debug for Given<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Given")
    }
}
