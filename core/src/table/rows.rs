//! Sliding logs and concurrency limits: one row of slots a key.
//!
//! ```text
//!  row   | owner | entry 0 | entry 1 | … |
//!  owner | fingerprint 64 | floor 64 |
//!  log   | total 64       | at 64    |     a ring, oldest overwritten
//!  holds | fingerprint 64 | expiry 64 |    in any order
//! ```
//!
//! A log is appended to by one swap of the ring's oldest entry. Totals only
//! grow, so an entry that was read and is still there has not changed
//! meanwhile, and neither has any newer one. A hold carries its owner's
//! fingerprint. The upper bit of a word tells holds and their owners from
//! logs, so the same key may have one of each.
//!
//! # When a row changes hands
//!
//! An owner's word does not change when its row is used, so who saw the row
//! idle must not take it at once. It first marks the owner's word as *closing*
//! and looks again: an owner that used the row before the mark is seen then;
//! one that uses it after the mark finds the mark, and removes it.
//!
//! A new owner of a log begins at place 0 with a `floor` above every total
//! that the row holds and the floor before, by as much as one request of the owner before can add
//! that is still on its way: what was there counts no more. Such a request
//! finds that the row is another's, and is asked again.

use super::claim::{self, Candidates, Kind};
use super::memory::{Line, Parts};
use super::{Table, walk};
use crate::algorithm::concurrency;
use crate::algorithm::sliding_log::{self, Entry, Log};
use crate::decision::Decision;
use crate::key::Fingerprint;
use crate::limit::{Algorithm, Limit};
use crate::slot::{Slot, Word};
use crate::time::{Nanos, SECOND};

/// Rows that a key may be in.
const WINDOW: usize = 16;
/// Set in the fingerprint of holds and of their owners.
const HOLDS: u64 = 1 << 63;
/// The mark of an owner that is pending.
const PENDING: u64 = 1 << 63;
/// The mark of a settled owner whose row was seen idle and may be taken.
const CLOSING: u64 = 1 << 62;
/// The mark of a floor that was raised by a refund.
const RAISED: u64 = 1 << 61;
/// The mark of an owner that has not used its row yet: it is about to, so the
/// row does not count as idle.
const FRESH: u64 = 1 << 60;
/// What an owner's word tells beside its marks: the floor of a log, the
/// largest limit that holds were taken under.
const VALUE: u64 = FRESH - 1;
const PENDING_FOR: Nanos = SECOND;

/// Units in flight, to be given back with [`Table::release`]. A hold of no
/// units (of a denied or free request) may be released, to no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// The row that it is in.
    pub row: u64,
    /// The fingerprint of its key.
    pub fingerprint: u64,
    /// When it ends by itself.
    pub expires: Nanos,
    /// How many.
    pub units: u64,
}

impl<'m> Table<'m> {
    /// Takes `cost` units in flight, until they are [released](Self::release)
    /// or the limit's period is over.
    pub fn acquire(&self, key: &[u8], limit: &Limit, cost: u64, now: Nanos) -> (Decision, Hold) {
        self.acquire_fingerprint(self.fingerprint(key), limit, cost, now)
    }

    /// [`acquire`](Self::acquire) with the fingerprint at hand.
    pub fn acquire_fingerprint(
        &self,
        key: Fingerprint,
        limit: &Limit,
        cost: u64,
        now: Nanos,
    ) -> (Decision, Hold) {
        let key = hold_key(key);
        let clock = self.parts.header.clock(key);
        let now = clock.hold(now);
        if limit.algorithm() != Algorithm::Concurrency || self.accepts(limit).is_err() {
            return (Decision::never(limit), Hold::default());
        }
        loop {
            let Some((row, owner)) = self.find_row(key) else {
                let (expiry, decision) = concurrency::decide(core::iter::empty(), limit, now, cost);
                if expiry.is_none() {
                    return (decision, Hold::default());
                }
                self.claim_row(key, limit, now);
                continue;
            };
            let reach = owner.lo & VALUE;
            if reach < limit.limit() {
                // Holds may lie further on than a lower limit looks.
                if let Some(slot) = self.owner(row) {
                    let _ = slot.swap(owner, Word { lo: owner.lo & !VALUE | limit.limit(), ..owner });
                }
                continue;
            }
            let all = self.slots(row, reach);
            let (expiry, decision) = concurrency::decide(live(all.clone(), key), limit, now, cost);
            let Some(expires) = expiry else {
                return (decision, Hold::default());
            };
            let hold = Hold { row: row as u64, fingerprint: key.0, expires, units: cost };
            let word = Word { hi: key.0, lo: expires };
            let mut taken = 0;
            for slot in self.slots(row, limit.limit()) {
                let seen = slot.load();
                let is_free = seen.hi != key.0 || seen.lo <= now;
                // The owner is read after the slot: what was seen there is
                // then void for whoever owns the row next.
                if taken < cost && is_free && self.is_owner(row, key) && slot.swap(seen, word).is_ok() {
                    taken += 1;
                }
            }
            let fits = reach == limit.limit()
                || live(all, key).filter(|&expiry| expiry > now).count() as u64 <= limit.limit();
            if taken == cost && fits && self.keep(row, key) {
                clock.note(now);
                return (decision, hold);
            }
            // Others were faster: give back what was taken and ask again.
            self.release(&Hold { units: taken, ..hold });
        }
    }

