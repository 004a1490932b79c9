//! One page as bytes.
//!
//! | bytes | |
//! |---|---|
//! | 4 | `Tg`, the layout's number, 0 |
//! | 8 | the latest instant at which something was charged |
//! | rows | one after another |
//!
//! | bytes of a row | |
//! |---|---|
//! | 2 | its length |
//! | 1 | algorithm; anchor × 16 |
//! | 8 | the key's fingerprint |
//! | 4, 4, 8 | the limit's units, burst and period |
//! | 8 | when it is idle, nothing being asked until then |
//! | rest | the state |
//!
//! All integers are little-endian. Bytes that are no page, or end in the
//! middle of a row, count as empty from there on: they are replaced at the
//! next write.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::algorithm::fixed_window::Window;
use crate::algorithm::sliding_window::Windows;
use crate::algorithm::token_bucket::Tat;
use crate::limit::{Algorithm, Anchor, Limit, MAX_PERIOD};
use crate::redis::state::{Line, State, number};
use crate::time::{HORIZON, Nanos, held};

const HEAD: usize = 12;
const MAGIC: [u8; 4] = [b'T', b'g', 1, 0];
/// A row without its state.
const ROW: usize = 2 + 1 + 8 + 4 + 4 + 8 + 8;

/// Room in which a page is put together, used again and again.
#[derive(Debug, Default)]
pub(super) struct Page {
    bytes: Vec<u8>,
    /// Rows of the page before: when they are idle, and where they lie.
    others: Vec<Reverse<(Nanos, usize, usize)>>,
}

impl Page {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Puts together the page `old` with these rows in place of their old
    /// ones, in at most `size` bytes, for `latest` as the instant of the last
    /// charge; how many rows that were not idle at `now` had to go. These rows
    /// are there whatever their size.
    pub(super) fn write<'r>(
        &mut self,
        old: &[u8],
        rows: &(impl Iterator<Item = (u64, &'r Limit, &'r State)> + Clone),
        (now, latest): (Nanos, Nanos),
        size: usize,
    ) -> u64 {
        let Page { bytes, others } = self;
        bytes.clear();
        bytes.extend(MAGIC);
        bytes.extend(latest.to_le_bytes());
        for (fingerprint, limit, state) in rows.clone() {
            put_row(bytes, fingerprint, limit, state, now);
        }
        others.clear();
        let mut total = bytes.len();
        for row in rows_of(old) {
            if !rows.clone().any(|(fingerprint, ..)| fingerprint == row.fingerprint) {
                total += row.bytes.len();
                others.push(Reverse((row.idle_at, row.start, row.bytes.len())));
            }
        }
        let mut evicted = 0;
        if total > size {
            // What is idle first goes first, until there is room for a few more.
            let room = size - size / 16;
            let mut heap = BinaryHeap::from(core::mem::take(others));
            while total > room
                && let Some(Reverse((idle_at, _, len))) = heap.pop()
            {
                total -= len; // part of the sum
                evicted += u64::from(idle_at > now);
            }
            *others = heap.into_vec();
        }
        for Reverse((_, start, len)) in &*others {
            bytes.extend_from_slice(old.get(*start..start + len).unwrap_or(&[]));
        }
        evicted
    }
}

/// The latest instant at which something was charged in a page.
pub(super) fn latest(page: &[u8]) -> Nanos {
    let is_page = page.starts_with(&MAGIC);
    let instant = page.get(4..HEAD).filter(|_| is_page).and_then(|bytes| bytes.try_into().ok());
    instant.map_or(0, u64::from_le_bytes)
}

/// A key's state under this limit: what was spent under another stays spent.
/// And whether it was another: then this has to be written, or what is left of
/// it would go on to recover at the old rate.
pub(super) fn find(page: &[u8], fingerprint: u64, limit: &Limit, now: Nanos) -> Option<(State, bool)> {
    let row = rows_of(page).find(|row| row.fingerprint == fingerprint)?;
    if row.is_of(limit) {
        return Some((row.state(limit.algorithm())?, false));
    }
    let old = row.limit()?;
    let mut state = row.state(old.algorithm())?;
    state.carry(&old, limit, now);
    Some((state, true))
}

/// The limit that a key was last charged under.
pub(super) fn limit_of(page: &[u8], fingerprint: u64) -> Option<Limit> {
    rows_of(page).find(|row| row.fingerprint == fingerprint)?.limit()
}

struct Row<'p> {
    start: usize,
    bytes: &'p [u8],
    fingerprint: u64,
    idle_at: Nanos,
}

fn rows_of(page: &[u8]) -> impl Iterator<Item = Row<'_>> {
    let mut start = if page.starts_with(&MAGIC) { HEAD } else { page.len() };
    core::iter::from_fn(move || {
        let head = page.get(start..start + 2)?;
        let len = usize::from(u16::from_le_bytes(head.try_into().ok()?));
        let bytes = page.get(start..start + len).filter(|_| len >= ROW)?;
        let row = Row { start, bytes, fingerprint: long(bytes, 3)?, idle_at: long(bytes, 27)? };
        start += len;
        Some(row)
    })
}

