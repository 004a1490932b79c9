//! Calls that a node sent on and that no other has yet: the connection to it
//! is being opened, its buffer is full, or their slot is on its way.

use alloc::collections::VecDeque;

use crate::redis::link::{Entry, Ring};
use crate::time::Nanos;

#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    pub(super) entry: Entry,
    pub(super) len: usize,
    /// The node that is to be asked, this once; else the slot's.
    pub(super) ask: Option<usize>,
    /// When it is tried next; [`NEVER`](crate::time::NEVER) waits for its node.
    pub(super) at: Nanos,
}

/// A queue of bounded size. Failed tickets stay in it until they were told.
#[derive(Debug)]
pub(super) struct Lot {
    ring: Ring,
    parked: VecDeque<Parked>,
    failed: VecDeque<u64>,
    most: usize,
}

impl Lot {
    /// Nothing when there is no memory.
    pub(super) fn new(bytes: usize, most: usize) -> Option<Lot> {
        let (mut parked, mut failed) = (VecDeque::new(), VecDeque::new());
        parked.try_reserve_exact(most).ok()?;
        failed.try_reserve_exact(most).ok()?;
        Some(Lot { ring: Ring::new(bytes)?, parked, failed, most })
    }

    pub(super) fn len(&self) -> usize {
        self.parked.len()
    }

    /// Tickets that wait, or that failed and were not told.
    pub(super) fn waiting(&self) -> usize {
        self.parked.len().saturating_add(self.failed.len())
    }

    /// False if there is no room.
    pub(super) fn push(&mut self, parked: Parked, bytes: &[u8]) -> bool {
        if self.waiting() >= self.most || !self.ring.push(bytes) {
            return false;
        }
        self.parked.push_back(Parked { len: bytes.len(), ..parked });
        true
    }

    /// The first one, and its bytes.
    pub(super) fn front<'b>(&self, into: &'b mut [u8]) -> Option<(Parked, &'b [u8])> {
        let parked = *self.parked.front()?;
        let bytes = into.get_mut(..parked.len)?;
        self.ring.copy(0, bytes);
        Some((parked, bytes))
    }

    pub(super) fn peek(&self) -> Option<Parked> {
        self.parked.front().copied()
    }

    pub(super) fn pop(&mut self) {
        if let Some(parked) = self.parked.pop_front() {
            self.ring.pop(parked.len);
        }
    }

    /// The first becomes the last one, and is tried at `at`.
    pub(super) fn put_off(&mut self, at: Nanos) {
        if let Some(parked) = self.parked.pop_front() {
            self.ring.rotate(parked.len);
            self.parked.push_back(Parked { at, ..parked });
        }
    }

    /// The node is gone: whoever was to ask it goes where the slot is.
    pub(super) fn forget(&mut self, node: usize) {
        for parked in &mut self.parked {
            if parked.ask == Some(node) {
                parked.ask = None;
            }
        }
    }

    pub(super) fn cancel(&mut self, ticket: u64) -> bool {
        let before = self.waiting();
        self.failed.retain(|failed| *failed != ticket);
        self.sift(|parked| parked.entry.ticket != ticket, |_| {});
        self.waiting() < before
    }

    pub(super) fn expire(&mut self, now: Nanos) {
        let mut failed = core::mem::take(&mut self.failed);
        self.sift(|parked| parked.entry.deadline > now, |ticket| failed.push_back(ticket));
        self.failed = failed;
    }

    /// A ticket whose deadline passed.
    pub(super) fn poll_failed(&mut self) -> Option<u64> {
        self.failed.pop_front()
    }

    /// When something is due.
    pub(super) fn next(&self) -> Option<Nanos> {
        if !self.failed.is_empty() {
            return Some(0);
        }
        self.parked.iter().map(|parked| parked.entry.deadline.min(parked.at)).min()
    }

    fn sift(&mut self, keep: impl Fn(&Parked) -> bool, mut drop: impl FnMut(u64)) {
        for _ in 0..self.parked.len() {
            match self.parked.front() {
                Some(parked) if keep(parked) => {
                    let at = parked.at;
                    self.put_off(at);
                }
                Some(parked) => {
                    drop(parked.entry.ticket);
                    self.pop();
                }
                None => break,
            }
        }
    }
}
