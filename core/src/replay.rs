//! A log, asked of the rules: who would have been limited, and when.
//!
//! Every request of the log is asked as a host would ask, with the log's own
//! time as the clock. The log is pushed in pieces, cut anywhere: a command
//! reads a file, a page reads what was dropped on it. Memory is bounded
//! whatever the log holds: a line is at most [`LONGEST`] bytes, counts are
//! kept in a fixed table, keys are listed from a sketch, and spans of time
//! grow longer rather than more.
//!
//! ```
//! use tollgate_core::key::Seed;
//! use tollgate_core::policy::Rules;
//! use tollgate_core::replay::{Options, Replay};
//!
//! let rules = r#"{ "policies": [ { "name": "all", "key": ["ip"], "limits": [ { "rate": "1/m" } ] } ] }"#;
//! let rules = Rules::parse(rules, Seed([1, 2])).expect("legal");
//! let mut replay = Replay::new(rules, &Options::default(), Seed([3, 4]))?;
//! replay.push(b"time,method,path,peer\n2026-11-30T00:00:00Z,GET,/,192.0.2.1\n")?;
//! replay.push(b"2026-11-30T00:00:01Z,GET,/,192.0.2.1\n")?;
//! replay.finish()?;
//! assert_eq!((replay.report(10).totals.admitted, replay.report(10).totals.denied), (1, 1));
//! # Ok::<(), tollgate_core::replay::ReplayError>(())
//! ```

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

pub use engine::{PolicyTotals, Totals};
pub use faults::{Fault, Faults};
pub use report::{BucketRow, KeyRow, Part, PolicyRow, Report};
pub use target::path;

use combined::Combined;
use csv::Csv;
use engine::{Counts, Engine};
use json::Json;
use record::Defaults;

use crate::key::Seed;
use crate::policy::{KeyRoom, Rules};
use crate::table::{ConfigError, OwnedTable, Stats};

mod combined;
mod csv;
mod engine;
mod faults;
mod json;
mod record;
mod report;
mod target;
pub mod time;
mod timeline;
mod top;

/// Bytes of the longest line that is read.
pub const LONGEST: usize = 256 << 10;
/// Bytes by which a format is told, unless no line ends in them.
const HEAD: usize = 4096;
const TOO_LONG: &str = "longer than 256 KiB";

/// What a log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// To be told by its first lines.
    #[default]
    Auto,
    /// NGINX's `combined`, and its `main`.
    Combined,
    /// One JSON object a line.
    Json,
    /// Comma-separated, with a line of names first.
    Csv,
}

/// How a log is read and counted.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the log is.
    pub format: Format,
    /// Keys that are counted at the same time; as a table's.
    pub capacity: u64,
    /// Spans of time at most; at least 1.
    pub buckets: usize,
    /// The route of lines that tell none.
    pub route: String,
    /// The host of lines that tell none.
    pub host: String,
}

impl Default for Options {
    fn default() -> Self {
        let (route, host) = (String::new(), String::new());
        Options { format: Format::Auto, capacity: 1 << 18, buckets: 30, route, host }
    }
}

/// Why a log cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The capacity is outside its range, or the rules need too much.
    #[error("no table for these rules: {0}")]
    Table(#[from] ConfigError),
    /// The first lines are of no known format.
    #[error("cannot tell the format of the log from its first lines; it is combined, json or csv")]
    Format,
    /// The first line of a CSV log.
    #[error("the line of names is {0}")]
    Heading(&'static str),
    /// Two columns of a CSV log with one name.
    #[error("two columns of the log are named {0}; rename one")]
    TwoColumns(String),
    /// A CSV log without a time.
    #[error(
        "the first line of a CSV log names its columns, and one must be time: \
         time,method,path,host,route,peer,x-api-key"
    )]
    NoTime,
}

/// A replay that is under way.
#[derive(Debug)]
pub struct Replay {
    rules: Rules,
    table: OwnedTable,
    counts: Counts,
    options: Options,
    reader: Reader,
    /// What waits: for the format to be told, or for the end of its line.
    held: Vec<u8>,
    /// Is the rest of this line passed over?
    is_skipping: bool,
    lines: u64,
}

#[derive(Debug)]
enum Reader {
    Untold,
    Combined(Box<Combined>),
    Json(Json),
    Csv(Box<Csv>),
}

