//! How the caller's memory is laid out, and what its header knows.
//!
//! ```text
//! | header, clocks, classes | slots, 4 a line | rows, whole lines each |
//! ```
//!
//! Everything is an atomic at a fixed offset: there is no pointer, so each
//! process may map the memory where it likes.

use portable_atomic::{AtomicU64, Ordering};

use crate::key::{Fingerprint, Fingerprinter, Seed};
use crate::limit::{Algorithm, Limit};
use crate::slot::{Slot, Word};
use crate::time::{Latest, Nanos};

use super::Stats;

/// Lines that a key may be in.
pub const WINDOW: usize = 24;

/// Lines that are looked at before a key goes further.
const FIRST_DEPTH: usize = 4;

const MAGIC: u64 = u64::from_be_bytes(*b"tollgate");
/// Changes whenever the same bytes would mean something else.
const LAYOUT: u64 = 5;

const MAX_CAPACITY: u64 = 1 << 40;
const MAX_ROW_ENTRIES: u64 = 1 << 24;
const SLOTS: u64 = 4;

/// One cache line of slots.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line(pub [Slot; SLOTS as usize]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64);

/// Keys are spread over this many clocks, so that threads seldom write to the
/// same one.
const CLOCKS: usize = 128;

/// The clock of every key whose fingerprint leads here, alone in its line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct Clock(Latest);

/// Rates and algorithms that slots were charged under.
const CLASSES: usize = 1024;

/// What a [`Limit`] calls its meaning, in two words that are each written
/// once. Whoever finds only the first written writes the second.
#[repr(C, align(16))]
#[derive(Debug, Default)]
struct ClassEntry {
    shape: AtomicU64,
    span: AtomicU64,
}

/// The first part of a table: 24,704 bytes.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Header {
    magic: AtomicU64,
    layout: AtomicU64,
    capacity: AtomicU64,
    rows: AtomicU64,
    row_entries: AtomicU64,
    seed: [AtomicU64; 2],
    depth: AtomicU64,
    longest: AtomicU64,
    used: AtomicU64,
    evictions: AtomicU64,
    rows_used: AtomicU64,
    row_evictions: AtomicU64,
    nonce: AtomicU64,
    spare: [AtomicU64; 2],
    clocks: [Clock; CLOCKS],
    classes: [ClassEntry; CLASSES],
}

const _: () = assert!(size_of::<Header>() == 128 + CLOCKS * 64 + CLASSES * 16);

/// What a table is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Keys: 1 to 2^40, rounded up to a multiple of 4.
    pub capacity: u64,
    /// Keys that logs and concurrency limits may follow; 0 = none.
    pub rows: u64,
    /// The largest `limit` of those: 1 to 2^24, or 0 without rows.
    pub row_entries: u64,
}

/// Why a layout was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Capacity outside its range.
    #[error("capacity: {0} is outside 1 to 1099511627776 keys")]
    Capacity(u64),
    /// Rows without entries, or the other way round, or too many.
    #[error(
        "rows: {rows} rows of {entries} entries; legal are none, or 1 to 1099511627776 rows of 1 to 16777216"
    )]
    Rows {
        /// Rows asked for.
        rows: u64,
        /// Entries of each.
        entries: u64,
    },
    /// The whole does not fit in this machine's addresses.
    #[error("the table would be larger than this machine can address")]
    TooLarge,
    /// The memory is smaller than the layout.
    #[error("memory: {given} lines given, {needed} needed")]
    Memory {
        /// Lines that the caller gave.
        given: usize,
        /// Lines of the layout.
        needed: usize,
    },
}

/// Why memory was not taken for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// No table was ever made here, or not to the end.
    #[error("this memory does not hold a table")]
    NotATable,
    /// Made by another version of this library.
    #[error("the table has layout {found}, this library reads {expected}")]
    Layout {
        /// The layout of the table.
        found: u64,
        /// The layout of this library.
        expected: u64,
    },
    /// Another configuration than the caller expects.
    #[error("the table holds {found:?}, expected {expected:?}")]
    Config {
        /// What the table holds.
        found: Config,
        /// What was expected.
        expected: Config,
    },
    /// The header promises more than the memory holds.
    #[error(transparent)]
    Memory(#[from] ConfigError),
}

