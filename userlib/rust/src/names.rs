// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! What processes send to each other by channels of their own: 16 bytes each.
use std::fmt;
use std::marker::PhantomData;

use crate::content::{Content, FarSafe};

macro_rules! name {
    ($(#[$meta:meta])* $name:ident, $of:ident) => {
        $(#[$meta])*
        #[repr(C)]
        #[must_use]
        pub struct $name<T: Content + ?Sized> {
            at: u64,
            stamp: u64,
            content: PhantomData<fn() -> T>,
        }

        impl<T: Content + ?Sized> $name<T> {
            pub(crate) fn new(raw: crate::sys::$of) -> Self {
                $name { at: raw.at, stamp: raw.stamp, content: PhantomData }
            }

            pub(crate) fn raw(&self) -> crate::sys::$of {
                crate::sys::$of { at: self.at, stamp: self.stamp }
            }

            /// The name as bytes, to be sent.
            pub fn to_bytes(&self) -> [u8; 16] {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&self.at.to_le_bytes());
                bytes[8..].copy_from_slice(&self.stamp.to_le_bytes());
                bytes
            }

            /// The name that was received as @bytes.  A wrong one is refused when it is used; one
            /// of another type's object gives some value, or is refused for its size.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                let word = |i| {
                    let mut word = [0; 8];
                    word.copy_from_slice(&bytes[i..i + 8]);
                    u64::from_le_bytes(word)
                };
                $name { at: word(0), stamp: word(8), content: PhantomData }
            }
        }

        impl<T: Content + ?Sized> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), " {:x} {:x}"), self.at, self.stamp)
            }
        }

        impl<T: Content + ?Sized> PartialEq for $name<T> {
            fn eq(&self, other: &Self) -> bool {
                (self.at, self.stamp) == (other.at, other.stamp)
            }
        }

        impl<T: Content + ?Sized> Eq for $name<T> {}
    };
}

name! {
    /// The name of a value, for any number of readers: [`Space::read`](crate::Space::read).
    View, ebbdsm_view
}

name! {
    /// A box that is lent to one borrower: [`Space::with_loan`](crate::Space::with_loan).
    Loan, ebbdsm_loan
}

name! {
    /// A box that is offered to one receiver: [`Space::accept`](crate::Space::accept).
    Parcel, ebbdsm_parcel
}

impl<T: Content + ?Sized> Clone for View<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Content + ?Sized> Copy for View<T> {}

// Objects can name others.  SAFETY: two numbers, in the layout of C.
unsafe impl<T: Content + ?Sized> FarSafe for View<T> {}
