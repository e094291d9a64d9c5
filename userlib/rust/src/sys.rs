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
    pub replicas: c_uint,
    pub unused: c_uint,
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
    pub at_twins: u64,
    pub lost: u64,
    pub bare: u64,
}

// --- ebbdsm_task.h ---

pub const EBBDSM_TASK_BOXES: usize = 8;
pub const EBBDSM_TASKS_WAITING: u32 = 64;
pub const TASK_ERROR_BYTES: usize = 256;

pub const ESRCH: i32 = 3;
pub const ENOEXEC: i32 = 8;
pub const EAGAIN: i32 = 11;
pub const ECANCELED: i32 = 125;
pub const ENOTRECOVERABLE: i32 = 131;

#[repr(C)]
pub struct ebbdsm_call {
    pub function: c_uint,
    pub args: *const c_void,
    pub args_size: usize,
    pub result: *mut c_void,
    pub result_size: usize,
    pub r#box: [ebbdsm_box; EBBDSM_TASK_BOXES],
}

pub type ebbdsm_function = extern "C" fn(dsm: *mut ebbdsm, call: *mut ebbdsm_call) -> c_int;

#[repr(C)]
pub struct ebbdsm_functions {
    pub size: usize,
    pub table: *const ebbdsm_function,
    pub count: c_uint,
    pub waiting: c_uint,
    pub build: *const c_char,
    pub error: [c_char; TASK_ERROR_BYTES],
}

#[repr(C)]
pub struct ebbdsm_task {
    pub size: usize,
    pub function: c_uint,
    pub args: *const c_void,
    pub args_size: usize,
    pub result_size: usize,
    pub r#box: [ebbdsm_box; EBBDSM_TASK_BOXES],
    pub error: [c_char; TASK_ERROR_BYTES],
}

/// A task that is not joined.
#[repr(C)]
pub struct ebbdsm_job {
    _private: [u8; 0],
}

#[repr(C)]
pub struct ebbdsm_result {
    pub size: usize,
    pub bytes: *mut c_void,
    pub bytes_size: usize,
    pub status: c_int,
    pub donor: c_uint,
    pub member: c_uint,
    pub r#box: [ebbdsm_box; EBBDSM_TASK_BOXES],
    pub error: [c_char; TASK_ERROR_BYTES],
}

#[link(name = "ebbdsm")]
extern "C" {
    pub fn ebbdsm_register(dsm: *mut ebbdsm, functions: *mut ebbdsm_functions) -> c_int;
    pub fn ebbdsm_spawn(
        dsm: *mut ebbdsm,
        task: *mut ebbdsm_task,
        job: *mut *mut ebbdsm_job,
    ) -> c_int;
    pub fn ebbdsm_spawn_at(
        dsm: *mut ebbdsm,
        near: u64,
        task: *mut ebbdsm_task,
        job: *mut *mut ebbdsm_job,
    ) -> c_int;
    pub fn ebbdsm_join(
        dsm: *mut ebbdsm,
        job: *mut *mut ebbdsm_job,
        timeout_ms: c_int,
        result: *mut ebbdsm_result,
    ) -> c_int;
    pub fn ebbdsm_cancel(dsm: *mut ebbdsm, job: *mut ebbdsm_job) -> c_int;
    pub fn ebbdsm_work(dsm: *mut ebbdsm, timeout_ms: c_int) -> c_int;
    pub fn ebbdsm_new_at(
        dsm: *mut ebbdsm,
        near: u64,
        content: *const c_void,
        size: usize,
        own: *mut ebbdsm_box,
    ) -> c_int;
}

// --- ebbdsm.h ---

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