    /// Gives back the units of a hold. Those that have expired are gone already.
    pub fn release(&self, hold: &Hold) {
        let word = Word { hi: hold.fingerprint, lo: hold.expires };
        let Ok(row) = usize::try_from(hold.row) else { return };
        if word.hi & HOLDS == 0 {
            return; // no hold looks like this
        }
        let mut left = hold.units;
        for slot in self.slots(row, u64::MAX) {
            if left == 0 {
                return;
            }
            if slot.load() == word && slot.swap(word, Word { hi: word.hi, lo: 0 }).is_ok() {
                left -= 1;
            }
        }
    }

    pub(super) fn peek_holds(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) -> Decision {
        if self.accepts(limit).is_err() {
            return Decision::never(limit);
        }
        let key = hold_key(key);
        match self.find_row(key) {
            Some((row, owner)) => {
                concurrency::decide(live(self.slots(row, owner.lo & VALUE), key), limit, now, cost).1
            }
            None => concurrency::decide(core::iter::empty(), limit, now, cost).1,
        }
    }

    pub(super) fn check_log(
        &self,
        key: Fingerprint,
        limit: &Limit,
        cost: u64,
        now: Nanos,
        take: bool,
    ) -> Decision {
        if self.accepts(limit).is_err() {
            return Decision::never(limit);
        }
        let key = log_key(key);
        self.parts.header.longest(limit.period());
        loop {
            let Some((row, owner)) = self.find_row(key) else {
                let (entry, decision) = sliding_log::decide(&NoLog, limit, now, cost);
                if entry.is_none() || !take {
                    return decision;
                }
                self.claim_row(key, limit, now);
                continue;
            };
            let Some(ring) = self.read_log(row, owner) else { continue };
            let (entry, decision) = sliding_log::decide(&ring, limit, now, cost);
            let unchanged = ring.is_unchanged();
            match entry.filter(|_| take) {
                _ if !unchanged => {}
                None => return decision,
                Some(entry) => {
                    // In a row that changed hands meanwhile it is void: ask again.
                    if ring.append(entry) && self.keep(row, key) {
                        return decision;
                    }
                }
            }
        }
    }

    pub(super) fn refund_log(&self, key: Fingerprint, limit: &Limit, cost: u64, charged_at: Nanos) {
        let key = log_key(key);
        while let Some((row, owner)) = self.find_row(key) {
            let Some(ring) = self.read_log(row, owner) else { continue };
            let floor = sliding_log::refund(&ring, limit, cost, charged_at);
            let Some(slot) = self.owner(row) else { return };
            if floor == owner.lo & VALUE
                || (ring.is_unchanged() && slot.swap(owner, Word { lo: floor | RAISED, ..owner }).is_ok())
            {
                return;
            }
        }
    }

    fn find_row(&self, key: Fingerprint) -> Option<(usize, Word)> {
        let walk = RowWalk { table: self, key, longest: 0, reach: 0 };
        for probe in 0..walk.probes() {
            let row = walk.id(probe);
            let word = walk.slot(row)?.load();
            if word.hi == key.0 && word.lo < PENDING {
                return Some((row, word));
            }
            if word == Word::default() {
                return None;
            }
        }
        None
    }

