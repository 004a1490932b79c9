//! Completions and manual pages, made from the arguments' definition.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap::builder::Resettable;
use clap_mangen::roff::{Roff, roman};

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
    let mut command = Args::command().disable_help_subcommand(true);
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
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let man = clap_mangen::Man::new(command.after_help(Resettable::Reset))
        .source(concat!("tollgate ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render(&mut page)?;
    // Examples stand as they are written; a page of clap's own would fill them.
    let mut examples = Roff::new();
    examples.control("SH", ["NOTES"]).control("nf", []);
    for line in notes.lines() {
        examples.text([roman(line)]);
    }
    examples.control("fi", []).to_writer(&mut page)?;
    write(&page)
}

fn write(bytes: &[u8]) -> Result<ExitCode, Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
