//! A table on the heap, for Rust programs whose threads share it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::memory::Parts;
use super::{Config, ConfigError, Header, Line, Table};
use crate::key::{Fingerprinter, Seed};

/// A table that owns its memory.
#[derive(Debug)]
pub struct OwnedTable {
    header: Box<Header>,
    lines: Box<[Line]>,
    config: Config,
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
        let owned = OwnedTable { header, lines, config, fingerprinter: Fingerprinter::new(seed) };
        Table::init(&owned.header, &owned.lines, config, seed, true)?;
        Ok(owned)
    }

    /// The table itself; making a view takes a few nanoseconds.
    #[must_use]
    pub fn table(&self) -> Option<Table<'_>> {
        let parts = Parts::with(&self.header, &self.lines, &self.config, self.fingerprinter.clone());
        parts.ok().map(|parts| Table { parts })
    }
}