impl Row<'_> {
    fn is_of(&self, limit: &Limit) -> bool {
        let numbers = numbers(limit);
        self.bytes.get(2) == Some(&kind(limit)) && self.bytes.get(11..27) == Some(&numbers[..])
    }

    fn limit(&self) -> Option<Limit> {
        let kind = *self.bytes.get(2)?;
        let algorithm = Algorithm::ALL.into_iter().find(|of| *of as u8 == kind & 15)?;
        let anchor = match kind >> 4 {
            0 => Anchor::Clock,
            1 => Anchor::FirstRequest,
            2 => Anchor::CalendarMonth,
            _ => return None,
        };
        let limit = Limit::new(algorithm, short(self.bytes, 11)?.into(), long(self.bytes, 19)?).ok()?;
        let limit = limit.with_burst(short(self.bytes, 15)?.into()).ok()?;
        limit.with_anchor(anchor).ok()
    }

    fn state(&self, algorithm: Algorithm) -> Option<State> {
        let bytes = self.bytes.get(ROW..)?;
        Some(match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                State::Bucket(Tat { at: long(bytes, 0)?, part: short(bytes, 8)? }) // any is legal
            }
            Algorithm::FixedWindow => State::Window(Window { end: end(bytes)?, count: short(bytes, 8)? }),
            Algorithm::SlidingWindow => State::Windows(Windows {
                end: end(bytes)?,
                current: short(bytes, 8)?,
                previous: short(bytes, 12)?,
            }),
            Algorithm::SlidingLog => {
                let line = |bytes: &[u8]| {
                    Some(Line {
                        at: long(bytes, 0).map(held)?,
                        units: short(bytes, 8)?.into(),
                        id: long(bytes, 12)?,
                        total: 0,
                    })
                };
                let mut lines: Vec<Line> = bytes.chunks_exact(20).filter_map(line).collect();
                number(&mut lines);
                State::Log(lines)
            }
            Algorithm::Concurrency => {
                let hold = |bytes: &[u8]| Some((end(bytes)?, long(bytes, 8)?));
                State::Holds(bytes.chunks_exact(16).filter_map(hold).collect())
            }
        })
    }
}

fn put_row(bytes: &mut Vec<u8>, fingerprint: u64, limit: &Limit, state: &State, now: Nanos) {
    let start = bytes.len();
    bytes.extend([0, 0, kind(limit)]);
    bytes.extend(fingerprint.to_le_bytes());
    bytes.extend(numbers(limit));
    bytes.extend(idle_at(limit, state, now).to_le_bytes());
    match state {
        State::Bucket(tat) => {
            bytes.extend(tat.at.to_le_bytes());
            bytes.extend(tat.part.to_le_bytes());
        }
        State::Window(window) => {
            bytes.extend(window.end.to_le_bytes());
            bytes.extend(window.count.to_le_bytes());
        }
        State::Windows(windows) => {
            bytes.extend(windows.end.to_le_bytes());
            bytes.extend(windows.current.to_le_bytes());
            bytes.extend(windows.previous.to_le_bytes());
        }
        State::Log(lines) => {
            let last = lines.len().saturating_sub(super::MAX_ENTRIES as usize);
            for line in lines.iter().skip(last) {
                bytes.extend(line.at.to_le_bytes());
                bytes.extend(u32::try_from(line.units).unwrap_or(u32::MAX).to_le_bytes());
                bytes.extend(line.id.to_le_bytes());
            }
        }
        State::Holds(holds) => {
            for (expiry, id) in holds.iter().take(super::MAX_ENTRIES as usize) {
                bytes.extend(expiry.to_le_bytes());
                bytes.extend(id.to_le_bytes());
            }
        }
    }
    let len = u16::try_from(bytes.len() - start).unwrap_or(u16::MAX); // at most MAX_ENTRIES of 20 bytes
    if let Some(room) = bytes.get_mut(start..start + 2) {
        room.copy_from_slice(&len.to_le_bytes());
    }
}

/// When nothing of the state matters any more.
fn idle_at(limit: &Limit, state: &State, now: Nanos) -> Nanos {
    match state {
        State::Bucket(tat) => tat.at.saturating_add(1), // a part of a nanosecond later
        State::Window(window) => window.end,
        State::Windows(windows) => windows.end.saturating_add(limit.period()),
        State::Log(lines) => lines.last().map_or(now, |line| line.at.saturating_add(limit.period())),
        State::Holds(holds) => holds.iter().map(|(expiry, _)| *expiry).max().unwrap_or(now),
    }
}

fn kind(limit: &Limit) -> u8 {
    limit.algorithm() as u8 | (limit.anchor() as u8) << 4
}

fn numbers(limit: &Limit) -> [u8; 16] {
    let mut numbers = [0; 16];
    let small = |units: u64| u32::try_from(units).unwrap_or(u32::MAX).to_le_bytes(); // no limit is larger
    let parts = small(limit.limit()).into_iter().chain(small(limit.burst()));
    for (room, byte) in numbers.iter_mut().zip(parts.chain(limit.period().to_le_bytes())) {
        *room = byte;
    }
    numbers
}

/// The end of a window or a hold, with which a state begins; of one that cannot be, the last that can.
fn end(bytes: &[u8]) -> Option<Nanos> {
    long(bytes, 0).map(|end| end.min(HORIZON + MAX_PERIOD))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn short(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}
