//! What was asked and not yet answered, in the order in which the server gets
//! it and answers it.
//!
//! ```text
//! | sent, a reply is due | cut by the last write | not written yet |
//! ^ front                ^ sent                                    ^ back
//! ```
//!
//! A call that nobody waits for any more (its deadline passed, or it was
//! cancelled) keeps its place while a reply is due: the reply is dropped. If
//! nothing of it was written yet, it never is: its bytes are passed over.
//!
//! Invariants:
//! 1. The ring holds exactly the bytes of the entries, in their order.
//! 2. `sent_bytes` are those of the first `sent` entries, and `offset` more.
//! 3. `live` entries have a ticket that waits; each leaves once.
//! 4. An entry that was passed over is never at the front.

use alloc::collections::VecDeque;

use crate::time::{NEVER, Nanos};

use super::ring::Ring;

/// What an entry asks, and so what its reply must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The reply is `+OK`, or says why not.
    Auth,
    /// As `Auth`.
    Select,
    /// Any reply will do, unless it says that there will be no other.
    Name,
    /// Any reply will do but an error; that we may not ask is none.
    Ping,
    /// The reply is the digest of the script with this number.
    Load(usize),
    /// `CLUSTER SLOTS`.
    Slots,
    /// Integers; calls the script with this number.
    Call(usize),
    /// `+OK`.
    Probe,
}

/// Who waits for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The link itself.
    Link,
    /// A ticket.
    Ticket,
    /// A ticket whose deadline is past: when the reply comes, it is told.
    Late,
    /// Nobody any more; a reply will come.
    Nobody,
    /// Nobody any more, and nothing of it was written.
    Doomed,
    /// Nobody; it was passed over, and no reply will come.
    Skipped,
}

impl Holder {
    /// Is a ticket told of the reply?
    pub(crate) fn is_told(self) -> bool {
        matches!(self, Holder::Ticket | Holder::Late)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) holder: Holder,
    pub(crate) ticket: u64,
    /// Of its first key, in a cluster.
    pub(crate) slot: u16,
    pub(crate) deadline: Nanos,
    /// When the caller asked.
    pub(crate) asked_at: Nanos,
    /// When it took its place here, which is later when it is sent again.
    pub(crate) queued_at: Nanos,
    /// Its bytes.
    pub(crate) len: usize,
    /// How often it was sent again to this server.
    pub(crate) tries: u8,
    /// How many servers sent it on, since it last waited.
    pub(crate) hops: u8,
    /// How often it waited for its slot.
    pub(crate) waits: u8,
    /// Does it begin with `ASKING`, which has a reply of its own?
    pub(crate) asking: bool,
    /// Is that reply still to come?
    pub(crate) before: bool,
}

#[derive(Debug)]
pub(crate) struct Queue {
    ring: Ring,
    entries: VecDeque<Entry>,
    sent: usize,
    sent_bytes: usize,
    offset: usize,
    live: usize,
    doomed: usize,
    /// Entries and bytes of calls, as against those of the link itself.
    calls: usize,
    call_bytes: usize,
    /// Not after the first deadline of a live entry.
    next_deadline: Nanos,
}

