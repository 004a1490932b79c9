//! `tollgate replay`: every request of a log, asked of the rules as a host
//! would ask, with the log's own time as the clock.
//!
//! Memory is bounded whatever the log holds: lines pass through one buffer,
//! counts are kept in the core's fixed table, keys are listed from a sketch,
//! and spans of time grow longer rather than more.

mod chart;
mod combined;
mod csv;
mod engine;
mod faults;
mod input;
mod json;
mod record;
mod report;
mod svg;
mod target;
mod timeline;
mod top;

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use tollgate_core::policy::Rules;

use crate::args::{LogFormat, ReplayArgs, ReportFormat};
use crate::failure::{Failure, UNUSABLE};
use crate::rules;
use crate::screen::{self, Paint, grouped};
use engine::{Engine, Gate};
use input::Input;
use record::Defaults;
use report::Report;

pub(crate) fn replay(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    if args.chart && args.format != ReportFormat::Table {
        return Err(Failure::Usage(
            "--chart is for people: leave out --format, or draw with --svg FILE".into(),
        ));
    }
    if rules::is_stdin(&args.log) && rules::is_stdin(&args.rules) {
        return Err(Failure::Usage("only one of LOG and --rules can be - (standard input)".into()));
    }
    let rules = rules::load(&args.rules)?;
    let gate = Gate::new(&rules, args.capacity)?;
    let table = gate.table()?;
    let mut engine = Engine::new(&rules, table, args.buckets as usize);
    let started = Instant::now();
    let mut input = Input::open(&args.log)?;
    let read = run(args, &rules, &mut input, &mut engine);
    let lines = input.lines();
    input.finish();
    if let Err(failure @ Failure::Log(_)) = read {
        return Err(failure);
    }
    if engine.totals.requests == 0 && engine.faults.unreadable > 0 && read.is_ok() {
        return Err(Failure::Log(format!(
            "no line of {} could be read ({}); name its format with --log-format",
            rules::shown(&args.log),
            engine.faults.told()
        )));
    }
    let report = Report::new(&engine, args.top as usize);
    if let Some(path) = &args.svg {
        let drawn = svg::draw(&report);
        fs::write(path, drawn).map_err(|error| Failure::Write { path: path.clone(), error })?;
    }
    let text = match args.format {
        ReportFormat::Json => rules::json(&report)?,
        ReportFormat::Csv => report.csv(),
        ReportFormat::Table => report.text(Paint::stdout(), args.chart),
    };
    screen::print(&text)?;
    for note in &report.notes {
        screen::note(note);
    }
    if args.timing {
        let seconds = started.elapsed().as_secs_f64();
        let rate = (lines as f64 / seconds.max(1e-9)) as u64;
        screen::note(&format!("{} lines in {seconds:.2} s: {} a second", grouped(lines), grouped(rate)));
    }
    // What came before the log broke off was reported; that it broke off is not well.
    if let Err(failure) = read {
        screen::complain(&format!("the log broke off after line {}: {failure}", grouped(lines)));
        return Ok(ExitCode::from(UNUSABLE));
    }
    Ok(ExitCode::SUCCESS)
}

fn run(
    args: &ReplayArgs,
    rules: &Rules,
    input: &mut Input,
    engine: &mut Engine<'_, '_>,
) -> Result<(), Failure> {
    let defaults = Defaults { route: args.route.as_bytes(), host: args.host.as_bytes() };
    let format = match args.log_format {
        LogFormat::Auto => detect(args, input)?,
        named => named,
    };
    let read = match format {
        LogFormat::Json => json::read(input, rules, defaults, engine),
        LogFormat::Csv => return csv::read(input, rules, defaults, engine, &args.log),
        LogFormat::Combined | LogFormat::Auto => combined::read(input, rules, defaults, engine),
    };
    read.map_err(|error| Failure::Read { path: args.log.clone(), error })
}

/// By the first lines.
fn detect(args: &ReplayArgs, input: &mut Input) -> Result<LogFormat, Failure> {
    let head = input.peek().map_err(|error| Failure::Read { path: args.log.clone(), error })?;
    let lines = || head.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let Some(first) = lines().next() else { return Ok(LogFormat::Combined) };
    if csv::is_heading(first) {
        return Ok(LogFormat::Csv);
    }
    // The first line may be a broken one: those behind it are asked too.
    for line in lines().take(100) {
        if line.starts_with(b"{") {
            return Ok(LogFormat::Json);
        }
        if combined::is_line(line) {
            return Ok(LogFormat::Combined);
        }
    }
    Err(Failure::Log(format!(
        "cannot tell the format of {} from its first lines; name it with --log-format combined, json or csv",
        rules::shown(&args.log)
    )))
}
