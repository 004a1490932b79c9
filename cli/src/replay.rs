//! `tollgate replay`: every request of a log, asked of the rules as a host
//! would ask, with the log's own time as the clock. The core does that; here
//! are the log's bytes, and what came out as a table, a chart, an SVG.

mod chart;
mod input;
mod svg;
mod text;

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use tollgate_core::replay::{Format, Options, Replay, ReplayError};

use crate::args::{LogFormat, ReplayArgs, ReportFormat};
use crate::failure::{Failure, UNUSABLE};
use crate::rules::{self, seed};
use crate::screen::{self, Paint, grouped};
use input::Input;

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
    let options = Options {
        format: match args.log_format {
            LogFormat::Auto => Format::Auto,
            LogFormat::Combined => Format::Combined,
            LogFormat::Json => Format::Json,
            LogFormat::Csv => Format::Csv,
        },
        capacity: args.capacity,
        buckets: args.buckets as usize,
        route: args.route.clone(),
        host: args.host.clone(),
    };
    let mut replay =
        Replay::new(rules, &options, seed()).map_err(|error| Failure::Usage(error.to_string()))?;
    let started = Instant::now();
    let mut input = Input::open(&args.log)?;
    let read = run(args, &mut input, &mut replay);
    let lines = replay.lines();
    input.finish();
    if let Err(failure @ Failure::Log(_)) = read {
        return Err(failure);
    }
    if replay.totals().requests == 0 && replay.faults().unreadable > 0 && read.is_ok() {
        return Err(Failure::Log(format!(
            "no line of {} could be read ({}); name its format with --log-format",
            rules::shown(&args.log),
            replay.faults().told()
        )));
    }
    let report = replay.report(args.top as usize);
    if let Some(path) = &args.svg {
        let drawn = svg::draw(&report);
        fs::write(path, drawn).map_err(|error| Failure::Write { path: path.clone(), error })?;
    }
    let text = match args.format {
        ReportFormat::Json => rules::json(&report)?,
        ReportFormat::Csv => report.csv(),
        ReportFormat::Table => text::of(&report, Paint::stdout(), args.chart),
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

/// Pushes the log to its end, or to where it breaks off.
fn run(args: &ReplayArgs, input: &mut Input, replay: &mut Replay) -> Result<(), Failure> {
    let refused = |error: ReplayError| match error {
        ReplayError::Format => Failure::Log(format!(
            "cannot tell the format of {} from its first lines; name it with --log-format combined, json or csv",
            rules::shown(&args.log)
        )),
        error => Failure::Log(error.to_string()),
    };
    loop {
        match input.read() {
            Ok([]) => return replay.finish().map_err(refused),
            Ok(bytes) => replay.push(bytes).map_err(refused)?,
            Err(error) => {
                // What came before is reported.
                replay.finish().map_err(refused)?;
                return Err(Failure::Read { path: args.log.clone(), error });
            }
        }
    }
}
