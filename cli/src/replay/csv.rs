//! Logs as comma-separated values (RFC 4180) under a line of names:
//! `time,method,path,host,route,peer` and header fields.

use std::path::Path;

use csv_core::{ReadRecordResult, Reader};
use tollgate_core::policy::{Printable, Rules};

use super::engine::Engine;
use super::input::{Input, ROOM};
use super::record::{Defaults, MAX_HEADERS, Slot, Values, header_slot};
use crate::failure::Failure;
use crate::time::Clock;

/// Columns that are looked at.
const MAX_COLUMNS: usize = 256;

/// Is this line one of names, the time among them?
pub(crate) fn is_heading(line: &[u8]) -> bool {
    let mut names = line.split(|&byte| byte == b',').map(column_name);
    line.contains(&b',') && names.any(|name| Slot::named(&name, &[]) == Some(Slot::Time))
}

/// Reads a log to its end.
pub(crate) fn read(
    input: &mut Input,
    rules: &Rules,
    defaults: Defaults<'_>,
    engine: &mut Engine<'_, '_>,
    path: &Path,
) -> Result<(), Failure> {
    let failed = |error| Failure::Read { path: path.to_owned(), error };
    let _ = input.peek().map_err(failed)?; // a byte order mark
    let mut records = Records::new();
    let columns = match records.next(input).map_err(failed)? {
        Some(Ok(count)) => columns(&records, count, rules)?,
        Some(Err(reason)) => return Err(Failure::Log(format!("the line of names is {reason}"))),
        None => return Ok(()),
    };
    let mut values = Values::new(rules.headers().len());
    let mut clock = Clock::default();
    let mut scratch = Vec::new();
    loop {
        let read = match records.next(input).map_err(failed)? {
            None => return Ok(()),
            Some(Err(reason)) => Err(reason),
            Some(Ok(count)) if count != columns.len() => {
                if count == 1 && records.field(0).is_empty() {
                    continue; // an empty line
                }
                Err("more or fewer fields than names")
            }
            Some(Ok(_)) => {
                values.clear();
                for (index, slot) in columns.iter().enumerate() {
                    if let Some(slot) = slot {
                        values.put(*slot, records.field(index));
                    }
                }
                let mut headers = [None; MAX_HEADERS];
                let record = values.record(&mut clock, defaults, &mut headers, &mut scratch);
                record.map(|record| engine.ask(&record, records.line))
            }
        };
        if let Err(reason) = read {
            engine.faults.unreadable(records.line, reason);
        }
    }
}

/// What each column holds.
fn columns(records: &Records, count: usize, rules: &Rules) -> Result<Vec<Option<Slot>>, Failure> {
    let mut columns: Vec<Option<Slot>> = Vec::with_capacity(count);
    for index in 0..count {
        let name = column_name(records.field(index));
        let slot =
            Slot::named(&name, rules.headers()).or_else(|| header_slot(name.as_slice(), rules.headers()));
        if slot.is_some() && columns.contains(&slot) {
            let name = Printable(&name);
            return Err(Failure::Log(format!("two columns of the log are named {name}; rename one")));
        }
        columns.push(slot);
    }
    if !columns.iter().any(|slot| matches!(slot, Some(Slot::Time | Slot::Msec))) {
        return Err(Failure::Log(
            "the first line of a CSV log names its columns, and one must be time: \
             time,method,path,host,route,peer,x-api-key"
                .into(),
        ));
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
    /// Where the last record began.
    line: u64,
    /// Lines of records before the reader was last reset.
    base: u64,
}

impl Records {
    fn new() -> Records {
        Records {
            reader: Reader::new(),
            bytes: vec![0; ROOM].into_boxed_slice(),
            ends: vec![0; MAX_COLUMNS].into_boxed_slice(),
            line: 0,
            base: 0,
        }
    }

    fn field(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(index).copied().unwrap_or(start);
        self.bytes.get(start..end).unwrap_or(&[])
    }

    /// The number of fields of the next record.
    fn next(&mut self, input: &mut Input) -> std::io::Result<Option<Result<usize, &'static str>>> {
        let (mut written, mut ended) = (0, 0);
        self.line = self.base + self.reader.line();
        loop {
            let held = input.available()?;
            let (result, read, bytes, ends) = self.reader.read_record(
                held,
                self.bytes.get_mut(written..).unwrap_or(&mut []),
                self.ends.get_mut(ended..).unwrap_or(&mut []),
            );
            input.consume(read);
            written += bytes;
            ended += ends;
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record => {
                    input.count_lines(self.base + self.reader.line() - 1);
                    return Ok(Some(Ok(ended)));
                }
                ReadRecordResult::End => return Ok(None),
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    // Perhaps a quote that is never closed: the next line may be sound.
                    input.skip_line()?;
                    self.base += self.reader.line();
                    self.reader = Reader::new();
                    return Ok(Some(Err("longer than 256 KiB or 256 fields, or a quote is not closed")));
                }
            }
        }
    }
}
