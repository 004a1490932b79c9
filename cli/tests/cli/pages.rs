//! Help, manual pages, completions, and manners of a command line.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::{command, tollgate};

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let run = tollgate(&["completions", shell]);
        assert_eq!(run.code, 0);
        assert!(run.stdout.contains("replay") && run.stdout.contains("log-format"), "{shell}");
    }
    assert_eq!(tollgate(&["completions", "tcsh"]).code, 2);
}

#[test]
fn manual_pages() {
    for (args, name) in [
        (&[][..], "tollgate"),
        (&["rules"], "tollgate-rules"),
        (&["rules", "check"], "tollgate-rules-check"),
        (&["rules", "explain"], "tollgate-rules-explain"),
        (&["replay"], "tollgate-replay"),
        (&["envoy-config"], "tollgate-envoy-config"),
        (&["completions"], "tollgate-completions"),
        (&["man"], "tollgate-man"),
    ] {
        let run = tollgate(&[&["man"], args].concat());
        assert_eq!(run.code, 0);
        let title = format!(".TH {name} 1");
        assert!(run.stdout.contains(&title) && run.stdout.contains(".SH SYNOPSIS"), "{name}: {}", run.stdout);
        assert!(!run.stdout.contains("tollgate-help"));
    }
    let run = tollgate(&["man", "rules", "nonsense"]);
    assert_eq!(run.code, 2);
    assert!(
        run.stderr.contains("tollgate-rules has no command nonsense; it has: check, explain"),
        "{}",
        run.stderr
    );
}

#[test]
fn help_has_examples_for_each_command() {
    let commands: [&[&str]; 6] = [
        &["rules", "check"],
        &["rules", "explain"],
        &["replay"],
        &["envoy-config"],
        &["completions"],
        &["man"],
    ];
    for args in commands {
        let run = tollgate(&[args, &["--help"]].concat());
        assert_eq!(run.code, 0);
        assert!(run.stdout.contains("Examples:\n  tollgate "), "{args:?}: {}", run.stdout);
        assert!(run.stdout.lines().all(|line| line.chars().count() <= 100), "{}", run.stdout);
    }
    let run = tollgate(&["--help"]);
    assert!(run.stdout.contains("Start here:") && !run.stdout.contains("bench-log"), "{}", run.stdout);
}

#[test]
fn the_version_is_the_workspace_s() {
    assert_eq!(tollgate(&["--version"]).stdout, concat!("tollgate ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn a_reader_who_leaves_ends_it_quietly() {
    for args in [&["bench-log"][..], &["man"], &["completions", "bash"]] {
        let mut child = command().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::with_capacity(1, child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

#[test]
fn made_up_logs_are_always_the_same() {
    for format in ["combined", "json", "csv"] {
        let args = ["bench-log", "--lines", "200", "--log-format", format];
        let (one, other) = (tollgate(&args).stdout, tollgate(&args).stdout);
        assert_eq!(one, other);
        assert_eq!(one.lines().count(), if format == "csv" { 201 } else { 200 });
        assert_ne!(one, tollgate(&[&args[..], &["--seed", "2"]].concat()).stdout);
    }
}
