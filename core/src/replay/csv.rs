//! Logs as comma-separated values (RFC 4180) under a line of names:
//! `time,method,path,host,route,peer` and header fields.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use csv_core::{ReadRecordResult, Reader};

use super::engine::Engine;
use super::record::{Defaults, MAX_HEADERS, Slot, Values, header_slot};
use super::time::Clock;
use super::{LONGEST, ReplayError};
use crate::policy::{Printable, Rules};

/// Columns that are looked at.
const MAX_COLUMNS: usize = 256;

/// Is this line one of names, the time among them?
pub(super) fn is_heading(line: &[u8]) -> bool {
    let mut names = line.split(|&byte| byte == b',').map(column_name);
    line.contains(&b',') && names.any(|name| Slot::named(&name, &[]) == Some(Slot::Time))
}

/// Reads the bytes of one log.
#[derive(Debug)]
pub(super) struct Csv {
    records: Records,
    /// What each column holds, once the line of names has been read.
    columns: Option<Vec<Option<Slot>>>,
    values: Values,
    clock: Clock,
    scratch: Vec<u8>,
}

impl Csv {
    pub(super) fn new(rules: &Rules) -> Csv {
        Csv {
            records: Records::new(),
            columns: None,
            values: Values::new(rules.headers().len()),
            clock: Clock::default(),
            scratch: Vec::new(),
        }
    }

    /// Lines that have been read.
    pub(super) fn lines(&self) -> u64 {
        self.records.lines
    }

    /// Asks the rules about all records that are whole; none are left when the
    /// bytes are empty, which is the end.
    pub(super) fn push(
        &mut self,
        mut bytes: &[u8],
        defaults: Defaults<'_>,
        engine: &mut Engine<'_>,
    ) -> Result<(), ReplayError> {
        while let Some(read) = self.records.next(&mut bytes) {
            let count = match (&self.columns, read) {
                (None, Ok(count)) => {
                    self.columns = Some(columns(&self.records, count, engine.rules)?);
                    continue;
                }
                (None, Err(reason)) => return Err(ReplayError::Heading(reason)),
                (Some(_), Err(reason)) => {
                    engine.counts.faults.unreadable(self.records.line, reason);
                    continue;
                }
                (Some(_), Ok(count)) => count,
            };
            if let Err(reason) = self.record(count, defaults, engine) {
                engine.counts.faults.unreadable(self.records.line, reason);
            }
        }
        Ok(())
    }

    fn record(
        &mut self,
        count: usize,
        defaults: Defaults<'_>,
        engine: &mut Engine<'_>,
    ) -> Result<(), &'static str> {
        let Csv { records, columns, values, clock, scratch } = self;
        let columns = columns.as_deref().unwrap_or(&[]);
        if count != columns.len() {
            let is_empty = count == 1 && records.field(0).is_empty();
            return if is_empty { Ok(()) } else { Err("more or fewer fields than names") };
        }
        values.clear();
        for (index, slot) in columns.iter().enumerate() {
            if let Some(slot) = slot {
                values.put(*slot, records.field(index));
            }
        }
        let mut headers = [None; MAX_HEADERS];
        let record = values.record(clock, defaults, &mut headers, scratch)?;
        engine.ask(&record, records.line);
        Ok(())
    }
}

/// What each column holds.
fn columns(records: &Records, count: usize, rules: &Rules) -> Result<Vec<Option<Slot>>, ReplayError> {
    let mut columns: Vec<Option<Slot>> = Vec::with_capacity(count);
    for index in 0..count {
        let name = column_name(records.field(index));
        let slot =
            Slot::named(&name, rules.headers()).or_else(|| header_slot(name.as_slice(), rules.headers()));
        if slot.is_some() && columns.contains(&slot) {
            return Err(ReplayError::TwoColumns(Printable(&name).to_string()));
        }
        columns.push(slot);
    }
    if !columns.iter().any(|slot| matches!(slot, Some(Slot::Time | Slot::Msec))) {
        return Err(ReplayError::NoTime);
    }
    Ok(columns)
}

fn column_name(text: &[u8]) -> Vec<u8> {
    let text = text.trim_ascii();
    let text = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(text);
    text.to_ascii_lowercase()
}

/// Reads records of bounded length.
struct Records {
    reader: Reader,
    bytes: Box<[u8]>,
    ends: Box<[usize]>,
    /// Of the record that is being read: bytes and fields that there are.
    written: usize,
    ended: usize,
    is_begun: bool,
    /// Is the rest of this line passed over?
    is_skipping: bool,
    /// Where the last record began.
    line: u64,
    /// Lines of records before the reader was last reset.
    base: u64,
    /// Lines of whole records.
    lines: u64,
}

impl core::fmt::Debug for Records {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Records").field("line", &self.line).finish_non_exhaustive()
    }
}

impl Records {
    fn new() -> Records {
        Records {
            reader: Reader::new(),
            bytes: vec![0; LONGEST].into_boxed_slice(),
            ends: vec![0; MAX_COLUMNS].into_boxed_slice(),
            written: 0,
            ended: 0,
            is_begun: false,
            is_skipping: false,
            line: 0,
            base: 0,
            lines: 0,
        }
    }

    fn field(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(index).copied().unwrap_or(start);
        self.bytes.get(start..end).unwrap_or(&[])
    }

    /// The number of fields of the next record, taken from the front of the
    /// bytes; none where they end before it does. Empty bytes are the end.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<Result<usize, &'static str>> {
        let is_end = bytes.is_empty();
        if self.is_skipping {
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                *bytes = &[];
                return None;
            };
            *bytes = bytes.get(end + 1..).unwrap_or(&[]);
            self.is_skipping = false;
        }
        loop {
            if !self.is_begun {
                self.line = self.base + self.reader.line();
                (self.written, self.ended, self.is_begun) = (0, 0, true);
            }
            if bytes.is_empty() && !is_end {
                return None;
            }
            let (result, read, written, ended) = self.reader.read_record(
                bytes,
                self.bytes.get_mut(self.written..).unwrap_or(&mut []),
                self.ends.get_mut(self.ended..).unwrap_or(&mut []),
            );
            *bytes = bytes.get(read..).unwrap_or(&[]);
            self.written += written;
            self.ended += ended;
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record => {
                    self.is_begun = false;
                    self.lines = self.base + self.reader.line() - 1;
                    return Some(Ok(self.ended));
                }
                ReadRecordResult::End => return None,
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    // Perhaps a quote that is never closed: the next line may be sound.
                    self.base += self.reader.line();
                    self.reader = Reader::new();
                    (self.is_begun, self.is_skipping) = (false, !is_end);
                    return Some(Err("longer than 256 KiB or 256 fields, or a quote is not closed"));
                }
            }
        }
    }
}
