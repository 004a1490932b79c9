//! A key's way through the table: which lines it may be in, and how its slot
//! is told from others.

use super::claim::{self, Candidates, Kind};
use super::memory::{Class, ClassId, Line, Parts, WINDOW};
use crate::algorithm::fixed_window::Window;
use crate::algorithm::token_bucket::Tat;
use crate::key::Fingerprint;
use crate::limit::{Algorithm, Limit};
use crate::slot::{Slot, Word};
use crate::time::{Nanos, SECOND};

/// The widest payload: the count of a sliding window and its seal.
const MAX_WIDTH: u32 = 33;
/// Tag bits that every settled slot has, whatever its class.
const COMMON_TAG: u64 = (1 << ClassId::SHIFT) - (1 << MAX_WIDTH);
/// Tag bits of a pending slot; below them, the algorithm and a nonce.
const PENDING_TAG: u64 = (1 << ClassId::SHIFT) - (1 << 20);
/// A slot that stays pending longer belonged to a process that died.
const PENDING_FOR: Nanos = SECOND;

/// An algorithm's state as a slot keeps it. The default is an idle bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    /// The instant at which the bucket is idle.
    pub(super) at: Nanos,
    pub(super) payload: u64,
}

impl Cell {
    #[inline]
    pub(super) fn tat(self) -> Tat {
        Tat { at: self.at, part: self.payload as u32 } // below tick, so below 2^32
    }

    #[inline]
    pub(super) fn window(self) -> Window {
        Window { end: self.at, count: self.payload as u32 } // at most 32 bits wide
    }
}

impl From<Tat> for Cell {
    #[inline]
    fn from(tat: Tat) -> Cell {
        Cell { at: tat.at, payload: u64::from(tat.part) }
    }
}

impl From<Window> for Cell {
    #[inline]
    fn from(window: Window) -> Cell {
        Cell { at: window.end, payload: u64::from(window.count) }
    }
}

/// `x` scaled from 64 bits to `0..n`.
#[inline]
fn scale(x: u64, n: usize) -> usize {
    ((u128::from(x) * n as u128) >> 64) as usize // below n
}

/// The first line of a key's walk.
#[inline]
pub(super) fn home(key: Fingerprint, lines: usize) -> usize {
    scale(key.0, lines)
}

/// What looking at a line found.
enum Look<'m> {
    Found(&'m Slot, Word),
    /// The walk ends here.
    End,
    Further,
}

