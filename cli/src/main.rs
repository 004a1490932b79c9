//! `tollgate`, the command line of Tollgate.
//!
//! It decides nothing itself: rules are read, matched and explained by
//! `tollgate-core`, and a replay asks the core's table what a host would ask.
//! What is here opens files, reads logs, and shows what came out.
//!
//! Exit codes: 0, all is well; 1, what was looked at is wrong (the rules, or a
//! log of which no line could be read); 2, the command itself could not be
//! carried out (arguments, files).

#![forbid(unsafe_code)]

mod args;
mod bench_log;
mod envoy_config;
mod explain;
mod failure;
mod pages;
mod replay;
mod rules;
mod screen;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command, RulesCommand};
use failure::Failure;

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Rules(RulesCommand::Check(args)) => rules::check(&args),
        Command::Rules(RulesCommand::Explain(args)) => explain::explain(&args),
        Command::Replay(args) => replay::replay(&args),
        Command::EnvoyConfig(args) => envoy_config::envoy_config(&args),
        Command::Completions(args) => pages::completions(&args),
        Command::Man(args) => pages::man(&args),
        Command::BenchLog(args) => bench_log::bench_log(&args),
    };
    match done {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            screen::complain(&failure.to_string());
            failure.code()
        }
    }
}