impl Replay {
    /// A replay of a log that has yet to come; the seed is a secret, as a
    /// table's.
    ///
    /// # Errors
    /// [`ReplayError::Table`].
    pub fn new(rules: Rules, options: &Options, seed: Seed) -> Result<Replay, ReplayError> {
        let table = OwnedTable::new(engine::layout(&rules, options.capacity), seed)?;
        let counts = Counts::new(rules.policies().len(), options.buckets);
        let options = options.clone();
        let (reader, held) = (Reader::Untold, Vec::new());
        Ok(Replay { rules, table, counts, options, reader, held, is_skipping: false, lines: 0 })
    }

    /// Takes the next bytes of the log.
    ///
    /// # Errors
    /// It is no log: nothing more of it should be pushed.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ReplayError> {
        if !matches!(self.reader, Reader::Untold) {
            return self.read(bytes, false);
        }
        self.held.extend_from_slice(bytes);
        let is_line = memchr::memchr(b'\n', &self.held).is_some();
        if (self.held.len() >= HEAD && is_line) || self.held.len() >= LONGEST {
            self.begin(false)?;
        }
        Ok(())
    }

    /// The log is at its end: its last line need not have one.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn finish(&mut self) -> Result<(), ReplayError> {
        if matches!(self.reader, Reader::Untold) { self.begin(true) } else { self.read(&[], true) }
    }

    /// Lines that were read.
    #[must_use]
    pub fn lines(&self) -> u64 {
        match &self.reader {
            Reader::Csv(csv) => csv.lines(),
            _ => self.lines,
        }
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Of all requests so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.counts.totals
    }

    /// What was wrong with the log so far.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.counts.faults
    }

    /// What came out so far, with so many of the keys that were limited most.
    #[must_use]
    pub fn report(&self, top: usize) -> Report<'_> {
        let stats = self.table.table().map_or_else(Stats::default, |table| table.stats());
        Report::new(&self.rules, &self.counts, stats, top)
    }

    /// The format is told, and what was held is read.
    fn begin(&mut self, is_end: bool) -> Result<(), ReplayError> {
        let held = core::mem::take(&mut self.held);
        let log = held.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&held); // a byte order mark
        let format = match self.options.format {
            Format::Auto => told(log).ok_or(ReplayError::Format)?,
            named => named,
        };
        self.reader = match format {
            Format::Json => Reader::Json(Json::new(&self.rules)),
            Format::Csv => Reader::Csv(Box::new(Csv::new(&self.rules))),
            Format::Combined | Format::Auto => Reader::Combined(Box::new(Combined::new(&self.rules))),
        };
        self.read(log, false)?;
        if is_end { self.read(&[], true) } else { Ok(()) }
    }

    fn read(&mut self, bytes: &[u8], is_end: bool) -> Result<(), ReplayError> {
        let Some(table) = self.table.table() else { return Ok(()) };
        let mut engine = Engine { rules: &self.rules, table, counts: &mut self.counts, room: KeyRoom::new() };
        let defaults = Defaults { route: self.options.route.as_bytes(), host: self.options.host.as_bytes() };
        if let Reader::Csv(csv) = &mut self.reader {
            return if is_end || !bytes.is_empty() { csv.push(bytes, defaults, &mut engine) } else { Ok(()) };
        }
        let mut one = |line: &[u8], number: u64, engine: &mut Engine<'_>| match &mut self.reader {
            Reader::Combined(combined) if !line.is_empty() => combined.line(line, number, defaults, engine),
            Reader::Json(json) if !line.trim_ascii().is_empty() => {
                json.line(line.trim_ascii(), number, defaults, engine)
            }
            _ => Ok(()),
        };
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, behind) = (rest.get(..end).unwrap_or(&[]), rest.get(end + 1..).unwrap_or(&[]));
            rest = behind;
            self.lines += 1;
            let is_whole = self.held.is_empty() && !self.is_skipping;
            let read = if core::mem::take(&mut self.is_skipping) || self.held.len() + line.len() >= LONGEST {
                Err(TOO_LONG)
            } else if is_whole {
                one(without_cr(line), self.lines, &mut engine)
            } else {
                self.held.extend_from_slice(line);
                one(without_cr(&self.held), self.lines, &mut engine)
            };
            self.held.clear();
            if let Err(reason) = read {
                engine.counts.faults.unreadable(self.lines, reason);
            }
        }
        if self.is_skipping || self.held.len() + rest.len() >= LONGEST {
            self.is_skipping = true;
            self.held.clear();
        } else {
            self.held.extend_from_slice(rest);
        }
        if is_end && (self.is_skipping || !self.held.is_empty()) {
            self.lines += 1;
            let read = match core::mem::take(&mut self.is_skipping) {
                true => Err(TOO_LONG),
                false => one(without_cr(&self.held), self.lines, &mut engine),
            };
            self.held.clear();
            if let Err(reason) = read {
                engine.counts.faults.unreadable(self.lines, reason);
            }
        }
        Ok(())
    }
}

