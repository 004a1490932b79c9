//! Which keys are limited most: a sketch of fixed size.
//!
//! Source: Metwally, Agrawal, El Abbadi, "Efficient computation of frequent
//! and top-k elements in data streams" (Space-Saving), 2005. Of `n` hits in a
//! sketch of `K` keys, every key with more than `n / K` hits is in it; a key's
//! count is never too low, and too high by at most its `error`, which is at
//! most `n / K`.
//!
//! The rarest key is found without looking at all: counts only grow, so the
//! hand of a clock goes on from where it last found a count as low as the
//! lowest known, and only a full round without one raises that mark.
//!
//! # Threads and processes
//!
//! A key, its count and its error are one 128-bit word, changed by one
//! compare-and-swap. Beside it lie a mark to find the key by and its label,
//! sealed with a checksum; a process killed between the swap and those leaves
//! a key that cannot be found (its hits begin another entry) or has no label
//! (a later hit writes it again). When two threads meet a new key at once it
//! may stand there twice; readers add the two up. So with many threads the
//! bounds above hold but for the hits of such races, and hits that found the
//! word changing again and again, which are counted as lost.

use core::array;
use core::fmt::{self, Write};

use portable_atomic::{AtomicU64, Ordering};

use crate::key::Fingerprint;
use crate::slot::{Slot, Word};

/// 64-bit words of a label.
const WORDS: usize = 15;
/// The largest count.
const MAX_COUNT: u64 = (1 << 40) - 1;
/// Swaps that one hit tries.
const TRIES: usize = 16;
/// A hit whose count is a multiple of this writes the label again.
const RENEW: u64 = 64;

/// The keys that are limited most, for threads and processes to share. All
/// zeros at first. `K` keys take about 152 bytes each.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct TopKeys<const K: usize> {
    /// No count is lower.
    floor: AtomicU64,
    /// Where the search for a count that low goes on.
    hand: AtomicU64,
    hits: AtomicU64,
    lost: AtomicU64,
    /// The entries' keys, close together, to find one by; the entry's own word
    /// says whether it is so.
    marks: [AtomicU64; K],
    entries: [Entry; K],
}

#[repr(C, align(16))]
#[derive(Debug, Default)]
struct Entry {
    word: Slot,
    label: [AtomicU64; WORDS],
    seal: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry>() == 144);

/// One of the keys that are limited most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Top {
    /// 48 bits of its fingerprint; no other entry has the same.
    pub id: u64,
    /// Its hits, or more.
    pub count: u64,
    /// At most so many of them are not its own.
    pub error: u64,
    /// What it is.
    pub label: Label,
}

/// What a key is, in at most [`Label::SIZE`] bytes of printable UTF-8: a name
/// without spaces, a space, and the rest.
#[derive(Clone, Copy)]
pub struct Label {
    bytes: [u8; Label::SIZE],
    len: usize,
    is_full: bool,
}

/// What a hit holds in its entry's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    id: u64,
    count: u64,
    error: u64,
}

impl Held {
    /// `id` 48 | `count` 40 | `error` 40.
    fn pack(self) -> Word {
        Word { hi: self.id << 16 | self.count >> 24, lo: self.count << 40 | self.error }
    }

    fn unpack(word: Word) -> Held {
        let count = (word.hi & 0xFFFF) << 24 | word.lo >> 40;
        Held { id: word.hi >> 16, count, error: word.lo & MAX_COUNT }
    }
}

impl<const K: usize> Default for TopKeys<K> {
    fn default() -> Self {
        TopKeys {
            floor: AtomicU64::new(0),
            hand: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            marks: array::from_fn(|_| AtomicU64::new(0)),
            entries: array::from_fn(|_| Entry::default()),
        }
    }
}