/// The place of a probe of the walk that starts with `start`: of `n` places
/// all, if they are no more than `window`.
#[inline]
pub(super) fn place(start: u64, probe: usize, n: usize, window: usize) -> usize {
    if n <= window {
        return (scale(start, n) + probe) % n.max(1);
    }
    if probe == 0 {
        return scale(start, n);
    }
    // Each further place is drawn anew: a stride can be near a simple
    // fraction of the table and visit the same few places again and again.
    let mixed = start ^ (probe as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    scale(mixed.wrapping_mul(0xD6E8_FEB8_6659_FD93), n)
}

/// The walk of one key under one limit.
#[derive(Clone, Copy)]
pub(super) struct Walk<'t, 'm> {
    parts: &'t Parts<'m>,
    lines: &'m [Line],
    start: u64,
    /// The slot of each line that is looked at first.
    first: usize,
    /// Class and tag of a slot of this key.
    want: u64,
    width: u32,
    algorithm: Algorithm,
}

impl<'t, 'm> Walk<'t, 'm> {
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    pub(super) fn new(parts: &'t Parts<'m>, key: Fingerprint, limit: &Limit, class: ClassId) -> Walk<'t, 'm> {
        let tag = key.0 & ((1 << ClassId::SHIFT) - 1);
        Walk {
            parts,
            lines: parts.key_lines(),
            start: key.0,
            first: (key.0 & 3) as usize,
            want: class.bits() | tag,
            // Unlisted classes share a number, so they must share a width.
            width: if class.is_unlisted() { MAX_WIDTH } else { limit.width() },
            algorithm: limit.algorithm(),
        }
    }

    /// The slot of this key in its first line, if it is there and was charged
    /// under this class with an empty payload: a quick look before
    /// [`find`](Self::find), for limits whose payload is empty.
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    pub(super) fn find_plain(&self) -> Option<(&'m Slot, Word)> {
        let line = self.lines.get(scale(self.start, self.lines.len()))?;
        let own = |turn: usize| {
            let slot: &'m Slot = &line.0[(self.first + turn) & 3];
            Some((slot, slot.load())).filter(|(_, word)| word.hi == self.want)
        };
        own(0).or_else(|| own(1)).or_else(|| own(2)).or_else(|| own(3))
    }

    /// The slot of this key and what it holds.
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    pub(super) fn find(&self) -> Option<(&'m Slot, Word)> {
        // Most keys are in their first line.
        let line = self.lines.get(scale(self.start, self.lines.len()))?;
        match self.look(line) {
            Look::Found(slot, word) => Some((slot, word)),
            Look::End => None,
            Look::Further => self.find_further(),
        }
    }

    #[cold]
    fn find_further(&self) -> Option<(&'m Slot, Word)> {
        for probe in 1..self.depth() {
            match self.look(self.lines.get(self.line(probe))?) {
                Look::Found(slot, word) => return Some((slot, word)),
                Look::End => return None,
                Look::Further => {}
            }
        }
        None
    }

    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    fn look(&self, line: &'m Line) -> Look<'m> {
        for turn in 0..4 {
            let slot = &line.0[(self.first + turn) & 3];
            let word = slot.load();
            if self.owns(word) {
                return Look::Found(slot, word);
            }
            if word.hi == 0 {
                return Look::End; // never used, so the key is not further on (I3)
            }
            if (word.hi ^ self.want) & COMMON_TAG == 0 && self.owns_other(word) {
                return Look::Found(slot, word);
            }
        }
        Look::Further
    }

    /// How many lines the key may be in.
    fn depth(&self) -> usize {
        self.parts.header.depth().min(self.lines.len())
    }

    /// Is it this key's slot, charged under this class?
    #[inline]
    pub(super) fn owns(&self, word: Word) -> bool {
        (word.hi ^ self.want) >> self.width == 0
    }

    /// Is it this key's slot, charged under another class of the same algorithm?
    #[cold]
    fn owns_other(&self, word: Word) -> bool {
        let class = ClassId::of(word);
        let (algorithm, width) = match self.parts.class_of(word).as_ref().map(Class::shape) {
            Some(shape) => shape,
            None => match class.unlisted_algorithm() {
                Some(algorithm) => (algorithm, MAX_WIDTH),
                None => return false, // free or pending
            },
        };
        let tag = (1 << ClassId::SHIFT) - (1u64 << width);
        algorithm == self.algorithm && (word.hi ^ self.want) & tag == 0
    }

    #[inline]
    pub(super) fn cell(&self, word: Word) -> Cell {
        Cell { at: word.lo, payload: word.hi & self.payload_mask() }
    }

    #[inline]
    pub(super) fn word(&self, cell: Cell) -> Word {
        let mask = self.payload_mask();
        Word { hi: self.want & !mask | cell.payload.min(mask), lo: cell.at }
    }

    /// The word that replaces `old`, which may be of another class: the count
    /// of a lowered limit that does not fit stays under the class it had.
    #[inline]
    pub(super) fn word_over(&self, cell: Cell, old: Word) -> Word {
        if cell.payload <= self.payload_mask() || self.owns(old) {
            return self.word(cell);
        }
        let mask = payload_mask(self.parts.class_of(old));
        Word { hi: old.hi & !mask | cell.payload.min(mask), lo: cell.at }
    }

    /// Puts this key into a slot that holds `word(id)`.
    /// Nothing if the key was found there already, or somebody was faster.
    #[cold]
    pub(super) fn claim(&self, now: Nanos, word: impl Fn(usize) -> Word) -> Option<usize> {
        claim::claim(self, now, |id, _| word(id))
    }

    #[inline]
    pub(super) fn payload_mask(&self) -> u64 {
        (1 << self.width) - 1
    }

    #[inline]
    fn line(&self, probe: usize) -> usize {
        place(self.start, probe, self.lines.len(), WINDOW)
    }

    fn pending_bits(&self) -> u64 {
        ClassId::PENDING.bits() | self.want & PENDING_TAG | (self.algorithm as u64) << 17
    }
}

impl Candidates for Walk<'_, '_> {
    fn probes(&self) -> usize {
        self.lines.len().min(WINDOW) * 4
    }

    fn depth(&self) -> usize {
        Walk::depth(self) * 4
    }

    fn deepen(&self, probes: usize) {
        self.parts.header.deepen(probes.div_ceil(4));
    }

    fn id(&self, probe: usize) -> usize {
        self.line(probe / 4) * 4 + ((self.first + probe) & 3)
    }

    fn slot(&self, id: usize) -> Option<&Slot> {
        self.lines.get(id / 4).map(|line| &line.0[id % 4])
    }

    fn kind(&self, _id: usize, word: Word, now: Nanos) -> Kind {
        let class = ClassId::of(word);
        if word.hi == 0 {
            Kind::Unused // as `look` sees it
        } else if class == ClassId::PENDING {
            if (word.hi ^ self.pending_bits()) >> 17 == 0 {
                Kind::Mine { settled: false }
            } else if now.saturating_sub(word.lo) > PENDING_FOR {
                Kind::Spare { since: word.lo }
            } else {
                Kind::Taken { idle_at: u64::MAX } // evicted last
            }
        } else if class == ClassId::FREE {
            Kind::Spare { since: 0 }
        } else if self.owns(word) || ((word.hi ^ self.want) & COMMON_TAG == 0 && self.owns_other(word)) {
            Kind::Mine { settled: true }
        } else if word.lo <= now {
            Kind::Spare { since: word.lo }
        } else {
            Kind::Taken { idle_at: word.lo }
        }
    }

    fn take(&self, id: usize, old: Word, mark: Word, _is_idle: bool) -> bool {
        self.slot(id).is_some_and(|slot| slot.swap(old, mark).is_ok())
    }

    fn pending(&self, now: Nanos) -> Word {
        Word { hi: self.pending_bits() | self.parts.header.nonce() & ((1 << 17) - 1), lo: now }
    }

    fn free(&self) -> Word {
        Word { hi: ClassId::FREE.bits(), lo: 0 }
    }

    fn settled(&self, _id: usize, _pending: Word) -> Word {
        // Idle since ever, for the marker's clock may be ahead of its other owners'.
        Word { hi: self.want & !self.payload_mask(), lo: 0 }
    }

    fn count_used(&self) {
        self.parts.header.count_used();
    }

    fn count_eviction(&self) {
        self.parts.header.count_eviction();
    }
}

/// The payload of a settled word of that class; `None` is an unlisted one.
pub(super) fn payload(word: Word, class: Option<Class>) -> u64 {
    word.hi & payload_mask(class)
}

fn payload_mask(class: Option<Class>) -> u64 {
    let width = class.map_or(MAX_WIDTH, |class| class.shape().1);
    (1 << width) - 1
}

impl Parts<'_> {
    /// Does this word hold a bucket that is not idle?
    pub(super) fn in_use(&self, word: Word, now: Nanos) -> bool {
        let class = ClassId::of(word);
        word != Word::default() && class != ClassId::FREE && class != ClassId::PENDING && word.lo > now
    }
}
