//! The rules file: many overrides in memory, and a log replayed.

use std::fmt::Write;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use tollgate_core::key::Seed;
use tollgate_core::policy::Rules;

use crate::keys::{KEY_BYTES, Sequence, key};
use crate::measure::median;
use crate::report::Row;
use crate::{Options, folder, memory};

const OVERRIDES: usize = 300_000;
const LOG_LINES: usize = 1_000_000;

pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    if options.wants("rules/overrides") {
        rows.extend(overrides(options));
    }
    if options.wants("rules/replay") {
        rows.push(replay());
    }
    rows
}

/// A policy with a row for each of many tenants, on a few plans.
fn document() -> String {
    let mut text = String::from(
        r#"{ "identity": { "tenant": { "header": "x-tenant" } },
             "policies": [ { "name": "p", "key": ["tenant"], "limits": [ { "rate": "1/s" } ], "overrides": [ "#,
    );
    for number in 0..OVERRIDES {
        let comma = if number > 0 { ",\n" } else { "" };
        let rate = 10 + number % 50;
        write!(text, r#"{comma}{{ "key": ["{}"], "limits": [ {{ "rate": "{rate}/s" }} ] }}"#, key(number))
            .expect("a string takes all");
    }
    text.push_str(" ] } ] }");
    text
}

fn overrides(options: &Options) -> Vec<Row> {
    let text = document();
    let mut loads = Vec::new();
    let mut bytes = 0;
    let mut kept: Option<Rules> = None;
    for _ in 0..options.rounds(10).max(3) {
        drop(kept.take()); // one document in memory at a time
        let before = memory::in_use();
        let start = Instant::now();
        let rules = Rules::parse(&text, Seed([1, 2])).expect("the document is legal");
        loads.push(start.elapsed().as_secs_f64());
        bytes = memory::in_use() - before;
        assert_eq!(rules.policies()[0].overrides().len(), OVERRIDES);
        kept = Some(rules);
    }
    let rules = kept.expect("at least one round");
    let overrides = rules.policies()[0].overrides();
    // A subject is its values, each behind its length.
    let subjects: Vec<Vec<u8>> = Sequence::uniform(OVERRIDES, 1 << 20)
        .keys
        .into_iter()
        .map(|key| [&[KEY_BYTES as u8], key.as_bytes()].concat()) // 23
        .collect();
    let mut lookups: Vec<f64> = subjects
        .chunks(1 << 16)
        .map(|chunk| {
            let start = Instant::now();
            let found = chunk.iter().filter(|subject| black_box(overrides.find(subject)).is_some()).count();
            let time = start.elapsed().as_nanos() as f64 / chunk.len() as f64;
            assert_eq!(found, chunk.len(), "every subject has a row");
            time
        })
        .collect();
    let subject_bytes = OVERRIDES * (KEY_BYTES + 1);
    let beyond = (bytes - subject_bytes) as f64 / OVERRIDES as f64;
    let what = |what: &str| format!("{what}, 300,000 overrides of 23-byte subjects, 50 plans");
    vec![
        Row::absolute("rules/overrides/load", &what("parse and compile"), "s", median(&mut loads), 2.0),
        Row::absolute("rules/overrides/bytes", &what("memory beyond the subjects"), "B a row", beyond, 64.0),
        Row::absolute(
            "rules/overrides/lookup",
            &what("a look-up at random"),
            "ns",
            median(&mut lookups),
            150.0,
        ),
    ]
}

/// The command, asked for the verdicts of a log of its own making.
fn replay() -> Row {
    let rules = folder().join("replay-rules.json");
    let log = folder().join("replay.log");
    std::fs::create_dir_all(folder()).expect("a folder for the bench");
    std::fs::write(
        &rules,
        r#"{ "policies": [ { "name": "by-address", "key": ["ip"], "limits": [ { "rate": "5/s", "burst": 20 } ] },
                           { "name": "login", "match": { "path": "/login" }, "key": ["ip"], "limits": [ { "rate": "5/m" } ] } ] }"#,
    )
    .expect("rules are written");
    let made = Command::new(tollgate())
        .args(["bench-log", "--lines", &LOG_LINES.to_string()])
        .stdout(std::fs::File::create(&log).expect("a file for the log"))
        .status()
        .expect("the command runs: make cli");
    assert!(made.success());
    let mut speeds: Vec<f64> = (0..3)
        .map(|_| {
            let before = children();
            let output = Command::new(tollgate())
                .args(["replay", "--format", "json", "--rules"])
                .args([&rules, &log])
                .stderr(Stdio::null())
                .output()
                .expect("the command runs");
            let time = children() - before;
            assert!(output.status.success());
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report in JSON");
            let count = |name: &str| report["requests"][name].as_u64().or(report[name].as_u64());
            let judged = count("admitted").zip(count("denied")).map(|(admitted, denied)| admitted + denied);
            assert_eq!(judged, Some(LOG_LINES as u64), "every line is judged: {report}");
            LOG_LINES as f64 / time
        })
        .collect();
    let speed = median(&mut speeds);
    Row::new(
        "rules/replay",
        "tollgate replay, 1,000,000 combined lines, two policies, start and report included, processor time",
        "lines/s of CPU",
        speed,
        500_000.0,
        "goal",
    )
    .goal(1.0)
    .higher()
}

/// Processor seconds of all commands that have ended: a busy machine makes
/// them longer, but not by the time that others run.
fn children() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer leads to room for what the call writes.
    let status = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    assert_eq!(status, 0);
    // SAFETY: written, as the call succeeded.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The command as `make cli` leaves it.
fn tollgate() -> PathBuf {
    folder().parent().map_or_else(|| PathBuf::from("target"), PathBuf::from).join("release/tollgate")
}
