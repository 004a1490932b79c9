//! A table on the heap, for Rust programs whose threads share it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::memory::{Parts, Shape};
use super::{Config, ConfigError, Header, Line, Table};
use crate::key::{Fingerprinter, Seed};

/// A table that owns its memory.
#[derive(Debug)]
pub struct OwnedTable {
    header: Box<Header>,
    lines: Box<[Line]>,
    shape: Shape,
    fingerprinter: Fingerprinter,
}

impl OwnedTable {
    /// Allocates and makes an empty table.
    ///
    /// # Errors
    /// A configuration outside its range.
    pub fn new(config: Config, seed: Seed) -> Result<OwnedTable, ConfigError> {
        config.size()?;
        let mut lines = Vec::new();
        lines.resize_with(config.lines()?, Line::default);
        let (header, lines) = (Box::default(), lines.into_boxed_slice());
        let (shape, fingerprinter) = (Shape::new(&config)?, Fingerprinter::new(seed));
        let owned = OwnedTable { header, lines, shape, fingerprinter };
        Table::init(&owned.header, &owned.lines, config, seed, true)?;
        Ok(owned)
    }

    /// The table itself; making a view takes a few nanoseconds.
    #[inline]
    #[must_use]
    pub fn table(&self) -> Option<Table<'_>> {
        Some(Table { parts: Parts::with(&self.header, &self.lines, &self.shape, &self.fingerprinter)? })
    }
}
