// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! Declarations of `ebbdsm.h`, which documents them.  `tests/header.rs` has a C compiler compare
//! them with the header.
#![allow(non_camel_case_types)]

use std::os::raw::{c_char, c_int, c_uint, c_void};

pub const EBBDSM_SIZE_MOST: usize = (2 << 20) - 32;
pub const EBBDSM_DONORS: usize = 8;
/// Bytes of `ebbdsm_options.error`.
pub const ERROR_BYTES: usize = 512;

// Values of errno.h, on the machines that ebb supports.
pub const EIO: i32 = 5;
pub const ECHILD: i32 = 10;
pub const ENOMEM: i32 = 12;
pub const EBUSY: i32 = 16;
pub const EINVAL: i32 = 22;
pub const ENOSPC: i32 = 28;
pub const ENOBUFS: i32 = 105;
pub const ESTALE: i32 = 116;
pub const EOWNERDEAD: i32 = 130;

/// A handle.
#[repr(C)]
pub struct ebbdsm {
    _private: [u8; 0],
}

#[repr(C)]
pub struct ebbdsm_options {
    pub size: usize,
    pub donors: *const *const c_char,
    pub donor_count: c_uint,
    pub home: c_uint,
    pub pool: *const c_char,
    pub key: *const c_char,
    pub cache: usize,
    pub timeout_ms: c_uint,
    pub resume_ms: c_uint,
    pub error: [c_char; ERROR_BYTES],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ebbdsm_box {
    pub at: u64,
    pub stamp: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ebbdsm_view {
    pub at: u64,
    pub stamp: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ebbdsm_loan {
    pub at: u64,
    pub stamp: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ebbdsm_parcel {
    pub at: u64,
    pub stamp: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ebbdsm_counts {
    pub size: usize,
    pub hits: u64,
    pub misses: u64,
    pub round_trips: u64,
    pub requests: u64,
    pub posted: u64,
    pub cached: u64,
    pub places: u64,
}

#[link(name = "ebbdsm")]
extern "C" {
    pub fn ebbdsm_open(options: *mut ebbdsm_options, dsm: *mut *mut ebbdsm) -> c_int;
    pub fn ebbdsm_close(dsm: *mut ebbdsm);
    pub fn ebbdsm_why(dsm: *const ebbdsm) -> *const c_char;
    pub fn ebbdsm_new(
        dsm: *mut ebbdsm,
        content: *const c_void,
        size: usize,
        own: *mut ebbdsm_box,
    ) -> c_int;
    pub fn ebbdsm_size(dsm: *mut ebbdsm, own: *const ebbdsm_box) -> usize;
    pub fn ebbdsm_borrow(dsm: *mut ebbdsm, own: *mut ebbdsm_box) -> *const c_void;
    pub fn ebbdsm_return(dsm: *mut ebbdsm, own: *mut ebbdsm_box, content: *const c_void) -> c_int;
    pub fn ebbdsm_borrow_mut(dsm: *mut ebbdsm, own: *mut ebbdsm_box) -> *mut c_void;
    pub fn ebbdsm_return_mut(dsm: *mut ebbdsm, own: *mut ebbdsm_box, content: *mut c_void)
        -> c_int;
    pub fn ebbdsm_drop(dsm: *mut ebbdsm, own: *mut ebbdsm_box) -> c_int;
    pub fn ebbdsm_borrow_view(
        dsm: *mut ebbdsm,
        view: *const ebbdsm_view,
        size: *mut usize,
    ) -> *const c_void;
    pub fn ebbdsm_return_view(
        dsm: *mut ebbdsm,
        view: *const ebbdsm_view,
        content: *const c_void,
    ) -> c_int;
    pub fn ebbdsm_lend_mut(dsm: *mut ebbdsm, own: *mut ebbdsm_box, loan: *mut ebbdsm_loan)
        -> c_int;
    pub fn ebbdsm_borrow_loan(
        dsm: *mut ebbdsm,
        loan: *const ebbdsm_loan,
        size: *mut usize,
    ) -> *mut c_void;
    pub fn ebbdsm_return_loan(
        dsm: *mut ebbdsm,
        loan: *const ebbdsm_loan,
        content: *mut c_void,
    ) -> c_int;
    pub fn ebbdsm_reclaim(dsm: *mut ebbdsm, own: *mut ebbdsm_box) -> c_int;
    pub fn ebbdsm_give(dsm: *mut ebbdsm, own: *mut ebbdsm_box, parcel: *mut ebbdsm_parcel)
        -> c_int;
    pub fn ebbdsm_accept(
        dsm: *mut ebbdsm,
        parcel: *const ebbdsm_parcel,
        own: *mut ebbdsm_box,
    ) -> c_int;
    pub fn ebbdsm_settle(dsm: *mut ebbdsm) -> c_int;
    pub fn ebbdsm_count(dsm: *mut ebbdsm, counts: *mut ebbdsm_counts);
}