/// Lines of each part.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    keys: usize,
    rows: usize,
    row: usize,
}

/// How a configuration lies in memory: worked out once, where a view of the
/// table is made for each request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    keys: usize,
    rows: usize,
    row_lines: usize,
    row_entries: u64,
}

impl Shape {
    pub(super) fn new(config: &Config) -> Result<Shape, ConfigError> {
        let Geometry { keys, rows, row } = config.geometry()?;
        config.lines()?; // or the next would overflow
        Ok(Shape { keys, rows: rows * row, row_lines: row, row_entries: config.row_entries })
    }
}

impl Config {
    /// Bytes of a table, its header included. The memory must be aligned to 64.
    ///
    /// # Errors
    /// A number outside its range.
    pub fn size(&self) -> Result<usize, ConfigError> {
        let lines = self.lines()?;
        let size = lines.checked_mul(size_of::<Line>()).and_then(|n| n.checked_add(size_of::<Header>()));
        size.filter(|&n| isize::try_from(n).is_ok()).ok_or(ConfigError::TooLarge)
    }

    /// Lines of a table, beside its header.
    ///
    /// # Errors
    /// A number outside its range.
    pub fn lines(&self) -> Result<usize, ConfigError> {
        let g = self.geometry()?;
        let rows = g.rows.checked_mul(g.row).ok_or(ConfigError::TooLarge)?;
        let lines = g.keys.checked_add(rows);
        lines.ok_or(ConfigError::TooLarge)
    }

    /// The configuration of most keys that fits in `size` bytes.
    ///
    /// # Errors
    /// Not even four keys fit.
    pub fn fitting(size: usize, rows: u64, row_entries: u64) -> Result<Config, ConfigError> {
        let config = |capacity| Config { capacity, rows, row_entries };
        let fits = |capacity| config(capacity).size().is_ok_and(|needed| needed <= size);
        config(SLOTS).size()?; // says what is wrong with the rows
        let (mut low, mut high) = (0, (size as u64 / 64).min(MAX_CAPACITY / SLOTS) + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle * SLOTS) {
                low = middle;
            } else {
                high = middle;
            }
        }
        if low == 0 {
            let needed = config(SLOTS).lines()?;
            let given = size.saturating_sub(size_of::<Header>()) / size_of::<Line>();
            return Err(ConfigError::Memory { given, needed });
        }
        Ok(config(low * SLOTS))
    }

    fn geometry(&self) -> Result<Geometry, ConfigError> {
        if !(1..=MAX_CAPACITY).contains(&self.capacity) {
            return Err(ConfigError::Capacity(self.capacity));
        }
        let has_rows =
            (1..=MAX_CAPACITY).contains(&self.rows) && (1..=MAX_ROW_ENTRIES).contains(&self.row_entries);
        if !has_rows && (self.rows, self.row_entries) != (0, 0) {
            return Err(ConfigError::Rows { rows: self.rows, entries: self.row_entries });
        }
        let lines = |n: u64| usize::try_from(n).map_err(|_| ConfigError::TooLarge);
        Ok(Geometry {
            keys: lines(self.capacity.div_ceil(SLOTS))?,
            rows: lines(self.rows)?,
            row: lines((1 + self.row_entries).div_ceil(SLOTS))?, // the first slot is the row's owner
        })
    }
}

/// The parts of a table's memory.
#[derive(Clone, Debug)]
pub(super) struct Parts<'m> {
    pub(super) header: &'m Header,
    keys: &'m [Line],
    rows: &'m [Line],
    row_lines: usize,
    row_entries: u64,
    fingerprinter: Fingerprinter,
}

