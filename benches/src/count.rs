//! Instructions, counted by valgrind: the same number every time, whatever
//! else the machine does.
//!
//! The program runs itself under callgrind, which counts only what happens
//! inside [`counted`]. An empty loop is taken off.

use std::env;
use std::process::Command;

use crate::measure::{Contender, Round};

/// Instructions of one call of what has that name, less those of `empty`;
/// `None`, with a word on standard error, where valgrind is missing.
pub(crate) fn instructions(name: &str, empty: &str, calls: usize) -> Option<f64> {
    Some((total(name, calls)? - total(empty, calls)?) / calls as f64)
}

/// What is counted. Its name is known to [`total`].
#[inline(never)]
pub(crate) fn counted(contender: Contender<'_>, round: Round) -> usize {
    contender(round)
}

fn total(name: &str, calls: usize) -> Option<f64> {
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=tollgate_benches::count::counted*")
        .arg(env::current_exe().ok()?)
        .args(["--count", name, &calls.to_string()])
        .output();
    let text = match run {
        Ok(run) if run.status.success() => String::from_utf8_lossy(&run.stderr).into_owned(),
        Ok(run) => {
            eprintln!("no instructions of {name}: {}", String::from_utf8_lossy(&run.stderr));
            return None;
        }
        Err(error) => {
            eprintln!("no instructions of {name}: valgrind: {error}");
            return None;
        }
    };
    let collected = text.lines().find_map(|line| line.split_once("Collected :"))?;
    collected.1.trim().parse().ok()
}
