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
//! meanwhile, and neither has any newer one. A new owner of a row raises
//! `floor` to the last total: what the ring holds of the owner before counts
//! no more. A hold carries its owner's fingerprint for the same reason.

use super::claim::{self, Candidates, Kind};
use super::memory::{Line, Parts};
use super::{Table, walk};
use crate::algorithm::concurrency;
use crate::algorithm::sliding_log::{self, Entry, Log};
use crate::decision::Decision;
use crate::key::Fingerprint;
use crate::limit::{Algorithm, Limit};
use crate::slot::{Slot, Word};
use crate::time::{NEVER, Nanos, SECOND};

/// Rows that a key may be in.
const WINDOW: usize = 16;
/// The mark of an owner that is pending; floors stay below it.
const PENDING: u64 = 1 << 63;
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
        let key = self.row_key(key);
        let clock = self.parts.header.clock(key);
        let now = clock.hold(now);
        if limit.algorithm() != Algorithm::Concurrency || self.accepts(limit).is_err() {
            return (never(limit), Hold::default());
        }
        loop {
            let Some((row, _)) = self.find_row(key) else {
                let (expiry, decision) = concurrency::decide(core::iter::empty(), limit, now, cost);
                if expiry.is_none() {
                    return (decision, Hold::default());
                }
                self.claim_row(key, limit, now);
                continue;
            };
            let row_slots = self.slots(row, limit.limit());
            let holds = live(row_slots.clone(), key);
            let (expiry, decision) = concurrency::decide(holds, limit, now, cost);
            let Some(expires) = expiry else {
                return (decision, Hold::default());
            };
            let hold = Hold { row: row as u64, fingerprint: key.0, expires, units: cost };
            let word = Word { hi: key.0, lo: expires };
            let mut taken = 0;
            for slot in row_slots {
                let seen = slot.load();
                let is_free = seen.hi != key.0 || seen.lo <= now;
                if taken < cost && is_free && slot.swap(seen, word).is_ok() {
                    taken += 1;
                }
            }
            if taken == cost && self.owner(row) == key {
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
            return never(limit);
        }
        let key = nonzero(key);
        match self.find_row(key) {
            Some((row, _)) => {
                concurrency::decide(live(self.slots(row, limit.limit()), key), limit, now, cost).1
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
            return never(limit);
        }
        let key = nonzero(key);
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
            let ring = Ring::read(self.parts.row(row), self.parts.row_entries(), owner.lo);
            let (entry, decision) = sliding_log::decide(&ring, limit, now, cost);
            let unchanged = ring.is_unchanged();
            match entry.filter(|_| take) {
                _ if !unchanged => {}
                None => return decision,
                Some(entry) => {
                    // A row that changed hands meanwhile counts for its new
                    // owner: ask again.
                    if ring.append(entry) && self.owner(row) == key {
                        return decision;
                    }
                }
            }
        }
    }

    pub(super) fn refund_log(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) {
        let key = nonzero(key);
        while let Some((row, owner)) = self.find_row(key) {
            let ring = Ring::read(self.parts.row(row), self.parts.row_entries(), owner.lo);
            let floor = sliding_log::refund(&ring, limit, now, cost);
            let Some(slot) = self.parts.row(row).first().map(|line| &line.0[0]) else { return };
            if floor == owner.lo
                || (ring.is_unchanged() && slot.swap(owner, Word { lo: floor, ..owner }).is_ok())
            {
                return;
            }
        }
    }

    fn row_key(&self, key: &[u8]) -> Fingerprint {
        nonzero(self.fingerprint(key))
    }

    fn find_row(&self, key: Fingerprint) -> Option<(usize, Word)> {
        let walk = RowWalk { table: self, key, now_limit: 0 };
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

    fn owner(&self, row: usize) -> Fingerprint {
        Fingerprint(self.parts.row(row).first().map_or(0, |line| line.0[0].load().hi))
    }

    #[cold]
    fn claim_row(&self, key: Fingerprint, limit: &Limit, now: Nanos) {
        let longest = self.parts.header.longest(limit.period());
        let walk = RowWalk { table: self, key, now_limit: longest };
        claim::claim(&walk, now, |row| Word { hi: key.0, lo: floor(&walk.table.parts, row) });
    }

    /// The first `entries` entries of a row.
    fn slots(&self, row: usize, entries: u64) -> impl Iterator<Item = &'m Slot> + Clone + use<'m> {
        let entries = usize::try_from(entries.min(self.parts.row_entries())).unwrap_or(usize::MAX);
        self.parts.row(row).iter().flat_map(|line| &line.0).skip(1).take(entries)
    }
}