impl<'m> super::Table<'m> {
    /// Makes an empty table. Nobody else may use the memory meanwhile.
    /// `is_zero` says that it is all zeros already, as fresh pages are: then
    /// it is not written to, and stays untouched until keys come.
    ///
    /// # Errors
    /// A configuration outside its range, or memory too small for it.
    pub fn init(
        header: &'m Header,
        lines: &'m [Line],
        config: Config,
        seed: Seed,
        is_zero: bool,
    ) -> Result<super::Table<'m>, ConfigError> {
        config.size()?; // a refused init leaves the memory as it was
        let needed = config.lines()?;
        let used = lines.get(..needed).ok_or(ConfigError::Memory { given: lines.len(), needed })?;
        header.magic.store(0, Ordering::SeqCst);
        if !is_zero {
            used.iter().flat_map(|line| &line.0).for_each(Slot::reset);
        }
        header.clocks.iter().for_each(|clock| clock.0.reset());
        header.classes.iter().for_each(ClassEntry::reset);
        for (field, value) in [
            (&header.layout, LAYOUT),
            (&header.capacity, config.capacity.next_multiple_of(SLOTS)),
            (&header.rows, config.rows),
            (&header.row_entries, config.row_entries),
            (&header.seed[0], seed.0[0]),
            (&header.seed[1], seed.0[1]),
            (&header.depth, FIRST_DEPTH as u64),
            (&header.longest, 0),
            (&header.used, 0),
            (&header.evictions, 0),
            (&header.rows_used, 0),
            (&header.row_evictions, 0),
            (&header.nonce, 0),
        ] {
            field.store(value, Ordering::Relaxed);
        }
        header.magic.store(MAGIC, Ordering::Release); // pairs with attach: a table is whole or not there
        Ok(super::Table { parts: Parts::new(header, used, &config)? })
    }

    /// Finds the table that is in this memory.
    ///
    /// # Errors
    /// Not a table, one of another layout or configuration, or cut short.
    pub fn attach(
        header: &'m Header,
        lines: &'m [Line],
        expected: Option<Config>,
    ) -> Result<super::Table<'m>, AttachError> {
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(AttachError::NotATable); // pairs with init
        }
        let layout = header.layout.load(Ordering::Relaxed);
        if layout != LAYOUT {
            return Err(AttachError::Layout { found: layout, expected: LAYOUT });
        }
        let found = header.config();
        let wanted = expected
            .map(|c| Config { capacity: c.capacity.checked_next_multiple_of(SLOTS).unwrap_or(0), ..c });
        if let Some(expected) = wanted.filter(|&expected| expected != found) {
            return Err(AttachError::Config { found, expected });
        }
        Ok(super::Table { parts: Parts::new(header, lines, &found)? })
    }
}

impl ClassEntry {
    #[inline]
    fn is(&self, meaning: [u64; 2]) -> bool {
        self.read() == meaning
    }

    /// Relaxed, as either word is all that it will ever be, or zero.
    #[inline]
    fn read(&self) -> [u64; 2] {
        [self.shape.load(Ordering::Relaxed), self.span.load(Ordering::Relaxed)]
    }

    /// Writes the meaning here, if nothing else is.
    fn take(&self, meaning: [u64; 2]) -> bool {
        let put = |word: &AtomicU64, value| match word.compare_exchange(
            0,
            value,
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            Ok(_) => true,
            Err(other) => other == value,
        };
        put(&self.shape, meaning[0]) && put(&self.span, meaning[1])
    }

    fn reset(&self) {
        self.shape.store(0, Ordering::Relaxed);
        self.span.store(0, Ordering::Relaxed);
    }
}

impl Default for Header {
    fn default() -> Header {
        let zero = AtomicU64::default;
        Header {
            magic: zero(),
            layout: zero(),
            capacity: zero(),
            rows: zero(),
            row_entries: zero(),
            seed: [zero(), zero()],
            depth: zero(),
            longest: zero(),
            used: zero(),
            evictions: zero(),
            rows_used: zero(),
            row_evictions: zero(),
            nonce: zero(),
            spare: [zero(), zero()],
            clocks: core::array::from_fn(|_| Clock::default()),
            classes: core::array::from_fn(|_| ClassEntry::default()),
        }
    }
}

