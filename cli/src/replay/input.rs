//! The log's bytes: a file or standard input, gzipped or not, through one
//! buffer of fixed size.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::rules::is_stdin;

/// Bytes of the buffer.
const ROOM: usize = 256 << 10;

/// A log's bytes.
pub(crate) struct Input {
    source: Box<dyn Read>,
    buffer: Box<[u8]>,
    bar: ProgressBar,
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
        Ok(Input { source, buffer, bar })
    }

    /// The next bytes; none at the end.
    pub(crate) fn read(&mut self) -> io::Result<&[u8]> {
        loop {
            match self.source.read(&mut self.buffer) {
                Ok(read) => return Ok(self.buffer.get(..read).unwrap_or(&[])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The progress bar goes.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
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