/// Zero marks unused memory, so no row is owned by it.
fn nonzero(key: Fingerprint) -> Fingerprint {
    Fingerprint(key.0.max(1))
}

fn live<'m>(
    slots: impl Iterator<Item = &'m Slot> + Clone,
    key: Fingerprint,
) -> impl Iterator<Item = Nanos> + Clone {
    slots.map(Slot::load).filter(move |word| word.hi == key.0).map(|word| word.lo)
}

/// The answer to a limit that this table cannot hold.
fn never(limit: &Limit) -> Decision {
    Decision {
        allowed: false,
        limit: limit.limit(),
        remaining: 0,
        retry_after: NEVER,
        reset_after: 0,
        delay: 0,
    }
}

/// The total of the newest entry of a row.
fn floor(parts: &Parts<'_>, row: usize) -> u64 {
    let ring = Ring::read(parts.row(row), parts.row_entries(), 0);
    ring.entry(ring.len() - 1).total
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
    pub(crate) fn read(lines: &'m [Line], entries: u64, floor: u64) -> Ring<'m> {
        let len =
            usize::try_from(entries).unwrap_or(usize::MAX).min((lines.len() * 4).saturating_sub(1)).max(1);
        let mut ring = Ring { lines, len, oldest: 0, seen: Word::default(), newest: Word::default(), floor };
        // Totals grow along the ring up to the newest entry and start again,
        // lower, at the oldest: bisect for that edge.
        let base = ring.word(0).hi;
        if base == 0 {
            return ring; // nothing was ever written
        }
        let (mut low, mut high) = (0, len);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if ring.word(middle).hi >= base {
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
            if word.hi <= ring.newest.hi {
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
        Entry { total: word.hi, at: word.lo }
    }

    fn floor(&self) -> u64 {
        self.floor
    }
}

/// The rows that a key may own.
struct RowWalk<'t, 'm> {
    table: &'t Table<'m>,
    key: Fingerprint,
    /// A row whose last entry is older than this is idle.
    now_limit: Nanos,
}

impl RowWalk<'_, '_> {
    /// When a row will be idle: its last hold expired, its last entry gone.
    fn idle_at(&self, row: usize, owner: u64) -> Nanos {
        let ring = Ring::read(self.table.parts.row(row), self.table.parts.row_entries(), 0);
        let newest = ring.entry(ring.len() - 1);
        let logged = newest.at.saturating_add(self.now_limit);
        let holds = self.table.slots(row, u64::MAX).map(Slot::load).filter(|word| word.hi == owner);
        holds.map(|word| word.lo).max().unwrap_or(0).max(logged)
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
        let rows = self.table.parts.rows();
        (walk::home(self.key, rows) + probe) % rows.max(1)
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
        } else {
            match self.idle_at(id, word.hi) {
                since if since <= now => Kind::Spare { since },
                idle_at => Kind::Taken { idle_at },
            }
        }
    }

    fn pending(&self, now: Nanos) -> Word {
        let nonce = self.table.parts.header.nonce() & 0xFFF;
        Word { hi: self.key.0, lo: PENDING | (now >> 12 << 12) & !PENDING | nonce }
    }

    fn free(&self) -> Word {
        Word { hi: 0, lo: 1 }
    }

    fn settled(&self, id: usize, _pending: Word) -> Word {
        Word { hi: self.key.0, lo: floor(&self.table.parts, id) }
    }

    fn count_used(&self) {
        self.table.parts.header.count_row_used();
    }

    fn count_eviction(&self) {
        self.table.parts.header.count_row_eviction();
    }
}