impl Header {
    /// The latest instant at which a key that shares this key's clock was charged.
    #[inline]
    pub(super) fn clock(&self, key: Fingerprint) -> &Latest {
        &self.clocks[(key.0 >> 2) as usize % CLOCKS].0
    }

    /// What the table holds; zeros where there is none.
    pub fn config(&self) -> Config {
        Config {
            capacity: self.capacity.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
            row_entries: self.row_entries.load(Ordering::Relaxed),
        }
    }

    /// How many lines of its walk any key may be in by now.
    pub(super) fn depth(&self) -> usize {
        self.depth.load(Ordering::SeqCst) as usize // at most WINDOW; pairs with deepen
    }

    /// Lets keys go `depth` lines far; before the first of them does.
    pub(super) fn deepen(&self, depth: usize) {
        self.depth.fetch_max(depth as u64, Ordering::SeqCst);
    }

    /// A number that no other call on this table has had, but for wrap-around.
    pub(super) fn nonce(&self) -> u64 {
        self.nonce.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn count_used(&self) {
        self.used.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_eviction(&self) {
        self.evictions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_row_used(&self) {
        self.rows_used.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_row_eviction(&self) {
        self.row_evictions.fetch_add(1, Ordering::Relaxed);
    }

    /// The longest period that a log of this table was used with.
    pub(super) fn longest(&self, period: Nanos) -> Nanos {
        let longest = self.longest.load(Ordering::Relaxed);
        if period > longest {
            self.longest.fetch_max(period, Ordering::Relaxed);
        }
        longest.max(period)
    }
}

impl<'m> Parts<'m> {
    fn new(header: &'m Header, lines: &'m [Line], config: &Config) -> Result<Parts<'m>, ConfigError> {
        let seed = Seed([header.seed[0].load(Ordering::Relaxed), header.seed[1].load(Ordering::Relaxed)]);
        let shape = Shape::new(config)?;
        let short = ConfigError::Memory { given: lines.len(), needed: shape.keys + shape.rows };
        Parts::with(header, lines, &shape, &Fingerprinter::new(seed)).ok_or(short)
    }

    /// As `new`, of what was made ready before; none if there are too few lines.
    #[inline]
    pub(super) fn with(
        header: &'m Header,
        lines: &'m [Line],
        shape: &Shape,
        fingerprinter: &Fingerprinter,
    ) -> Option<Parts<'m>> {
        let (keys, rest) = lines.split_at_checked(shape.keys)?;
        let rows = rest.get(..shape.rows)?;
        let Shape { row_lines, row_entries, .. } = *shape;
        Some(Parts { header, keys, rows, row_lines, row_entries, fingerprinter: fingerprinter.clone() })
    }

    #[inline]
    pub(super) fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        self.fingerprinter.fingerprint(key)
    }

    #[inline]
    pub(super) fn key_lines(&self) -> &'m [Line] {
        self.keys
    }

    pub(super) fn rows(&self) -> usize {
        self.rows.len() / self.row_lines
    }

    pub(super) fn row_entries(&self) -> u64 {
        self.row_entries
    }

