//! A table on the heap, for Rust programs whose threads share it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Config, ConfigError, Header, Line, Table};
use crate::key::Seed;

/// A table that owns its memory.
#[derive(Debug)]
pub struct OwnedTable {
    header: Box<Header>,
    lines: Box<[Line]>,
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
        let owned = OwnedTable { header: Box::default(), lines: lines.into_boxed_slice() };
        Table::init(&owned.header, &owned.lines, config, seed, true)?;
        Ok(owned)
    }

    /// The table itself, to be kept while it is used: making a view takes
    /// about a microsecond.
    #[must_use]
    pub fn table(&self) -> Option<Table<'_>> {
        Table::attach(&self.header, &self.lines, None).ok()
    }
}
