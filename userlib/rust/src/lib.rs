// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! Objects with one owner, shared by processes of several machines in the memory of ebb-donord(8):
//! libebbdsm for Rust.
//!
//! A [`Box`] is an object that this process owns, in a [`Space`] that all processes have opened.
//! Other processes
//!
//! * read its present value by a [`View`] ([`Box::view`], [`Space::read`]), by one round trip, and
//!   then from a copy that nothing has to invalidate;
//! * change it by a [`Loan`] ([`Scope::lend`], [`Space::with_loan`]);
//! * become its owner by a [`Parcel`] ([`Box::give`], [`Space::accept`]).
//!
//! Or a process spawns a [`Task`] next to a box ([`Scope::spawn`]), which is the task's until it
//! ends.
//!
//! The program sends these names, 16 bytes each, by channels of its own.
//!
//! # What the compiler proves
//!
//! * A box is not copied, used after it was given, or dropped while it is borrowed.
//! * No borrow is mutable while there is another one, in this process.  Between processes the
//!   library ensures it: a reader has a copy of one value, and a loan has one borrower.
//! * Content is plain data ([`FarSafe`]): it means the same in every process.
//! * A box that a task has on loan is not used meanwhile, and is owned again when the [`scope()`]
//!   ends.  Tasks borrow within a closure: no guard, which could be forgotten, ends a loan.
//!
//! What only another process can know is checked when the program runs, in all builds:
//! [`Kind::Stale`], [`Kind::OwnerDead`].  The environment variable `EBBDSM_CHECK` has the library
//! check more; see ebbdsm(3).
//!
//! ```no_run
//! # fn main() -> Result<(), ebbdsm::Error> {
//! use ebbdsm::{Box, Options, Space, View};
//!
//! let space = Space::open(&Options {
//!     donors: vec!["unix:/run/ebb/donor.sock".into()],
//!     pool: "p".into(),
//!     ..Options::default()
//! })?;
//! let mut table = Box::<[u64]>::zeroed_slice(&space, 1000)?;
//! table.borrow_mut()?[7] = 49;
//! let name = table.view().to_bytes();
//!
//! // In another process, which has received the name:
//! let view = View::<[u64]>::from_bytes(name);
//! assert_eq!(space.read(view)?[7], 49);
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_op_in_unsafe_fn)]

mod content;
mod error;
mod names;
mod owned;
mod scope;
mod space;
pub mod sys;
mod tasks;

pub use content::{Content, FarSafe};
pub use error::{Error, Kind, Refused};
pub use names::{Loan, Parcel, View};
pub use owned::{Box, Ended, Given, Ref, RefMut};
pub use scope::{scope, Lent, Scope};
pub use space::{Counts, Options, Space};
pub use tasks::{Spawned, Task, Tasks};