    fn owner(&self, row: usize) -> Option<&'m Slot> {
        self.parts.row(row).first().map(|line| &line.0[0])
    }

    fn is_owner(&self, row: usize, key: Fingerprint) -> bool {
        self.owner(row).is_some_and(|slot| slot.load().hi == key.0)
    }

    /// Is the row still this key's after it was used? Who is closing it learns
    /// that it is not idle.
    fn keep(&self, row: usize, key: Fingerprint) -> bool {
        let Some(slot) = self.owner(row) else { return false };
        loop {
            let word = slot.load();
            if word.hi != key.0 || word.lo >= PENDING {
                return false;
            }
            let used = Word { lo: word.lo & !(CLOSING | FRESH), ..word };
            if used == word || slot.swap(word, used).is_ok() {
                return true;
            }
        }
    }

    /// The log of a row, read while `owner` stood there.
    fn read_log(&self, row: usize, owner: Word) -> Option<Ring<'m>> {
        let ring = self.parts.ring(row, owner);
        (self.owner(row)?.load() == owner).then_some(ring)
    }

    #[cold]
    fn claim_row(&self, key: Fingerprint, limit: &Limit, now: Nanos) {
        let is_log = limit.algorithm() == Algorithm::SlidingLog;
        let longest = self.parts.header.longest(if is_log { limit.period() } else { 0 });
        let walk = RowWalk { table: self, key, longest, reach: limit.limit() };
        claim::claim(&walk, now, |row, old| walk.settled_after(row, old));
    }

    /// The first `entries` entries of a row.
    fn slots(&self, row: usize, entries: u64) -> impl Iterator<Item = &'m Slot> + Clone + use<'m> {
        let entries = usize::try_from(entries.min(self.parts.row_entries())).unwrap_or(usize::MAX);
        self.parts.row(row).iter().flat_map(|line| &line.0).skip(1).take(entries)
    }
}

/// A key as the owner of a log. Zero marks unused memory, so it owns none.
fn log_key(key: Fingerprint) -> Fingerprint {
    Fingerprint((key.0 & !HOLDS).max(1))
}

/// A key as the owner of holds.
fn hold_key(key: Fingerprint) -> Fingerprint {
    Fingerprint(key.0 | HOLDS)
}

fn live<'m>(
    slots: impl Iterator<Item = &'m Slot> + Clone,
    key: Fingerprint,
) -> impl Iterator<Item = Nanos> + Clone {
    slots.map(Slot::load).filter(move |word| word.hi == key.0).map(|word| word.lo)
}

impl<'m> Parts<'m> {
    /// The log of a row as its owner's word tells where it begins.
    fn ring(&self, row: usize, owner: Word) -> Ring<'m> {
        Ring::read(self.row(row), self.row_entries(), owner.lo & VALUE, owner.lo & RAISED == 0)
    }
}

struct NoLog;

impl Log for NoLog {
    fn len(&self) -> usize {
        1
    }

    fn entry(&self, _age: usize) -> Entry {
        Entry::default()
    }

    fn floor(&self) -> u64 {
        0
    }
}

/// A ring of entries that others may append to at any moment.
pub(crate) struct Ring<'m> {
    lines: &'m [Line],
    len: usize,
    /// The place of the oldest entry, and what it was when it was read.
    oldest: usize,
    seen: Word,
    newest: Word,
    floor: u64,
}

impl<'m> Ring<'m> {
    /// Reads the ring. Where `floor` is still the one that the log began with,
    /// what is at or below it is of owners before, in any order.
    pub(crate) fn read(lines: &'m [Line], entries: u64, floor: u64, is_first_floor: bool) -> Ring<'m> {
        let len =
            usize::try_from(entries).unwrap_or(usize::MAX).min((lines.len() * 4).saturating_sub(1)).max(1);
        let empty = Word { hi: floor, lo: 0 };
        let mut ring = Ring { lines, len, oldest: 0, seen: Word::default(), newest: empty, floor };
        // Totals grow along the ring up to the newest entry and start again,
        // lower, at the oldest: bisect for that edge.
        ring.seen = ring.word(0);
        let base = total(ring.seen);
        if base == 0 || (is_first_floor && base <= floor) {
            return ring; // this log has no entry yet
        }
        let (mut low, mut high) = (0, len);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if total(ring.word(middle)) >= base {
                low = middle;
            } else {
                high = middle;
            }
        }
        // Appends meanwhile have moved the edge on: follow it.
        ring.newest = ring.word(low);
        loop {
            let next = (low + 1) % len;
            let word = ring.word(next);
            if total(word) <= ring.newest.hi {
                ring.oldest = next;
                ring.seen = word;
                return ring;
            }
            (low, ring.newest) = (next, word);
        }
    }

    /// Has nothing been appended since it was read?
    pub(crate) fn is_unchanged(&self) -> bool {
        self.word(self.oldest) == self.seen
    }

    pub(crate) fn append(&self, entry: Entry) -> bool {
        let word = Word { hi: entry.total, lo: entry.at };
        self.slot(self.oldest).is_some_and(|slot| slot.swap(self.seen, word).is_ok())
    }

    fn slot(&self, place: usize) -> Option<&'m Slot> {
        self.lines.get((place + 1) / 4).map(|line| &line.0[(place + 1) % 4])
    }

    fn word(&self, place: usize) -> Word {
        self.slot(place).map_or(Word::default(), Slot::load)
    }
}

