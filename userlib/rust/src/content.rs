// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! What an object can consist of.
use std::marker::PhantomData;
use std::mem::{align_of, size_of, size_of_val};
use std::os::raw::c_void;
use std::ptr;

use crate::sys;

/// Alignment of the content of every borrow.
const ALIGNMENT: usize = 16;

/// Plain data: another process on another machine can use its bytes.
///
/// [`far_safe!`](crate::far_safe) implements it for structures.
///
/// # Safety
///
/// The type
/// * has the same layout in all programs of the space: a number, an array, or `#[repr(C)]`;
/// * has no padding, whose bytes have no value, and would be sent;
/// * has no invalid values: every pattern of bits is one, as of numbers, and other than of `bool`,
///   `char`, enumerations and `NonZeroU32`.  A name may be received from anywhere, and its object
///   be of another type;
/// * holds no pointer, reference, descriptor or handle, which mean nothing in another process;
/// * has no interior mutability: shared borrows do not change.
///
/// `Copy` implies that it has no destructor.
pub unsafe trait FarSafe: Copy + Send + Sync + 'static {}

macro_rules! numbers {
    ($($t:ty)*) => { $(unsafe impl FarSafe for $t {})* };
}
// Neither usize, whose size differs, nor u128, whose alignment differs between compilers.
numbers!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

unsafe impl<T: FarSafe, const N: usize> FarSafe for [T; N] {}

// For tasks without arguments or results.
unsafe impl FarSafe for () {}

/// Defines a structure, `#[repr(C)]` and `Copy`, that is [`FarSafe`] if all its fields are.  It has
/// no padding, whose bytes have no value, and would be sent.
///
/// ```
/// ebbdsm::far_safe! {
///     pub struct Row {
///         pub key: u64,
///         pub sums: [f64; 4],
///     }
/// }
/// ```
#[macro_export]
macro_rules! far_safe {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident : $type:ty),+ $(,)?
    }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type),+
        }

        unsafe impl $crate::FarSafe for $name where $($type: $crate::FarSafe),+ {}

        const _: () = assert!(
            ::std::mem::size_of::<$name>() == 0 $(+ ::std::mem::size_of::<$type>())+,
            concat!(stringify!($name), " has padding: order its fields by size, or add some")
        );
        // Each field that is counted there is one: none is left out by `#[cfg]`.
        const _: fn(&$name) = |_whole| {
            $(let _ = _whole.$field;)+
        };
    };
}

/// Evaluated when a type is first used as content.
struct Fits<T>(PhantomData<T>);

impl<T> Fits<T> {
    const AS_ITEM: () = assert!(
        size_of::<T>() > 0 && align_of::<T>() <= ALIGNMENT,
        "content has at least one byte, and its alignment is at most 16"
    );
    const AS_WHOLE: () =
        assert!(size_of::<T>() <= sys::EBBDSM_SIZE_MOST, "content has at most 2 MiB - 32 bytes");
}

mod sealed {
    pub trait Sealed {}
    impl<T: super::FarSafe> Sealed for T {}
    impl<T: super::FarSafe> Sealed for [T] {}
}

/// What a box can have: a [`FarSafe`] value, or a slice of them.
pub trait Content: sealed::Sealed + 'static {
    /// Bytes of this value, for C.
    #[doc(hidden)]
    fn parts(&self) -> (*const c_void, usize);

    /// Returns @content as such a value, or `None` if it can have no value of @size bytes.
    #[doc(hidden)]
    fn at(content: *mut c_void, size: usize) -> Option<*mut Self>;
}

impl<T: FarSafe> Content for T {
    fn parts(&self) -> (*const c_void, usize) {
        let () = Fits::<T>::AS_ITEM;
        let () = Fits::<T>::AS_WHOLE;
        (self as *const T as *const c_void, size_of::<T>())
    }

    fn at(content: *mut c_void, size: usize) -> Option<*mut T> {
        let () = Fits::<T>::AS_ITEM;
        (size == size_of::<T>()).then_some(content as *mut T)
    }
}

impl<T: FarSafe> Content for [T] {
    fn parts(&self) -> (*const c_void, usize) {
        let () = Fits::<T>::AS_ITEM;
        (self.as_ptr() as *const c_void, size_of_val(self))
    }

    fn at(content: *mut c_void, size: usize) -> Option<*mut [T]> {
        let () = Fits::<T>::AS_ITEM;
        (size % size_of::<T>() == 0)
            .then(|| ptr::slice_from_raw_parts_mut(content as *mut T, size / size_of::<T>()))
    }
}
