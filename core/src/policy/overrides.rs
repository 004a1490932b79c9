//! Rows that give one subject other limits: hundreds of thousands of them,
//! found in one look.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashTable;

use crate::key::{Fingerprinter, Seed};
use crate::limit::Limit;

/// The overrides of one policy.
#[derive(Debug)]
pub struct Overrides {
    rows: HashTable<Row>,
    /// The subjects of all rows, one after the other.
    subjects: Vec<u8>,
    /// The limits that rows may have; rows of equal limits share one.
    plans: Vec<Box<[Limit]>>,
    /// The plans by their limits, while the table is built.
    by_limits: HashTable<u32>,
    fingerprinter: Fingerprinter,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    start: u32,
    plan: u32,
    len: u16,
}

impl Overrides {
    pub(super) fn new(seed: Seed) -> Overrides {
        Overrides {
            rows: HashTable::new(),
            subjects: Vec::new(),
            plans: Vec::new(),
            by_limits: HashTable::new(),
            fingerprinter: Fingerprinter::new(seed),
        }
    }

    /// The limits of that subject, if a row gives it some.
    #[inline]
    #[must_use]
    pub fn find(&self, subject: &[u8]) -> Option<&[Limit]> {
        if self.rows.is_empty() {
            return None;
        }
        let fingerprint = self.fingerprinter.fingerprint(subject).0;
        let row = self.rows.find(fingerprint, |row| self.subject(row) == subject)?;
        self.plans.get(row.plan as usize).map(|plan| &**plan)
    }

    /// Every limit that a row gives.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.plans.iter().flat_map(|plan| plan.iter())
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Is there no row?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes that the rows take beside their subjects' own.
    #[must_use]
    pub fn overhead(&self) -> usize {
        let plans: usize =
            self.plans.iter().map(|plan| size_of_val(&**plan) + size_of::<Box<[Limit]>>()).sum();
        self.rows.allocation_size() + plans + (self.subjects.capacity() - self.subjects.len())
    }

    /// Takes room for `rows` more.
    pub(super) fn reserve(&mut self, rows: usize) {
        let (subjects, fingerprinter) = (&self.subjects, &self.fingerprinter);
        self.rows.reserve(rows, |row| fingerprinter.fingerprint(piece(subjects, row)).0);
    }

    /// The number of these limits, as a plan that rows may share.
    pub(super) fn plan(&mut self, limits: Vec<Limit>) -> Option<u32> {
        let hash = hash(&limits);
        let plans = &self.plans;
        let same = |&index: &u32| plans.get(index as usize).is_some_and(|plan| **plan == *limits);
        if let Some(&index) = self.by_limits.find(hash, same) {
            return Some(index);
        }
        let index = u32::try_from(self.plans.len()).ok()?;
        self.plans.push(limits.into_boxed_slice());
        let plans = &self.plans;
        let rehash = |&index: &u32| plans.get(index as usize).map_or(0, |plan| self::hash(plan));
        self.by_limits.insert_unique(hash, index, rehash);
        Some(index)
    }

    /// Adds a row; false if the subject has one already, or there are too
    /// many bytes of subjects (4 GiB).
    pub(super) fn insert(&mut self, subject: &[u8], plan: u32) -> bool {
        let fingerprint = self.fingerprinter.fingerprint(subject).0;
        if self.rows.find(fingerprint, |row| self.subject(row) == subject).is_some() {
            return false;
        }
        let (Ok(start), Ok(len)) = (u32::try_from(self.subjects.len()), u16::try_from(subject.len())) else {
            return false;
        };
        self.subjects.extend_from_slice(subject);
        let (subjects, fingerprinter) = (&self.subjects, &self.fingerprinter);
        let hash = |row: &Row| fingerprinter.fingerprint(piece(subjects, row)).0;
        self.rows.insert_unique(fingerprint, Row { start, plan, len }, hash);
        true
    }

    pub(super) fn shrink(&mut self) {
        self.subjects.shrink_to_fit();
        self.plans.shrink_to_fit();
        self.by_limits = HashTable::new();
        let (subjects, fingerprinter) = (&self.subjects, &self.fingerprinter);
        self.rows.shrink_to_fit(|row| fingerprinter.fingerprint(piece(subjects, row)).0);
    }

    fn subject(&self, row: &Row) -> &[u8] {
        piece(&self.subjects, row)
    }
}

/// The subject of a row.
fn piece<'s>(subjects: &'s [u8], row: &Row) -> &'s [u8] {
    let start = row.start as usize;
    subjects.get(start..start + usize::from(row.len)).unwrap_or(&[])
}

/// Equal for equal limits.
fn hash(limits: &[Limit]) -> u64 {
    limits.iter().fold(0, |hash: u64, limit| {
        let mixed = limit.meaning[0] ^ limit.meaning[1].rotate_left(23) ^ limit.limit() << 20 ^ limit.burst();
        (hash.rotate_left(5) ^ mixed).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}