    /// The lines of a row; none if there is no such row.
    pub(super) fn row(&self, row: usize) -> &'m [Line] {
        let start = row.saturating_mul(self.row_lines);
        self.rows.get(start..).and_then(|rest| rest.get(..self.row_lines)).unwrap_or(&[])
    }

    /// Reads one word of a key's first line, so that it is on its way from memory.
    #[inline]
    pub(super) fn touch(&self, key: Fingerprint) -> u64 {
        let line = super::walk::home(key, self.keys.len());
        self.keys.get(line).map_or(0, |line| line.0[0].load().lo)
    }

    pub(super) fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            capacity: self.keys.len() as u64 * SLOTS,
            used: read(&self.header.used),
            evictions: read(&self.header.evictions),
            rows: self.rows() as u64,
            rows_used: read(&self.header.rows_used),
            row_evictions: read(&self.header.row_evictions),
        }
    }

    /// The number of this limit's class, written into the list if it is new.
    #[inline]
    pub(super) fn class(&self, limit: &Limit) -> ClassId {
        let first = limit.hash as usize % CLASSES;
        if self.header.classes[first].is(limit.meaning) {
            return ClassId::listed(first);
        }
        self.list_class(limit, first)
    }

    /// Finds room for a class, within a few places of its own.
    #[cold]
    #[inline(never)]
    fn list_class(&self, limit: &Limit, first: usize) -> ClassId {
        for place in (first..first + 16).map(|place| place % CLASSES) {
            if self.header.classes[place].take(limit.meaning) {
                return ClassId::listed(place);
            }
        }
        ClassId::unlisted(limit.algorithm())
    }

    /// The class that a settled word names, if it is in the list.
    pub(super) fn class_of(&self, word: Word) -> Option<Class> {
        let place = ClassId::of(word).place()?;
        self.header.classes.get(place).and_then(|entry| Class::read(entry.read()))
    }
}

/// The upper 12 bits of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClassId(u64);

impl ClassId {
    pub(super) const SHIFT: u32 = 52;
    /// A slot that was used and is free.
    pub(super) const FREE: ClassId = ClassId(0xFFF);
    /// A slot that is being taken.
    pub(super) const PENDING: ClassId = ClassId(0xFFE);
    /// Limits whose class found no room, by algorithm.
    const UNLISTED: u64 = 0xFF0;

    const fn listed(place: usize) -> ClassId {
        ClassId(place as u64 + 1) // at most 2048
    }

    const fn unlisted(algorithm: Algorithm) -> ClassId {
        ClassId(Self::UNLISTED + algorithm as u64)
    }

    #[inline]
    pub(super) const fn of(word: Word) -> ClassId {
        ClassId(word.hi >> Self::SHIFT)
    }

    #[inline]
    pub(super) const fn bits(self) -> u64 {
        self.0 << Self::SHIFT
    }

    fn place(self) -> Option<usize> {
        (1..Self::UNLISTED).contains(&self.0).then(|| self.0 as usize - 1)
    }

    #[inline]
    pub(super) const fn is_unlisted(self) -> bool {
        self.0 >= Self::UNLISTED
    }

    /// The algorithm of an unlisted class.
    pub(super) fn unlisted_algorithm(self) -> Option<Algorithm> {
        let index = self.0.checked_sub(Self::UNLISTED)?;
        Algorithm::ALL.into_iter().find(|&a| a as u64 == index)
    }
}

/// What a slot's payload and instant mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A token or leaky bucket of that reduced rate.
    Rate { algorithm: Algorithm, width: u32, tick: u64, token: u64 },
    /// A fixed or sliding window.
    Window { algorithm: Algorithm, width: u32, period: Nanos },
}

impl Class {
    /// Reads what [`Limit`] calls its meaning.
    fn read(meaning: [u64; 2]) -> Option<Class> {
        let algorithm = Algorithm::ALL.into_iter().find(|&a| a as u64 == meaning[0] & 7)?;
        let width = (meaning[0] >> 3 & 63) as u32; // six bits
        let tick = meaning[0] >> 16;
        match algorithm {
            _ if tick == 0 => None,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                Some(Class::Rate { algorithm, width, tick, token: meaning[1] })
            }
            _ => Some(Class::Window { algorithm, width, period: meaning[1] }),
        }
    }

    pub(super) fn shape(&self) -> (Algorithm, u32) {
        match *self {
            Class::Rate { algorithm, width, .. } | Class::Window { algorithm, width, .. } => {
                (algorithm, width)
            }
        }
    }
}
