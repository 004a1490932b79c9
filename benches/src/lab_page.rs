//! The lab's page in a real Chromium: frames while requests stream, the bytes
//! of a first visit, and an access log replayed in the page; and the package
//! that it is made with, deciding in Node.
//!
//! The measuring is done there, by `frames.mjs`, `replay_bench.mjs` and
//! `node_bench.mjs` of `tests/lab`, which check what they measured. Chromium
//! draws here without a GPU; a frame lasts 16.7 ms at 60 a second.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::Options;
use crate::report::Row;

/// ms.
const FRAME: f64 = 16.7;

#[derive(Deserialize)]
struct Spread {
    median: f64,
    p95: f64,
}

#[derive(Deserialize)]
struct Frames {
    interval_ms: Spread,
    work_ms: Spread,
    first_load_bytes: f64,
}

#[derive(Deserialize)]
struct Replay {
    wall_ms: f64,
    longest_gap_ms: f64,
    longest_work_ms: f64,
}

/// Decisions a second.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Decisions {
    tollgate: f64,
    limiter: f64,
    rate_limiter_flexible: f64,
}

pub(crate) fn rows(options: &Options) -> Vec<Row> {
    if !root().join("target/lab/site/index.html").exists()
        || !root().join("target/lab/test-npm/installed.json").exists()
    {
        eprintln!("no lab rows: no page in target/lab/site, or no browser to ask: run make test-lab");
        return Vec::new();
    }
    let mut rows = Vec::new();
    if options.wants("lab/frame") || options.wants("lab/first-load") {
        let Frames { interval_ms, work_ms, first_load_bytes } =
            run("frames.mjs", if options.quick { "2" } else { "10" });
        println!(
            "lab: of a frame the page's own code takes {:.1} ms (median) while it streams",
            work_ms.median
        );
        rows.extend([
            Row::absolute(
                "lab/frame-median",
                "one frame to the next while 50 requests a second stream, median",
                "ms",
                tenths(interval_ms.median),
                FRAME,
            ),
            Row::absolute("lab/frame-p95", "the same, 95 of 100", "ms", tenths(interval_ms.p95), FRAME),
            Row::new(
                "lab/frame-work",
                "the page's own work in a frame, 95 of 100",
                "ms",
                work_ms.p95,
                FRAME,
                "a frame",
            )
            .goal(0.5),
            Row::absolute(
                "lab/first-load",
                "what a first visit fetches, compressed",
                "KiB",
                first_load_bytes / 1024.0,
                150.0,
            ),
        ]);
    }
    if options.wants("lab/replay") {
        let Replay { wall_ms, longest_gap_ms, longest_work_ms } =
            run("replay_bench.mjs", if options.quick { "1" } else { "5" });
        rows.extend([
            Row::absolute(
                "lab/replay",
                "100,000 log lines dropped on the page, until the report stands, median",
                "ms",
                wall_ms,
                1000.0,
            ),
            Row::absolute(
                "lab/replay-gap",
                "the longest time between two frames meanwhile",
                "ms",
                longest_gap_ms,
                100.0,
            ),
            Row::absolute(
                "lab/replay-work",
                "of that, the longest that the page's own code takes at once",
                "ms",
                longest_work_ms,
                50.0,
            ),
        ]);
    }
    if options.wants("lab/node") {
        let Decisions { tollgate, limiter, rate_limiter_flexible } =
            run("node_bench.mjs", if options.quick { "1" } else { "5" });
        for (id, peer, name) in [
            ("lab/node", rate_limiter_flexible, "rate-limiter-flexible, in memory"),
            ("lab/node-plain", limiter, "limiter, in a Map"),
        ] {
            let what = "decisions for 10,000 keys in Node, on one core";
            rows.push(Row::new(id, what, "decisions/s", tollgate, peer, name).higher());
        }
    }
    rows
}

/// What a script of the lab's tests prints.
fn run<T: for<'de> Deserialize<'de>>(script: &str, argument: &str) -> T {
    let output = Command::new("node")
        .arg(root().join("tests/lab").join(script))
        .arg(argument)
        .output()
        .unwrap_or_else(|error| panic!("node does not start: {error}"));
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{script} printed no result: {error}"))
}

/// Chromium tells times of frames to 0.1 ms.
fn tenths(ms: f64) -> f64 {
    (ms * 10.0).round() / 10.0
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
