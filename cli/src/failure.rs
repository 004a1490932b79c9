//! Why a command could not be carried out, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use tollgate_core::policy::Printable;

/// What is wrong is inside the file.
pub(crate) const WRONG: u8 = 1;
/// What is wrong is with the command.
pub(crate) const UNUSABLE: u8 = 2;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot read {}: {error}{}", Printable(.path.as_os_str().as_encoded_bytes()), hint(.error))]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot write {}: {error}", Printable(.path.as_os_str().as_encoded_bytes()))]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// The rules, in full sentences, one a line.
    #[error("{0}")]
    Rules(String),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Log(String),
}

impl Failure {
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Rules(_) | Failure::Log(_) => WRONG,
            _ => UNUSABLE,
        })
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; check the path, or give - to read standard input",
        io::ErrorKind::PermissionDenied => "; read it as a user who may",
        io::ErrorKind::IsADirectory => "; name a file in it",
        _ => "",
    }
}
