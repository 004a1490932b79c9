//! `make bench`: Tollgate beside its peers, in one run.
//!
//! Every number stands beside that of a peer, measured in the same minute in
//! rounds that alternate (`measure`), and every measurement checks its own
//! results, so that a limiter that is broken cannot look fast. The report is
//! `target/bench/report.json`; a run of a part, or a quick one, writes
//! `partial.json` beside it.
//!
//! ```text
//! tollgate-benches [--only <id prefix>] [--quick] | --simulate
//! ```

mod bucket;
mod commands;
mod count;
mod envoy;
mod keys;
mod lab_page;
mod measure;
mod memory;
mod nginx;
mod redis;
mod report;
mod rules;
mod scale;
mod simulation;
mod store;
mod table;

use std::env;
use std::panic;
use std::path::PathBuf;
use std::process::ExitCode;

use measure::Round;
use report::Row;

#[global_allocator]
static ALLOCATOR: memory::Counted = memory::Counted;

/// What to measure, and how long.
#[derive(Debug, Default)]
pub(crate) struct Options {
    only: Option<String>,
    quick: bool,
}

impl Options {
    /// Is a row of this id, or one below it, asked for?
    fn wants(&self, id: &str) -> bool {
        self.only.as_deref().is_none_or(|only| id.starts_with(only) || only.starts_with(id))
    }

    fn rounds(&self, rounds: usize) -> usize {
        if self.quick { rounds.div_ceil(10) } else { rounds }
    }
}

/// Measures what has the ids that are asked for.
type Part = fn(&Options) -> Vec<Row>;

const USAGE: &str = "usage: tollgate-benches [--only <id prefix>] [--quick] | --simulate";

fn main() -> ExitCode {
    let mut options = Options::default();
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = if ["--quick", "--simulate"].contains(&arg.as_str()) { None } else { args.next() };
        match (arg.as_str(), value) {
            ("--quick", None) => options.quick = true,
            ("--only", Some(prefix)) => options.only = Some(prefix),
            ("--simulate", None) => return simulation::sweep(),
            ("--count", Some(name)) => return count_calls(&name, args.next()),
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    run(&options)
}

/// What runs under valgrind; see `count`.
fn count_calls(name: &str, calls: Option<String>) -> ExitCode {
    let Some(calls) = calls.and_then(|calls| calls.parse().ok()) else {
        return ExitCode::from(2);
    };
    let round = Round { thread: 0, number: 0, calls };
    match bucket::counted(name, round).or_else(|| table::counted(name, round)) {
        Some(admitted) if admitted == calls => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn run(options: &Options) -> ExitCode {
    let parts: [(&str, Part); 11] = [
        ("bucket", bucket::rows),
        ("table", table::rows),
        ("rules", rules::rows),
        ("nginx", nginx::rows),
        ("envoy", envoy::rows),
        ("redis", redis::rows),
        ("redis/", store::rows),
        ("commands", commands::rows),
        ("scale", scale::rows),
        ("simulation", simulation::rows),
        ("lab", lab_page::rows),
    ];
    let (mut rows, mut failed) = (Vec::new(), false);
    report::print_heading();
    for (id, measure) in parts {
        if !options.wants(id) {
            continue;
        }
        // A check that failed has said so; the other parts are still of use.
        let Ok(part) = panic::catch_unwind(|| measure(options)) else {
            failed = true;
            continue;
        };
        let part: Vec<Row> = part.into_iter().filter(|row| options.wants(&row.id)).collect();
        part.iter().for_each(report::print);
        rows.extend(part);
    }
    let with_goal = rows.iter().filter_map(Row::met);
    println!("{} of {} goals met", with_goal.clone().filter(|&met| met).count(), with_goal.count());
    let whole = options.only.is_none() && !options.quick;
    let path = folder().join(if whole { "report.json" } else { "partial.json" });
    match report::write(&rows, &path) {
        Ok(()) => {
            println!("written to {}", path.display());
            if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

/// `bench` in cargo's target folder.
fn folder() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| PathBuf::from("target")).join("bench")
}
