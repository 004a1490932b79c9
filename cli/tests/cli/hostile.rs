//! Logs that somebody wrote to hurt: nothing crashes, nothing grows, and no
//! control character reaches a terminal.

use std::sync::LazyLock;

use proptest::prelude::*;

use crate::common::{replay, rules, tollgate_with};

const BY_PATH: &str = r#"{
  "identity": { "user": { "header": "user-agent" } },
  "policies": [ { "name": "p", "key": ["path", "user"], "limits": [ { "rate": "1/h" } ] } ] }"#;

fn line(request: &[u8], agent: &[u8]) -> Vec<u8> {
    let start = b"1.1.1.1 - - [30/Nov/2026:00:06:06 +0000] \"";
    [&start[..], request, b"\" 200 1 \"-\" \"", agent, b"\"\n"].concat()
}

#[test]
fn control_characters_are_shown_not_obeyed() {
    let mut log = Vec::new();
    for request in [
        &b"GET /\x1b[2J\x07 HTTP/1.1"[..],
        b"GET /\\x1B]0;owned\\x07 HTTP/1.1",
        b"GET /\0\xff\xfe\r HTTP/1.1",
        b"GET /%0d%0a%1b[31m HTTP/1.1",
        "GET /\u{202e}\u{9b}31m HTTP/1.1".as_bytes(),
    ] {
        log.extend_from_slice(&line(request, b"\x1b[31m\\x1b[0m"));
        log.extend_from_slice(&line(request, b"\x1b[31m\\x1b[0m"));
    }
    let rules = rules(BY_PATH);
    for format in ["table", "csv", "json"] {
        let run = tollgate_with(&["replay", "-", "--rules", &rules, "--format", format], &log);
        assert_eq!(run.code, 0);
        run.assert_harmless();
        let slash = if format == "json" { r"\\" } else { r"\" };
        let expected = format!(r"/{slash}u{{1b}}[2J{slash}u{{7}}");
        assert!(run.stdout.contains(&expected), "{}", run.stdout);
        assert!(run.stdout.contains(&format!("{slash}xff{slash}xfe")), "{}", run.stdout);
    }
}

#[test]
fn fields_of_csv_may_hold_ends_of_lines() {
    let log = b"time,path,user-agent\n1700000000,\"/a\r\nb\",\"x\n\ny\"\n1700000000,\"/a\r\nb\",\"x\n\ny\"\n,,\n1700000001,/c,z\n";
    let report = replay(BY_PATH, log, &[]);
    assert_eq!([&report["requests"], &report["denied"]], [3, 1]);
    assert_eq!(report["keys"][0]["key"][0]["value"], r"/a\u{d}\u{a}b");
    assert_eq!(report["faults"]["first_unreadable"][0]["line"], 10, "{}", report["faults"]);
}

#[test]
fn long_lines_are_passed_over_and_the_next_is_read() {
    let good = line(b"GET /x HTTP/1.1", b"-");
    let long = line(&[b"GET /", vec![b'a'; 1 << 20].as_slice(), b" HTTP/1.1"].concat(), b"-");
    let endless = vec![b'"'; 3 << 20];
    let log = [&good[..], &long, &good, &endless, b"\n", &good].concat();
    let report = replay(BY_PATH, &log, &[]);
    assert_eq!(report["requests"], 3);
    let faults = &report["faults"];
    assert_eq!(
        [
            &faults["unreadable"],
            &faults["first_unreadable"][0]["line"],
            &faults["first_unreadable"][1]["line"]
        ],
        [2, 2, 4]
    );
    // The longest lines that are read are a quarter of a mebibyte.
    let long = line(&[b"GET /", vec![b'a'; 200 << 10].as_slice(), b" HTTP/1.1"].concat(), b"-");
    assert_eq!(replay(BY_PATH, &long, &[])["requests"], 1);

    let mut csv = b"time,path,user-agent\n1,/a,x\n1,\"".to_vec();
    csv.extend(std::iter::repeat_n(b'z', 1 << 20));
    csv.extend_from_slice(b"\n1,/b,x\n");
    let report = replay(BY_PATH, &csv, &[]);
    assert_eq!(report["requests"], 2, "a quote that is never closed costs its own line");
    assert_eq!(report["faults"]["first_unreadable"][0]["line"], 3);
}

#[test]
fn lines_that_are_none_are_counted_by_reason() {
    let mut log = line(b"GET / HTTP/1.1", b"-");
    for (bad, times) in [
        (&b"\0\0\0\n"[..], 1),
        (b"1.1.1.1 - - [30/Nov/2026:00:06:06 +0000] \"\\x16\\x03\\x01\" 400 1 \"-\" \"-\"\n", 1),
        (b"1.1.1.1 - - [32/Nov/2026:00:06:06 +0000] \"GET / HTTP/1.1\" 400 1 \"-\" \"-\"\n", 1),
        (b"a.example - - [30/Nov/2026:00:06:06 +0000] \"GET / HTTP/1.1\" 400 1 \"-\" \"-\"\n", 1),
        (b"1.1.1.1 - - [30/Nov/2026:00:06:06 +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\n", 5),
    ] {
        (0..times).for_each(|_| log.extend_from_slice(bad));
    }
    let report = replay(BY_PATH, &log, &[]);
    assert_eq!([&report["requests"], &report["faults"]["unreadable"]], [1, 9]);
    let first: Vec<_> = report["faults"]["first_unreadable"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| (f["line"].as_u64().unwrap(), f["reason"].as_str().unwrap()))
        .collect();
    assert_eq!(
        first,
        [
            (2, "not a line of the combined format"),
            (3, "the request is not METHOD TARGET VERSION"),
            (4, "the time cannot be read"),
            (5, "the client's address is not one"),
            (6, "a quote is not closed"),
        ]
    );
    let run = tollgate_with(&["replay", "-", "--rules", &rules(BY_PATH)], &log);
    assert!(run.stderr.contains("9 lines were left out (line 2: not a line of"), "{}", run.stderr);
    assert!(run.stderr.contains("; 9 in all)"), "{}", run.stderr);
}

#[test]
fn a_user_s_name_cannot_forge_a_line() {
    let log = br#"1.1.1.1 - x [01/Jan/2020:00:00:00 +0000] [30/Nov/2026:00:06:06 +0000] "GET /a HTTP/1.1" 200 1 "-" "-""#;
    let report = replay(BY_PATH, log, &["--log-format", "combined"]);
    assert_eq!(report["first"], "2026-11-30T00:06:06Z");
}

#[test]
fn json_that_is_not_utf_8_is_still_told_apart() {
    let log = b"{\"msec\":1,\"path\":\"/\xe9\"}\n{\"msec\":1,\"path\":\"/\xe8\"}\n{\"msec\":1,\"path\":\"/\xe9\"}\n{\"msec\":1\n{}\n[]\n{\"msec\":1e999,\"path\":\"/\"}\n";
    let report = replay(BY_PATH, log, &[]);
    assert_eq!([&report["admitted"], &report["denied"], &report["faults"]["unreadable"]], [2, 1, 4]);
}

#[test]
fn hostile_times_are_no_harm() {
    let log = b"time,path,user-agent\n0,/a,x\n9223372036854775807,/a,x\n99999999999.9,/a,x\n1e9,/a,x\n-1,/a,x\n18446744073709551616,/a,x\n1700000000,/a,x\n";
    let report = replay(BY_PATH, log, &["--buckets", "1"]);
    assert_eq!(report["faults"]["unreadable"], 4, "{}", report["faults"]);
    assert_eq!(report["requests"], 3);
}

static BY_PATH_FILE: LazyLock<String> = LazyLock::new(|| rules(BY_PATH));

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_bytes_crash_it(
        lines in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..80),
                prop::collection::vec(prop::sample::select(b"\"\\x[]{}:,-/ 0123\n\0".to_vec()), 0..80),
                Just(br#"1.1.1.1 - - [30/Nov/2026:00:06:06 +0000] "GET /a HTTP/1.1" 200 1 "-" "-""#.to_vec()),
                Just(br#"{"msec":1,"path":"/a","remote_addr":"1.1.1.1"}"#.to_vec()),
                Just(b"1700000000,/a,x".to_vec()),
            ],
            0..20,
        ),
        format in prop::sample::select(vec!["auto", "combined", "json", "csv"]),
    ) {
        let heading: &[u8] = if format == "csv" { b"time,path,user-agent\n" } else { b"" };
        let log = [heading, &lines.join(&b'\n')].concat();
        let run = tollgate_with(&["replay", "-", "--rules", &BY_PATH_FILE, "--log-format", format], &log);
        prop_assert!([0, 1].contains(&run.code), "{} {}", run.code, run.stderr);
        run.assert_harmless();
    }
}
