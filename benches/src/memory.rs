//! Counts the bytes that are allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
pub(crate) struct Counted;

/// Bytes that are allocated and not yet freed, as they are taken from memory:
/// rounded up, and with the word that the allocator keeps before each piece.
pub(crate) fn in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

/// Bytes that a piece really takes.
fn taken(pointer: *mut u8) -> usize {
    if pointer.is_null() {
        return 0;
    }
    // SAFETY: the pointer came from the system's allocator, which is malloc.
    unsafe { libc::malloc_usable_size(pointer.cast()) + size_of::<usize>() }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the system's.
        let pointer = unsafe { System.alloc(layout) };
        IN_USE.fetch_add(taken(pointer), Ordering::Relaxed);
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(taken(pointer), Ordering::Relaxed);
        // SAFETY: the caller's promise is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the system's.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        IN_USE.fetch_add(taken(pointer), Ordering::Relaxed);
        pointer
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let before = taken(pointer);
        // SAFETY: the caller's promise is the system's.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        if !moved.is_null() {
            IN_USE.fetch_add(taken(moved).wrapping_sub(before), Ordering::Relaxed); // wraps back when it shrinks
        }
        moved
    }
}