impl Log for Ring<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn entry(&self, age: usize) -> Entry {
        // The ends are what they were when the ring was found.
        let word = if age + 1 == self.len {
            self.newest
        } else if age == 0 {
            self.seen
        } else {
            self.word((self.oldest + age) % self.len)
        };
        Entry { total: total(word), at: word.lo }
    }

    fn floor(&self) -> u64 {
        self.floor
    }
}

/// The total of an entry; what is left of a hold has none.
fn total(word: Word) -> u64 {
    if word.hi & HOLDS == 0 { word.hi } else { 0 }
}

/// The rows that a key may own.
struct RowWalk<'t, 'm> {
    table: &'t Table<'m>,
    key: Fingerprint,
    /// A log whose last entry is older than this is idle.
    longest: Nanos,
    /// The limit that holds are taken under.
    reach: u64,
}

impl RowWalk<'_, '_> {
    /// When a row will be idle: its last hold expired, its last entry gone.
    fn idle_at(&self, row: usize, owner: Word) -> Nanos {
        if owner.hi & HOLDS != 0 {
            let holds = self.table.slots(row, owner.lo & VALUE);
            return live(holds, Fingerprint(owner.hi)).max().unwrap_or(0);
        }
        let ring = self.table.parts.ring(row, owner);
        let newest = ring.entry(ring.len() - 1);
        if newest.total > ring.floor { newest.at.saturating_add(self.longest) } else { 0 }
    }
}

impl RowWalk<'_, '_> {
    /// The word of the new owner of a row that was `old`'s.
    fn settled_after(&self, row: usize, old: Word) -> Word {
        if self.key.0 & HOLDS != 0 {
            return Word { hi: self.key.0, lo: self.reach | FRESH };
        }
        let slots = self.table.slots(row, u64::MAX);
        let highest = slots.map(|slot| total(slot.load())).max().unwrap_or(0);
        let is_log = old.hi != 0 && old.hi & HOLDS == 0 && old.lo < PENDING;
        let floor = if is_log { highest.max(old.lo & VALUE) } else { highest };
        // Above it by what a request on its way can still add.
        let lo = floor.saturating_add(self.table.parts.row_entries()).min(VALUE);
        Word { hi: self.key.0, lo: lo | FRESH }
    }
}

impl Candidates for RowWalk<'_, '_> {
    fn probes(&self) -> usize {
        self.table.parts.rows().min(WINDOW)
    }

    fn depth(&self) -> usize {
        self.probes()
    }

    fn deepen(&self, _probes: usize) {}

    fn id(&self, probe: usize) -> usize {
        // The first bit tells logs from holds, so it tells no place.
        walk::place(self.key.0 << 1, probe, self.table.parts.rows(), WINDOW)
    }

    fn slot(&self, id: usize) -> Option<&Slot> {
        self.table.parts.row(id).first().map(|line| &line.0[0])
    }

    fn kind(&self, id: usize, word: Word, now: Nanos) -> Kind {
        if word == Word::default() {
            Kind::Unused
        } else if word.hi == self.key.0 {
            Kind::Mine { settled: word.lo < PENDING }
        } else if word.hi == 0 {
            Kind::Spare { since: 0 }
        } else if word.lo >= PENDING {
            // A mark's time is kept in whole units of 2^12 ns, beside its nonce.
            let since = (word.lo & !PENDING) >> 12 << 12;
            if now.saturating_sub(since) > PENDING_FOR {
                Kind::Spare { since }
            } else {
                Kind::Taken { idle_at: u64::MAX }
            }
        } else if word.lo & FRESH != 0 {
            Kind::Taken { idle_at: 0 } // evicted first, as its owner may have died
        } else {
            match self.idle_at(id, word) {
                since if since <= now => Kind::Spare { since },
                idle_at => Kind::Taken { idle_at },
            }
        }
    }

    fn take(&self, id: usize, old: Word, mark: Word, is_idle: bool) -> bool {
        let Some(slot) = self.slot(id) else { return false };
        if is_idle && old.hi != 0 && old.lo & (PENDING | CLOSING) == 0 {
            let _ = slot.swap(old, Word { lo: old.lo | CLOSING, ..old });
            return false; // look again
        }
        slot.swap(old, mark).is_ok()
    }

    fn pending(&self, now: Nanos) -> Word {
        let nonce = self.table.parts.header.nonce() & 0xFFF;
        Word { hi: self.key.0, lo: PENDING | (now >> 12 << 12) & !PENDING | nonce }
    }

    fn free(&self) -> Word {
        Word { hi: 0, lo: 1 }
    }

    fn settled(&self, id: usize, _pending: Word) -> Word {
        self.settled_after(id, Word::default())
    }

    fn count_used(&self) {
        self.table.parts.header.count_row_used();
    }

    fn count_eviction(&self) {
        self.table.parts.header.count_row_eviction();
    }
}
