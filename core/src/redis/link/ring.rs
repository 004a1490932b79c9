//! Bytes first in, first out, in a buffer of fixed size.
//!
//! A command lies here from the moment it is asked until its reply has come:
//! what is to be written is the tail of what is kept. The first bytes may
//! become the last ([`Ring::rotate`]), which needs no room: that is how a
//! command is sent again from a ring that is full.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// `len` zeros on the heap; nothing when there is no memory.
pub(crate) fn zeros<T: Clone + Default>(len: usize) -> Option<Box<[T]>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len).ok()?;
    zeros.resize(len, T::default());
    Some(zeros.into_boxed_slice())
}

#[derive(Debug)]
pub(crate) struct Ring {
    bytes: Box<[u8]>,
    head: usize,
    len: usize,
}

impl Ring {
    pub(crate) fn new(capacity: usize) -> Option<Ring> {
        Some(Ring { bytes: zeros(capacity)?, head: 0, len: 0 })
    }

    pub(crate) fn room(&self) -> usize {
        self.bytes.len().saturating_sub(self.len)
    }

    pub(crate) fn clear(&mut self) {
        self.head = 0;
        self.len = 0;
    }

    /// Appends all of `bytes`, or nothing if they do not fit.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.room() {
            return false;
        }
        let tail = self.place(self.len);
        let first = bytes.len().min(self.bytes.len().saturating_sub(tail));
        let (before, behind) = bytes.split_at(first);
        if let Some(room) = self.bytes.get_mut(tail..tail.saturating_add(first)) {
            room.copy_from_slice(before);
        }
        if let Some(room) = self.bytes.get_mut(..behind.len()) {
            room.copy_from_slice(behind);
        }
        self.len = self.len.saturating_add(bytes.len());
        true
    }

    /// Drops the first `count` bytes.
    pub(crate) fn pop(&mut self, count: usize) {
        let count = count.min(self.len);
        self.head = self.place(count);
        self.len = self.len.saturating_sub(count);
        if self.len == 0 {
            self.head = 0; // fewer writes are cut at the end of the buffer
        }
    }

    /// Makes the first `count` bytes the last ones.
    pub(crate) fn rotate(&mut self, count: usize) {
        let count = count.min(self.len);
        if self.room() > 0 {
            // Upwards, each byte is read before its place is written: the tail
            // reaches the head's place only after as many bytes as are free.
            for index in 0..count {
                let (from, to) = (self.place(index), self.place(self.len.saturating_add(index)));
                let byte = self.bytes.get(from).copied().unwrap_or_default();
                if let Some(place) = self.bytes.get_mut(to) {
                    *place = byte;
                }
            }
        }
        self.head = self.place(count);
    }

    /// The bytes from the `from`th on, up to the `to`th or the end of the buffer.
    pub(crate) fn run(&self, from: usize, to: usize) -> &[u8] {
        let to = to.min(self.len);
        let Some(len) = to.checked_sub(from) else { return &[] };
        let start = self.place(from);
        let end = start.saturating_add(len).min(self.bytes.len());
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// Copies the bytes from the `from`th on into all of `into`, as far as there are.
    pub(crate) fn copy(&self, from: usize, into: &mut [u8]) {
        let end = from.saturating_add(into.len());
        let first = self.run(from, end);
        let second = self.run(from.saturating_add(first.len()), end);
        for (to, byte) in into.iter_mut().zip(first.iter().chain(second)) {
            *to = *byte;
        }
    }

    /// Where the `index`th byte lies, for an index below twice the capacity.
    fn place(&self, index: usize) -> usize {
        let place = self.head.saturating_add(index);
        let size = self.bytes.len();
        let once = place.checked_sub(size).unwrap_or(place);
        once.checked_sub(size).unwrap_or(once).min(size.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn it_is_a_queue_that_never_grows(
            capacity in 1usize..40,
            steps in proptest::collection::vec((0u8..3, 0usize..45), 0..200),
        ) {
            let mut ring = Ring::new(capacity).unwrap();
            let mut model = VecDeque::new();
            let mut next = 0u8;
            for (step, count) in steps {
                match step {
                    0 => {
                        let bytes: Vec<u8> = (0..count).map(|i| next.wrapping_add(i as u8)).collect();
                        next = next.wrapping_add(count as u8);
                        let fits = model.len() + count <= capacity;
                        prop_assert_eq!(ring.push(&bytes), fits);
                        if fits {
                            model.extend(bytes);
                        }
                    }
                    1 => {
                        ring.pop(count);
                        model.drain(..count.min(model.len()));
                    }
                    _ => {
                        ring.rotate(count);
                        model.rotate_left(count.min(model.len()));
                    }
                }
                let mut all = std::vec![0; model.len()];
                ring.copy(0, &mut all);
                prop_assert!(model.iter().eq(all.iter()));
                prop_assert_eq!(ring.room(), capacity - model.len());
                let from = count.min(model.len());
                let run = ring.run(from, usize::MAX);
                prop_assert!(model.iter().skip(from).zip(run).all(|(a, b)| a == b));
                prop_assert!(run.is_empty() == (from == model.len()));
            }
        }
    }
}
