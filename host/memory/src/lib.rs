//! The binary's allocator, and what it does with memory that is freed.
//!
//! Aligned buffers of one page each take twice their size from the C library's allocator, and mimalloc is quicker
//! (`docs/decisions/2026-11-21-allocator.md`). A program that links this room runs on it.
#![allow(unsafe_code)] // an option that no library sets

use std::ffi::{c_int, c_long};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of `mimalloc.h`: the same number in its versions 2 and 3.
const PURGE_DELAY: c_int = 15;
/// What stands there for "never".
const NEVER: c_long = -1;

// Linked with the allocator; its crate does not name it without another one.
unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
}

/// Memory that is freed stays with the process from now on: what is allocated and freed over and over need not be cleared by
/// the system each time. For programs that work and end; a server gives back what it does not use.
pub fn keep_freed() {
    // SAFETY: the option exists, any number may be its value, and it is read atomically, by whichever thread.
    unsafe {
        mi_option_set(PURGE_DELAY, NEVER);
    }
}
