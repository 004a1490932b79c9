//! The log's bytes: a file or standard input, gzipped or not, through one
//! buffer of fixed size.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::rules::is_stdin;

/// Bytes of the buffer, and so of the longest line that is read.
pub(crate) const ROOM: usize = 256 << 10;

/// Lines of a log.
pub(crate) struct Input {
    source: Box<dyn Read>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    is_done: bool,
    lines: u64,
    bar: ProgressBar,
}

/// One line.
pub(crate) enum Line<'i> {
    /// Without its end.
    Whole(&'i [u8]),
    /// Longer than the buffer; it was passed over.
    TooLong,
}

impl Input {
    pub(crate) fn open(path: &Path) -> Result<Input, Failure> {
        let failed = |error| Failure::Read { path: path.to_owned(), error };
        let (raw, size): (Box<dyn Read>, _) = if is_stdin(path) {
            (Box::new(io::stdin().lock()), None)
        } else {
            let file = File::open(path).map_err(failed)?;
            let about = file.metadata().map_err(failed)?;
            if about.is_dir() {
                return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
            }
            (Box::new(file), about.is_file().then_some(about.len()))
        };
        let bar = progress(size);
        let mut raw = bar.wrap_read(raw);
        // Two bytes tell whether it is gzip; a pipe may bring them one by one.
        let mut magic = [0; 2];
        let mut len = 0;
        while len < 2 {
            match raw.read(magic.get_mut(len..).unwrap_or(&mut [])) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let raw = io::Cursor::new(magic).take(len as u64).chain(raw); // at most 2
        let source: Box<dyn Read> = if magic == [0x1F, 0x8B] {
            Box::new(MultiGzDecoder::new(BufReader::with_capacity(64 << 10, raw)))
        } else {
            Box::new(raw)
        };
        let buffer = vec![0; ROOM].into_boxed_slice();
        Ok(Input { source, buffer, start: 0, end: 0, is_done: false, lines: 0, bar })
    }

    /// The next line; none at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let mut searched = 0;
        loop {
            let held = self.buffer.get(self.start..self.end).unwrap_or(&[]);
            if let Some(found) = memchr::memchr(b'\n', held.get(searched..).unwrap_or(&[])) {
                let (from, to) = (self.start, self.start + searched + found);
                self.start = to + 1;
                self.lines += 1;
                return Ok(self.buffer.get(from..to).map(|line| Line::Whole(without_cr(line))));
            }
            searched = held.len();
            if self.is_done {
                if held.is_empty() {
                    return Ok(None);
                }
                let (from, to) = (self.start, self.end);
                self.start = to;
                self.lines += 1;
                return Ok(self.buffer.get(from..to).map(|line| Line::Whole(without_cr(line))));
            }
            if searched == self.buffer.len() {
                self.skip_line()?;
                self.lines += 1;
                return Ok(Some(Line::TooLong));
            }
            self.fill()?;
        }
    }

    /// What is buffered, at least one byte unless the log is at its end.
    pub(crate) fn available(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end && !self.is_done {
            self.fill()?;
        }
        Ok(self.buffer.get(self.start..self.end).unwrap_or(&[]))
    }

    /// Takes bytes that [`available`](Self::available) showed.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
    }

    /// Passes over all up to the next line.
    pub(crate) fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let held = self.available()?;
            let (len, found) = (held.len(), memchr::memchr(b'\n', held));
            self.consume(found.map_or(len, |at| at + 1));
            if found.is_some() || len == 0 {
                return Ok(());
            }
        }
    }

    /// The beginning, up to a full buffer, which stays to be read.
    pub(crate) fn peek(&mut self) -> io::Result<&[u8]> {
        let is_line = |held: &[u8]| memchr::memchr(b'\n', held).is_some();
        while !self.is_done
            && self.end < self.buffer.len()
            && (self.end < 4096 || !is_line(self.buffer.get(..self.end).unwrap_or(&[])))
        {
            self.fill()?;
        }
        if self.buffer.starts_with(b"\xEF\xBB\xBF") && self.start == 0 && self.end >= 3 {
            self.start = 3; // a byte order mark
        }
        Ok(self.buffer.get(self.start..self.end).unwrap_or(&[]))
    }

    /// How many lines were read.
    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }

    /// Counts a line that was read through [`available`](Self::available).
    pub(crate) fn count_lines(&mut self, lines: u64) {
        self.lines = lines;
    }

    /// The progress bar goes.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        loop {
            match self.source.read(self.buffer.get_mut(self.end..).unwrap_or(&mut [])) {
                Ok(0) => self.is_done = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.is_done = true;
                    return Err(error);
                }
            }
            return Ok(());
        }
    }
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Drawn only where standard error is a terminal.
fn progress(size: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(size, ProgressDrawTarget::stderr_with_hz(10));
    let template = match size {
        Some(_) => "{bar:40} {bytes} of {total_bytes}, {eta} left",
        None => "{spinner} {bytes} read, {bytes_per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