impl Queue {
    /// Nothing when there is no memory.
    pub(crate) fn new(bytes: usize, entries: usize) -> Option<Queue> {
        let mut queue = VecDeque::new();
        queue.try_reserve_exact(entries).ok()?;
        Some(Queue {
            ring: Ring::new(bytes)?,
            entries: queue,
            sent: 0,
            sent_bytes: 0,
            offset: 0,
            live: 0,
            doomed: 0,
            calls: 0,
            call_bytes: 0,
            next_deadline: NEVER,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Is the next one of those that a connection begins with?
    pub(crate) fn is_setup_next(&self) -> bool {
        let next = self.entries.front().map(|entry| entry.kind);
        matches!(next, Some(Kind::Auth | Kind::Select | Kind::Name | Kind::Ping | Kind::Load(_)))
    }

    pub(crate) fn live(&self) -> usize {
        self.live
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    pub(crate) fn call_bytes(&self) -> usize {
        self.call_bytes
    }

    /// Appends an entry; false, and nothing is changed, if there is no room.
    pub(crate) fn push(&mut self, entry: Entry, parts: [&[u8]; 2]) -> bool {
        let [first, second] = parts;
        let len = first.len().saturating_add(second.len());
        if len > self.ring.room() || self.entries.len() >= self.entries.capacity() {
            return false;
        }
        let _ = self.ring.push(first) && self.ring.push(second);
        self.note(&entry, len, true);
        self.entries.push_back(Entry { len, ..entry });
        true
    }

    /// The entry whose reply is due.
    pub(crate) fn front(&mut self) -> Option<&mut Entry> {
        if self.sent == 0 { None } else { self.entries.front_mut() }
    }

    /// When the oldest entry took its place, written or not.
    pub(crate) fn oldest(&self) -> Option<Nanos> {
        self.entries.front().map(|entry| entry.queued_at)
    }

    /// Removes the entry whose reply has come.
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let entry = self.pop_one()?;
        self.pop_skipped();
        Some(entry)
    }

    /// The entry whose reply has come is sent once more, behind all others.
    pub(crate) fn again(&mut self, now: Nanos) {
        if self.sent == 0 {
            return;
        }
        let Some(entry) = self.entries.pop_front() else { return };
        self.ring.rotate(entry.len);
        self.sent = self.sent.saturating_sub(1);
        self.sent_bytes = self.sent_bytes.saturating_sub(entry.len);
        // The place that was popped is free: the queue does not grow.
        self.entries.push_back(Entry {
            queued_at: now,
            tries: entry.tries.saturating_add(1),
            before: entry.asking,
            ..entry
        });
        self.pop_skipped();
    }

    /// The bytes of the front entry from the `from`th on, into all of `into`.
    pub(crate) fn copy_front(&self, from: usize, into: &mut [u8]) {
        self.ring.copy(from, into);
    }

    /// What is to be written next, as far as it lies together.
    pub(crate) fn unsent(&mut self) -> &[u8] {
        if self.doomed == 0 {
            return self.ring.run(self.sent_bytes, usize::MAX);
        }
        while self.offset == 0 {
            let Some(entry) = self.entries.get_mut(self.sent) else { break };
            if entry.holder != Holder::Doomed {
                break;
            }
            entry.holder = Holder::Skipped;
            self.doomed = self.doomed.saturating_sub(1);
            self.sent = self.sent.saturating_add(1);
            self.sent_bytes = self.sent_bytes.saturating_add(entry.len);
        }
        self.pop_skipped();
        let unsent = self.entries.iter().skip(self.sent);
        let wanted = unsent.take_while(|entry| entry.holder != Holder::Doomed);
        let bytes = wanted.fold(0usize, |sum, entry| sum.saturating_add(entry.len));
        let end = self.sent_bytes.saturating_sub(self.offset).saturating_add(bytes);
        self.ring.run(self.sent_bytes, end)
    }

    /// As `unsent`, of the first entry alone, which nobody gives up.
    pub(crate) fn unsent_of_first(&self) -> &[u8] {
        self.ring.run(self.sent_bytes, self.entries.front().map_or(0, |entry| entry.len))
    }

    /// `count` bytes were written.
    pub(crate) fn transmitted(&mut self, mut count: usize) {
        while count > 0 {
            let Some(entry) = self.entries.get_mut(self.sent) else { return };
            if entry.holder == Holder::Doomed {
                // It was given up between the look at the bytes and the write.
                entry.holder = Holder::Nobody;
                self.doomed = self.doomed.saturating_sub(1);
            }
            let left = entry.len.saturating_sub(self.offset);
            let step = count.min(left);
            self.sent_bytes = self.sent_bytes.saturating_add(step);
            count = count.saturating_sub(step);
            if step == left {
                self.sent = self.sent.saturating_add(1);
                self.offset = 0;
            } else {
                self.offset = self.offset.saturating_add(step);
            }
        }
    }

    /// Nobody waits for `ticket` any more. Did somebody?
    pub(crate) fn cancel(&mut self, ticket: u64) -> bool {
        let mut waits = self.entries.iter_mut().enumerate();
        let found = waits.find(|(_, entry)| entry.holder == Holder::Ticket && entry.ticket == ticket);
        let Some((index, entry)) = found else { return false };
        entry.holder = if written(index, self.sent, self.offset) { Holder::Nobody } else { Holder::Doomed };
        self.doomed = self.doomed.saturating_add(usize::from(entry.holder == Holder::Doomed));
        self.live = self.live.saturating_sub(1);
        true
    }

    /// A ticket was given up whose reply may still come: `heir` waits for it.
    pub(crate) fn wait_on(&mut self, ticket: u64, heir: u64) -> bool {
        let mut gone = self.entries.iter_mut();
        let Some(entry) = gone.find(|entry| entry.holder == Holder::Nobody && entry.ticket == ticket) else {
            return false;
        };
        (entry.holder, entry.ticket) = (Holder::Late, heir);
        self.live = self.live.saturating_add(1);
        true
    }

    /// Gives up all tickets whose deadline has come, and tells each.
    pub(crate) fn expire(&mut self, now: Nanos, mut each: impl FnMut(u64)) {
        if now < self.next_deadline {
            return;
        }
        self.next_deadline = NEVER;
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.holder != Holder::Ticket {
                continue;
            }
            if entry.deadline > now {
                self.next_deadline = self.next_deadline.min(entry.deadline);
                continue;
            }
            let written = written(index, self.sent, self.offset);
            entry.holder = if written { Holder::Nobody } else { Holder::Doomed };
            self.doomed = self.doomed.saturating_add(usize::from(!written));
            self.live = self.live.saturating_sub(1);
            each(entry.ticket);
        }
    }

    /// The deadline of the call that is answered next, if somebody waits for it.
    pub(crate) fn front_deadline(&self) -> Option<Nanos> {
        let front = self.entries.front().filter(|entry| entry.holder == Holder::Ticket)?;
        Some(front.deadline)
    }

    /// No later than the first deadline; `None` when nobody waits.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        Some(self.next_deadline).filter(|at| self.live > 0 && *at < NEVER)
    }

    /// Empties the queue. Tells each ticket that waits, and whether anything
    /// of it was written.
    pub(crate) fn clear(&mut self, mut each: impl FnMut(u64, bool)) {
        for (index, entry) in self.entries.iter().enumerate() {
            if entry.holder.is_told() {
                // Once sent, always in doubt: except when the server itself has said that it
                // did not execute it, and it waits to be sent again.
                each(entry.ticket, written(index, self.sent, self.offset));
            }
        }
        self.entries.clear();
        self.ring.clear();
        (self.sent, self.sent_bytes, self.offset) = (0, 0, 0);
        (self.live, self.doomed, self.calls, self.call_bytes) = (0, 0, 0, 0);
        self.next_deadline = NEVER;
    }

    fn pop_one(&mut self) -> Option<Entry> {
        if self.sent == 0 {
            return None;
        }
        let entry = self.entries.pop_front()?;
        self.ring.pop(entry.len);
        self.sent = self.sent.saturating_sub(1);
        self.sent_bytes = self.sent_bytes.saturating_sub(entry.len);
        self.note(&entry, entry.len, false);
        Some(entry)
    }

    /// Keeps invariant 4.
    fn pop_skipped(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.holder == Holder::Skipped) {
            if self.pop_one().is_none() {
                break;
            }
        }
    }

    /// Counts an entry that comes, or goes.
    fn note(&mut self, entry: &Entry, len: usize, comes: bool) {
        let count = |sum: &mut usize, by: usize| {
            *sum = if comes { sum.saturating_add(by) } else { sum.saturating_sub(by) };
        };
        if matches!(entry.kind, Kind::Call(_) | Kind::Probe) {
            count(&mut self.calls, 1);
            count(&mut self.call_bytes, len);
        }
        if entry.holder.is_told() {
            count(&mut self.live, 1);
            if comes {
                self.next_deadline = self.next_deadline.min(entry.deadline);
            } else if self.live == 0 {
                self.next_deadline = NEVER;
            }
        }
    }
}

/// Was anything of the entry at `index` written?
fn written(index: usize, sent: usize, offset: usize) -> bool {
    index < sent || (index == sent && offset > 0)
}
