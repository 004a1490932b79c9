//! An allocator that counts, by thread, in the place of the system's. A test binary that asks whether
//! a path allocates has this line:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: tollgate_tests::counting::Counting = tollgate_tests::counting::Counting;
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator; it counts the calls of each thread.
#[derive(Debug)]
pub struct Counting;

/// How often this thread has called the allocator: to get memory, to change it, to give it back.
///
/// # Panics
/// Where [`Counting`] is not the allocator, and so would never count.
#[must_use]
pub fn calls() -> u64 {
    let before = CALLS.get();
    drop(std::hint::black_box(Box::new(1u8)));
    let calls = CALLS.get();
    assert_eq!(calls - before, 2, "the allocator does not count");
    CALLS.set(before);
    before
}

fn count() {
    CALLS.set(CALLS.get() + 1);
}

// SAFETY: the system's allocator, unchanged; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}
