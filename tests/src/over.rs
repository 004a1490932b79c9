//! Threads of a load, or who watches it, end also when something fails: else a scope that waits for
//! them would wait for ever.

use std::sync::atomic::{AtomicBool, Ordering};

/// Says that it is over when it is dropped.
#[derive(Debug)]
pub struct Over<'o>(pub &'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