impl<const K: usize> TopKeys<K> {
    /// Counts a hit of a key; `label` is asked only when it has to be written.
    ///
    /// Looks at `K` words, and mostly at few more for a key that is not there;
    /// tries a bounded number of swaps.
    pub fn record(&self, key: Fingerprint, label: impl Fn() -> Label) {
        let id = (key.0 >> 16).max(1); // 0 is an entry that was never used
        self.hits.fetch_add(1, Ordering::Relaxed);
        for (index, mark) in self.marks.iter().enumerate() {
            if mark.load(Ordering::Relaxed) == id && self.hit(index, id, &label) {
                return;
            }
        }
        if !self.replace(id, &label) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a hit in that entry, if it is still this key's.
    fn hit(&self, index: usize, id: u64, label: &impl Fn() -> Label) -> bool {
        let Some(entry) = self.entries.get(index) else { return false };
        for _ in 0..TRIES {
            let word = entry.word.load();
            let held = Held::unpack(word);
            if held.id != id {
                return false;
            }
            let count = (held.count + 1).min(MAX_COUNT);
            if entry.word.swap(word, Held { count, ..held }.pack()).is_ok() {
                if count.is_multiple_of(RENEW) {
                    entry.write_label(id, &label());
                }
                return true;
            }
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Puts a key where the rarest is.
    fn replace(&self, id: u64, label: &impl Fn() -> Label) -> bool {
        for _ in 0..TRIES {
            let Some((index, word)) = self.rarest() else { return false };
            let (Some(entry), Some(mark)) = (self.entries.get(index), self.marks.get(index)) else {
                return false;
            };
            let error = Held::unpack(word).count;
            let count = (error + 1).min(MAX_COUNT);
            if entry.word.swap(word, Held { id, count, error }.pack()).is_ok() {
                mark.store(id, Ordering::Relaxed); // a hint: pairs with the load in record
                entry.write_label(id, &label());
                return true;
            }
        }
        false
    }

    /// The entry with the lowest count, or one as low as any was when last all
    /// were looked at.
    fn rarest(&self) -> Option<(usize, Word)> {
        let floor = self.floor.load(Ordering::Relaxed);
        let hand = self.hand.load(Ordering::Relaxed);
        let mut rarest: Option<(u64, usize, Word)> = None;
        for step in 0..K {
            let index = (hand % K as u64) as usize + step; // K is not 0 here
            let index = if index < K { index } else { index - K };
            let word = self.entries.get(index)?.word.load();
            let count = Held::unpack(word).count;
            if rarest.is_none_or(|(least, ..)| count < least) {
                rarest = Some((count, index, word));
            }
            if count <= floor {
                break;
            }
        }
        let (count, index, word) = rarest?;
        if count > floor {
            self.floor.store(count, Ordering::Relaxed); // all were looked at
        }
        self.hand.store(index as u64 + 1, Ordering::Relaxed);
        Some((index, word))
    }

    /// Halves all counts, so that keys of the past make room: called now and
    /// then, such as once a minute, by whoever likes.
    pub fn age(&self) {
        self.floor.store(0, Ordering::Relaxed);
        self.hits.store(self.hits.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        for entry in &self.entries {
            for _ in 0..TRIES {
                let word = entry.word.load();
                let held = Held::unpack(word);
                let (count, error) = (held.count / 2, held.error.div_ceil(2).min(held.count / 2));
                if entry.word.swap(word, Held { count, error, ..held }.pack()).is_ok() {
                    break;
                }
            }
        }
    }

    /// The keys, those with most hits first, into `room`; how many there are.
    /// Of more than fit there, those with most hits.
    pub fn top(&self, room: &mut [Top]) -> usize {
        let mut len = 0;
        for entry in &self.entries {
            let held = Held::unpack(entry.word.load());
            if held.count == 0 {
                continue;
            }
            let mut top =
                Top { id: held.id, count: held.count, error: held.error, label: entry.label(held.id) };
            // A key that threads met at once stands here twice.
            if let Some(twin) = room.iter().take(len).position(|other| other.id == held.id) {
                if let Some(other) = room.get(twin) {
                    top.count = top.count.saturating_add(other.count);
                    top.error = top.error.saturating_add(other.error);
                    if top.label.is_empty() {
                        top.label = other.label;
                    }
                }
                room.get_mut(twin..len).unwrap_or(&mut []).rotate_left(1);
                len -= 1; // the twin was one of them
            }
            let place = room.iter().take(len).position(|other| other.count < top.count).unwrap_or(len);
            if place < room.len() {
                len = (len + 1).min(room.len());
                let behind = room.get_mut(place..len).unwrap_or(&mut []);
                behind.rotate_right(1);
                if let Some(first) = behind.first_mut() {
                    *first = top;
                }
            }
        }
        len
    }

    /// How many hits were counted, halved as often as the counts were.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// How many of them no entry took, as others were always quicker.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Entry {
    /// The seal is written last, and fits only this key and these bytes.
    fn write_label(&self, id: u64, label: &Label) {
        let words = label.words();
        for (word, value) in self.label.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.seal.store(seal(id, &words), Ordering::Release); // pairs with label()
    }

    /// The label, if it is whole and that key's; else an empty one.
    fn label(&self, id: u64) -> Label {
        let sealed = self.seal.load(Ordering::Acquire); // pairs with write_label
        let words = array::from_fn(|i| self.label.get(i).map_or(0, |word| word.load(Ordering::Relaxed)));
        if sealed == seal(id, &words) { Label::from_words(&words) } else { Label::default() }
    }
}

/// A checksum of a key and its label, to notice bytes of two labels mixed.
fn seal(id: u64, words: &[u64; WORDS]) -> u64 {
    words.iter().fold(id ^ 0x9E37_79B9_7F4A_7C15, |sum, word| {
        let mixed = (sum ^ word).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        mixed ^ mixed >> 32
    })
}

impl Default for Label {
    fn default() -> Self {
        Label { bytes: [0; Label::SIZE], len: 0, is_full: false }
    }
}

impl Label {
    /// The most bytes of a label.
    pub const SIZE: usize = WORDS * 8;

    /// A label of that name; spaces in it become `_`.
    #[must_use]
    pub fn new(name: &str) -> Label {
        let mut label = Label::default();
        name.chars().for_each(|c| label.push(if c == ' ' { '_' } else { c }));
        label.push(' ');
        label
    }

    /// Adds what somebody else wrote; bytes that are not UTF-8 are escaped.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        // More than fits is not looked at.
        for chunk in bytes.get(..Label::SIZE).unwrap_or(bytes).utf8_chunks() {
            chunk.valid().chars().for_each(|c| self.push(c));
            for byte in chunk.invalid() {
                let _ = write!(self, "\\x{byte:02x}"); // never fails
            }
        }
        if bytes.len() > Label::SIZE {
            self.fill();
        }
    }

    /// Adds a character; one that is not printable is escaped, one that does
    /// not fit ends the label with `…`.
    fn push(&mut self, c: char) {
        let mut utf8 = [0; 4];
        if is_printable(c) {
            self.put(c.encode_utf8(&mut utf8).as_bytes());
            return;
        }
        let mut escape = Escape { bytes: [0; 12], len: 0 };
        let _ = write!(escape, "\\u{{{:x}}}", u32::from(c)); // 12 bytes are enough
        self.put(escape.bytes.get(..escape.len).unwrap_or(&[]));
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        match self.bytes.get_mut(self.len..end) {
            Some(room) if !self.is_full && end + ELLIPSIS.len() <= Label::SIZE => {
                room.copy_from_slice(bytes);
                self.len = end;
            }
            _ => self.fill(),
        }
    }

    fn fill(&mut self) {
        let end = self.len + ELLIPSIS.len();
        if let (false, Some(room)) = (self.is_full, self.bytes.get_mut(self.len..end)) {
            room.copy_from_slice(ELLIPSIS);
            self.len = end;
        }
        self.is_full = true;
    }

    /// All of it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.bytes.get(..self.len).and_then(|bytes| core::str::from_utf8(bytes).ok()).unwrap_or("")
    }

    /// What stands before the first space.
    #[must_use]
    pub fn name(&self) -> &str {
        self.as_str().split_once(' ').map_or(self.as_str(), |(name, _)| name)
    }

    /// What stands behind it.
    #[must_use]
    pub fn rest(&self) -> &str {
        self.as_str().split_once(' ').map_or("", |(_, rest)| rest)
    }

    /// Is there nothing in it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn words(&self) -> [u64; WORDS] {
        array::from_fn(|i| {
            let bytes = self.bytes.get(i * 8..).and_then(|rest| rest.first_chunk::<8>());
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        })
    }

    /// Memory that others write is not believed: it is read as any text is.
    fn from_words(words: &[u64; WORDS]) -> Label {
        let mut bytes = [0; Label::SIZE];
        for (room, word) in bytes.chunks_exact_mut(8).zip(words) {
            room.copy_from_slice(&word.to_le_bytes());
        }
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(Label::SIZE);
        let text = bytes.get(..len).and_then(|text| core::str::from_utf8(text).ok());
        match text {
            Some(text) if text.chars().all(is_printable) => Label { bytes, len, is_full: true },
            _ => Label::default(),
        }
    }
}

const ELLIPSIS: &[u8] = "…".as_bytes();

/// Is it a character of a line of text: no control, and no mark that turns
/// the direction of text, breaks a line or shows nothing?
fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{61c}' | '\u{e0000}'..='\u{e007f}')
}

struct Escape {
    bytes: [u8; 12],
    len: usize,
}

impl Write for Escape {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

impl Write for Label {
    /// Never fails: what does not fit is left out.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().take(Label::SIZE + 1).for_each(|c| self.push(c));
        Ok(())
    }
}

impl PartialEq for Label {
    fn eq(&self, other: &Label) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Label {}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
#[path = "top_tests.rs"]
mod tests;
