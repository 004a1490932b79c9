//! Rules files: read, and told what is wrong with them.

use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::fs::File;
use std::hash::BuildHasher;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use tollgate_core::key::Seed;
use tollgate_core::pages;
use tollgate_core::policy::{MAX_DOCUMENT, OnStoreError, Policy, Printable, RuleError, Rules, Store};
use tollgate_core::redis::store::{self, StoreConfig};

use crate::args::{CheckArgs, TextOrJson};
use crate::failure::{Failure, UNUSABLE, WRONG};
use crate::screen;

/// A secret of this process. The standard library draws one from the system
/// for its own hash maps; a hash under it tells nothing about it.
pub(crate) fn seed() -> Seed {
    let state = RandomState::new();
    Seed([state.hash_one(1), state.hash_one(2)])
}

/// Reads a rules file and compiles it.
pub(crate) fn load(path: &Path) -> Result<Rules, Failure> {
    let text = read(path)?;
    Rules::parse_at(&text, seed(), 0).map_err(|errors| {
        let errors = in_order(errors);
        let mut told = format!("{} cannot be used as it is:\n", shown(path));
        told.push_str(&lines(path, &errors));
        told.truncate(told.trim_end().len());
        Failure::Rules(told)
    })
}

/// `tollgate rules check`.
pub(crate) fn check(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let mut out = String::new();
    let mut reports = Vec::new();
    let (mut wrong, mut unreadable) = (0usize, false);
    for path in &args.files {
        let (errors, warnings) = match read(path).map(|text| Rules::parse_for(&text, seed(), 0, &accepts)) {
            Ok(Ok(rules)) => {
                let notices = rules.notices(true).map(|notice| notice.to_string());
                (Vec::new(), notices.chain(not_in_envoy(&rules)).collect())
            }
            Ok(Err(errors)) => (in_order(errors), Vec::new()),
            Err(failure) => {
                screen::complain(&failure.to_string());
                unreadable = true;
                continue;
            }
        };
        wrong += usize::from(!errors.is_empty());
        out.push_str(&lines(path, &errors));
        if args.format == TextOrJson::Text {
            warnings.iter().for_each(|warning| screen::warn(&format!("{}: {warning}", shown(path))));
        }
        reports.push(Report { file: shown(path), ok: errors.is_empty(), errors: told(&errors), warnings });
    }
    if args.format == TextOrJson::Json {
        out = json(&reports)?;
    } else if wrong == 0 && !unreadable {
        let paint = screen::Paint::stdout();
        let (files, verb) = match args.files.as_slice() {
            [one] => (shown(one), "is"),
            files => (format!("{} files", files.len()), "are"),
        };
        let _ = writeln!(out, "{} {files} {verb} right", paint.green("ok:"));
    }
    screen::print_verdict(&out)?;
    Ok(match (unreadable, wrong) {
        (true, _) => ExitCode::from(UNUSABLE),
        (false, 0) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(WRONG),
    })
}

/// Can Redis count what it is to count?
fn accepts(policy: &Policy) -> Result<(), String> {
    match policy.store() {
        Store::Redis => store::accepts(policy, &StoreConfig::default()).map_err(|why| why.to_string()),
        Store::Local => Ok(()),
    }
}

/// What the Envoy filter refuses, and other hosts count.
fn not_in_envoy(rules: &Rules) -> impl Iterator<Item = String> {
    rules.policies().iter().filter_map(|policy| {
        let unless = match (policy.store(), policy.on_store_error()) {
            (Store::Local, _) => "",
            (Store::Redis, OnStoreError::Local) => {
                ", unless enough instances share it, for \"on_store_error\""
            }
            (Store::Redis, _) => return None,
        };
        let why = policy.all_limits().try_for_each(pages::accepts).err()?;
        Some(format!("policy {}: refused by the Envoy filter{unless}: {why}", policy.name()))
    })
}

/// In the order of the text.
pub(crate) fn in_order(mut errors: Vec<RuleError>) -> Vec<RuleError> {
    errors.sort_by_key(|error| (error.line, error.column));
    errors
}

/// As JSON, with a newline at the end.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    text.push('\n');
    Ok(text)
}

#[derive(Serialize)]
struct Report {
    file: String,
    ok: bool,
    errors: Vec<Told>,
    /// What has no effect; the file is right nevertheless.
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Told {
    line: usize,
    column: usize,
    path: String,
    policy: String,
    message: String,
}

fn told(errors: &[RuleError]) -> Vec<Told> {
    let told = errors.iter().map(|error| Told {
        line: error.line,
        column: error.column,
        path: error.path.clone(),
        policy: error.policy.clone(),
        message: error.message.clone(),
    });
    told.collect()
}

/// One line for each error, as compilers write them.
pub(crate) fn lines(path: &Path, errors: &[RuleError]) -> String {
    let mut out = String::new();
    for RuleError { line, column, path: field, policy, message } in errors {
        let colon = if field.is_empty() { "" } else { ": " };
        let (file, field, message) = (shown(path), screen::clean(field), screen::clean(message));
        let of = if policy.is_empty() { String::new() } else { format!(" (policy {policy})") };
        let _ = writeln!(out, "{file}:{line}:{column}: {field}{colon}{message}{of}");
    }
    out
}

/// A path as messages name it.
pub(crate) fn shown(path: &Path) -> String {
    match is_stdin(path) {
        true => "<stdin>".to_owned(),
        false => Printable(path.as_os_str().as_encoded_bytes()).to_string(),
    }
}

pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let failed = |error| Failure::Read { path: path.to_owned(), error };
    let mut bytes = Vec::new();
    let source: Box<dyn Read> = if is_stdin(path) {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(failed)?)
    };
    // One byte more than is legal is enough to be told so.
    source.take(MAX_DOCUMENT as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let before = error.as_bytes().get(..at).unwrap_or(&[]);
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        failed(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("byte {at} (line {line}) is not UTF-8; save the file as UTF-8"),
        ))
    })
}
