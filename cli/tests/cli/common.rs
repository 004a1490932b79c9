//! Running the command, and looking at what it says.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

/// What a run left behind.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// The output as JSON; the run must have gone well.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }

    /// No byte that a terminal would obey.
    pub(crate) fn assert_harmless(&self) {
        let harmful = |c: char| c.is_control() && c != '\n';
        assert!(!self.stdout.contains(harmful), "{:?}", self.stdout);
        assert!(!self.stderr.contains(harmful), "{:?}", self.stderr);
    }
}

pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env_remove("NO_COLOR");
    command
}

pub(crate) fn tollgate(args: &[&str]) -> Run {
    tollgate_with(args, b"")
}

pub(crate) fn tollgate_with(args: &[&str], input: &[u8]) -> Run {
    let mut child = command()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Run {
        code: output.status.code().expect("no signal ended it"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A new file of that content.
pub(crate) fn file(name: &str, content: &[u8]) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "cli-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    ));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

pub(crate) fn rules(document: &str) -> String {
    file("rules.json", document.as_bytes()).to_str().unwrap().to_owned()
}

/// One policy: two a minute for each address.
pub(crate) const TWO_A_MINUTE: &str =
    r#"{ "policies": [ { "name": "net", "key": ["ip"], "limits": [ { "rate": "2/m" } ] } ] }"#;

/// Replays a log from standard input, to JSON.
pub(crate) fn replay(document: &str, log: &[u8], more: &[&str]) -> Value {
    let rules = rules(document);
    let args = [&["replay", "-", "--rules", &rules, "--format", "json"], more].concat();
    tollgate_with(&args, log).json()
}
