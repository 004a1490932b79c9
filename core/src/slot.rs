//! One 16-byte word that threads and processes share.
//!
//! A slot holds a key's fingerprint *and* its bucket, and changes only by one
//! 128-bit compare-and-swap. So a bucket can never be seen half written, be
//! charged after it went to another key, or be left broken by a process that
//! is killed: each instruction is either before the swap or after it.

#[cfg(not(loom))]
use portable_atomic::{AtomicU128, Ordering};

/// The value of a slot: a fingerprint with a small payload, and an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// Class, tag and payload; see [`table`](crate::table).
    pub hi: u64,
    /// The instant at which the bucket is idle.
    pub lo: u64,
}

impl Word {
    #[inline]
    const fn pack(self) -> u128 {
        (self.hi as u128) << 64 | self.lo as u128
    }

    #[inline]
    const fn unpack(bits: u128) -> Word {
        Word { hi: (bits >> 64) as u64, lo: bits as u64 } // the two halves
    }
}

/// Sixteen bytes of shared memory. All zeros is a slot that was never used.
///
/// All operations are sequentially consistent: the proof that a key is never
/// in two slots (see `table/claim.rs`) needs one order of all of them, and on
/// the processors that have a 128-bit compare-and-swap it costs nothing more.
#[repr(C, align(16))]
#[derive(Debug, Default)]
pub struct Slot {
    #[cfg(not(loom))]
    word: AtomicU128,
    #[cfg(loom)]
    word: loom::sync::Mutex<u128>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 16 && align_of::<Slot>() == 16);

#[cfg(not(loom))]
impl Slot {
    /// Is a slot's compare-and-swap one instruction here, so that processes
    /// may share it?
    #[must_use]
    pub fn is_lock_free() -> bool {
        AtomicU128::is_lock_free()
    }

    /// Reads the slot.
    #[inline]
    pub fn load(&self) -> Word {
        Word::unpack(self.word.load(Ordering::SeqCst)) // pairs with every swap
    }

    /// Puts `new` where `current` is.
    ///
    /// # Errors
    /// The word that was there instead.
    #[inline]
    pub fn swap(&self, current: Word, new: Word) -> Result<(), Word> {
        self.word
            .compare_exchange(current.pack(), new.pack(), Ordering::SeqCst, Ordering::SeqCst)
            .map(|_| ())
            .map_err(Word::unpack)
    }

    /// Overwrites the slot, for memory that nobody else uses yet.
    pub(crate) fn reset(&self) {
        // Reading first leaves untouched pages of zeros untouched.
        if self.load() != Word::default() {
            self.word.store(0, Ordering::SeqCst);
        }
    }
}

/// Under loom a slot is a mutex held for one operation: loom tries every
/// order of those operations.
#[cfg(loom)]
impl Slot {
    #[must_use]
    pub fn is_lock_free() -> bool {
        true
    }

    pub fn load(&self) -> Word {
        death::step();
        Word::unpack(*self.word.lock().unwrap())
    }

    pub fn swap(&self, current: Word, new: Word) -> Result<(), Word> {
        death::step();
        let mut word = self.word.lock().unwrap();
        if *word != current.pack() {
            return Err(Word::unpack(*word));
        }
        *word = new.pack();
        Ok(())
    }

    pub(crate) fn reset(&self) {
        *self.word.lock().unwrap() = 0;
    }
}

/// Threads that stop for ever before one of their operations, as a process
/// does that is killed there. Only under loom.
#[cfg(loom)]
pub mod death {
    use core::cell::Cell;

    loom::thread_local! {
        static LEFT: Cell<Option<u32>> = Cell::new(None);
    }

    struct Died;

    pub(super) fn step() {
        match LEFT.with(Cell::get) {
            Some(0) => std::panic::resume_unwind(std::boxed::Box::new(Died)),
            left => LEFT.with(|cell| cell.set(left.map(|n| n - 1))),
        }
    }

    /// Runs `body`, which dies before its operation number `steps`: nothing then.
    pub fn after<R>(steps: u32, body: impl FnOnce() -> R) -> Option<R> {
        LEFT.with(|cell| cell.set(Some(steps)));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).ok();
        LEFT.with(|cell| cell.set(None));
        outcome
    }
}
