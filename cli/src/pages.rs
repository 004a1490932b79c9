//! Completions and manual pages, made from the arguments' definition.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::{Args, CompletionsArgs, ManArgs};
use crate::failure::Failure;
use crate::screen;

/// `tollgate completions`.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "tollgate", &mut script);
    write(&script)
}

/// `tollgate man`.
pub(crate) fn man(args: &ManArgs) -> Result<ExitCode, Failure> {
    let mut command = Args::command();
    command.build();
    let mut name = "tollgate".to_owned();
    for word in &args.command {
        let Some(found) = command.find_subcommand(word) else {
            let known: Vec<_> =
                command.get_subcommands().filter(|c| !c.is_hide_set()).map(clap::Command::get_name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let word = screen::clean(word);
            return Err(Failure::Usage(format!("{name} has no command {word}; it has: {known}")));
        };
        name = format!("{name}-{word}");
        command = found.clone();
    }
    let command = command.version(env!("CARGO_PKG_VERSION"));
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    write(&page)
}

fn write(bytes: &[u8]) -> Result<ExitCode, Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
