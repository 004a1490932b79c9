//! What reaches the terminal: colours only where they are seen and wanted, and
//! nothing that somebody else wrote without [`Printable`] around it.

use std::io::{self, IsTerminal, Write};

use tollgate_core::policy::Printable;
pub(crate) use tollgate_core::replay::grouped;

use crate::failure::Failure;

/// Colours, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint(bool);

impl Paint {
    /// For standard output.
    pub(crate) fn stdout() -> Paint {
        Paint(io::stdout().is_terminal() && wanted())
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// See <https://no-color.org>.
fn wanted() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// As [`print()`], for answers whose exit code counts even if nobody reads them.
pub(crate) fn print_verdict(text: &str) -> Result<(), Failure> {
    match print(text) {
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Tells on standard error why it went wrong.
pub(crate) fn complain(message: &str) {
    let paint = Paint(io::stderr().is_terminal() && wanted());
    // If nobody reads this either, the exit code still tells.
    let _ = writeln!(io::stderr(), "{} {message}", paint.red("tollgate:"));
}

/// Tells on standard error what is right and does not do what its writer may expect.
pub(crate) fn warn(message: &str) {
    let paint = Paint(io::stderr().is_terminal() && wanted());
    let _ = writeln!(io::stderr(), "{} {message}", paint.yellow("warning:"));
}

/// Tells on standard error what the reader of the answer should know.
pub(crate) fn note(message: &str) {
    let paint = Paint(io::stderr().is_terminal() && wanted());
    let _ = writeln!(io::stderr(), "{} {message}", paint.yellow("note:"));
}

/// The text, fit for a terminal.
pub(crate) fn clean(text: &str) -> String {
    Printable(text.as_bytes()).to_string()
}

/// `part` of `whole` in per cent with one decimal.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.1} %", part as f64 / whole as f64 * 100.0)
}

/// Rows under a heading, in columns as wide as they need be; the first
/// `left` columns are flush left.
pub(crate) fn table(paint: Paint, heading: &[&str], rows: &[Vec<String>], left: usize) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(heading.get(column).map(|cell| cell.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            let gap = if column == 0 { "" } else { "  " };
            let (before, after) = if column < left { ("", &*padding) } else { (&*padding, "") };
            line.extend([gap, before, cell, after]);
        }
        line.truncate(line.trim_end().len());
        line
    };
    let mut out = paint.dim(&line(&mut heading.iter().copied()));
    out.push('\n');
    for row in rows {
        out.push_str(&line(&mut row.iter().map(String::as_str)));
        out.push('\n');
    }
    out
}