/// A number with commas between thousands.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The format, by the first lines.
fn told(head: &[u8]) -> Option<Format> {
    let lines = || head.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let Some(first) = lines().next() else { return Some(Format::Combined) };
    if csv::is_heading(first) {
        return Some(Format::Csv);
    }
    // The first line may be a broken one: those behind it are asked too.
    lines().take(100).find_map(|line| match line {
        [b'{', ..] => Some(Format::Json),
        line if combined::is_line(line) => Some(Format::Combined),
        _ => None,
    })
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::vec;

    const RULES: &str =
        r#"{ "policies": [ { "name": "all", "key": ["ip"], "limits": [ { "rate": "2/m" } ] } ] }"#;

    fn logs() -> Vec<Vec<u8>> {
        let mut combined = Vec::new();
        let mut json = Vec::new();
        let mut csv = b"\xEF\xBB\xBFtime,method,path,peer\r\n".to_vec();
        for second in 0..50 {
            let peer = format!("192.0.2.{}", second % 7);
            combined.extend(
                format!(
                    "{peer} - - [30/Nov/2026:00:00:{second:02} +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"x\"\n"
                )
                .bytes(),
            );
            json.extend(
                format!(
                    "{{\"time\":\"2026-11-30T00:00:{second:02}Z\",\"path\":\"/a\",\"peer\":\"{peer}\"}}\n"
                )
                .bytes(),
            );
            csv.extend(format!("2026-11-30T00:00:{second:02}Z,GET,\"/a\nb\",{peer}\n").bytes());
        }
        combined.extend(b"no line of a log\n\r\n");
        combined.extend(vec![b'x'; LONGEST + 5]);
        json.extend(b"{ \"time\": 5");
        csv.extend(b"2026-11-30T00:01:00Z,GET,\"never closed");
        vec![combined, json, csv]
    }

    fn played(log: &[u8], piece: usize) -> (String, u64) {
        let rules = Rules::parse(RULES, Seed([1, 2])).unwrap();
        let mut replay = Replay::new(rules, &Options::default(), Seed([3, 4])).unwrap();
        for bytes in log.chunks(piece) {
            replay.push(bytes).unwrap();
        }
        replay.finish().unwrap();
        (serde_json::to_string(&replay.report(10)).unwrap(), replay.lines())
    }

    #[test]
    fn a_log_may_be_cut_anywhere() {
        for log in logs() {
            let whole = played(&log, log.len());
            for piece in [1, 2, 3, 7, 64, 4096, 65_536] {
                assert_eq!(played(&log, piece), whole, "pieces of {piece}");
            }
        }
    }

    #[test]
    fn lines_that_are_none_are_counted_and_named() {
        let rules = Rules::parse(RULES, Seed([1, 2])).unwrap();
        let mut replay = Replay::new(rules, &Options::default(), Seed([3, 4])).unwrap();
        replay.push(&logs()[0]).unwrap();
        replay.finish().unwrap();
        let faults: Vec<_> =
            replay.faults().first_unreadable.iter().map(|fault| (fault.line, fault.reason)).collect();
        assert_eq!(faults, [(51, "not a line of the combined format"), (53, TOO_LONG)]);
        assert_eq!(replay.totals().requests, 50);
        assert_eq!(
            replay.totals().admitted,
            21,
            "of each of seven addresses two, and one after half a minute"
        );
    }

    #[test]
    fn what_is_no_log_is_refused() {
        for (log, error) in [
            ("just words\n", ReplayError::Format),
            ("time,path,time\n", ReplayError::TwoColumns("\"time\"".into())),
        ] {
            let rules = Rules::parse(RULES, Seed([1, 2])).unwrap();
            let mut replay = Replay::new(rules, &Options::default(), Seed([3, 4])).unwrap();
            let said = replay.push(log.as_bytes()).and_then(|()| replay.finish());
            assert_eq!(core::mem::discriminant(&said.unwrap_err()), core::mem::discriminant(&error), "{log}");
        }
    }
}
