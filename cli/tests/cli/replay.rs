//! `tollgate replay`: formats, reports, and what it says of a log's faults.

use std::fmt::Write as _;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::common::{TWO_A_MINUTE, file, replay, rules, tollgate, tollgate_with};

/// Four requests of one address within a minute, and one of another.
const COMBINED: &str = r#"203.0.113.7 - - [30/Nov/2026:00:06:06 +0000] "GET /a HTTP/1.1" 200 12 "-" "curl/8.5.0"
203.0.113.7 - - [30/Nov/2026:00:06:06 +0000] "GET /b?c HTTP/1.1" 200 12 "-" "curl/8.5.0"
203.0.113.7 - bob [30/Nov/2026:00:06:07 +0000] "POST /a HTTP/1.1" 429 12 "-" "curl/8.5.0"
198.51.100.1 - - [30/Nov/2026:00:06:07 +0000] "GET /a HTTP/2.0" 200 12 "-" "curl/8.5.0"
203.0.113.7 - - [30/Nov/2026:00:06:08 +0000] "GET /a HTTP/1.1" 200 12 "-" "curl/8.5.0"
"#;

const JSON: &str = r#"{"time_iso8601":"2026-11-30T00:06:06+00:00","remote_addr":"203.0.113.7","request":"GET /a HTTP/1.1","status":200}
{"time":"2026-11-30T00:06:06Z","remote_addr":"203.0.113.7","method":"GET","request_uri":"/b?c","status":"200"}
{"msec":1795997167.000,"remote_addr":"203.0.113.7","request_method":"POST","uri":"/a","status":429,"upstream":{"a":[1]}}
{"msec":"1795997167.000","peer":"198.51.100.1","method":"GET","path":"/a","bytes":[1,null,true]}
{"ts":1795997168,"remote_addr":"203.0.113.7","method":"GET","path":"/a","tls":null}
"#;

const CSV: &str = "time,method,path,host,route,peer,x-api-key\r
2026-11-30T00:06:06Z,GET,/a,h,r,203.0.113.7,k\r
1795997166,GET,/b?c,h,r,203.0.113.7,\r
\"30/Nov/2026:00:06:07 +0000\",POST,\"/a\",h,r,203.0.113.7,\"a,\"\"b\"\"\"\r
1795997167.5,GET,/a,h,r,198.51.100.1,k
2026-11-30 00:06:08,GET,/a,h,r,203.0.113.7,k
";

fn counts(report: &Value) -> [u64; 3] {
    ["requests", "admitted", "denied"].map(|name| report[name].as_u64().unwrap())
}

#[test]
fn formats_are_told_apart_and_mean_the_same() {
    for (log, name) in [(COMBINED, "combined"), (JSON, "json"), (CSV, "csv")] {
        for more in [&[][..], &["--log-format", name]] {
            let report = replay(TWO_A_MINUTE, log.as_bytes(), more);
            assert_eq!(counts(&report), [5, 3, 2], "{name}");
            assert_eq!(report["faults"]["unreadable"], 0);
            assert_eq!(report["first"], "2026-11-30T00:06:06Z");
            assert_eq!(report["last"], "2026-11-30T00:06:08Z");
            assert_eq!(report["logged_429"], u64::from(name != "csv"));
            let policy = &report["policies"][0];
            assert_eq!([&policy["requests"], &policy["admitted"], &policy["denied"]], [5, 3, 2]);
            let key = &report["keys"][0];
            assert_eq!(key["key"][0]["value"], "203.0.113.7");
            assert_eq!([&key["denied"], &key["admitted"]], [2, 2]);
            let buckets: Vec<_> =
                report["buckets"].as_array().unwrap().iter().map(|b| b["admitted"].as_u64()).collect();
            assert_eq!(buckets, [Some(2), Some(1), Some(0)]);
        }
    }
}

#[test]
fn a_byte_order_mark_and_windows_ends_of_lines_are_no_harm() {
    for log in [COMBINED, JSON, CSV] {
        let log = format!("\u{feff}{}", log.replace("\r\n", "\n").replace('\n', "\r\n"));
        let report = replay(TWO_A_MINUTE, log.as_bytes(), &[]);
        assert_eq!(counts(&report), [5, 3, 2]);
        assert_eq!(report["faults"]["unreadable"], 0);
    }
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn gzip_is_known_by_its_first_bytes_from_files_and_pipes() {
    let (head, tail) = COMBINED.split_at(COMBINED.find("203.0.113.7 - bob").unwrap());
    let whole = [gzip(head), gzip(tail)].concat(); // as `cat a.gz b.gz` makes it
    assert_eq!(counts(&replay(TWO_A_MINUTE, &whole, &[])), [5, 3, 2]);
    let path = file("access.log", &whole);
    let run =
        tollgate(&["replay", path.to_str().unwrap(), "--rules", &rules(TWO_A_MINUTE), "--format", "json"]);
    assert_eq!(counts(&run.json()), [5, 3, 2]);
}

#[test]
fn a_log_that_breaks_off_is_reported_up_to_there() {
    let log: String = (0..5000).map(|n| COMBINED.replace(".7 ", &format!(".{} ", n % 200))).collect();
    let mut broken = gzip(&log);
    broken.truncate(broken.len() / 2);
    let run = tollgate_with(&["replay", "-", "--rules", &rules(TWO_A_MINUTE), "--format", "json"], &broken);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("the log broke off after line "), "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(report["requests"].as_u64().unwrap() > 1000);
}

#[test]
fn header_fields_routes_and_hosts_reach_the_rules() {
    const RULES: &str = r#"{
      "identity": { "api_key": { "header": "x-api-key" }, "ip": { "trusted_proxies": ["10.0.0.0/8"], "header": "x-forwarded-for" } },
      "policies": [
        { "name": "key", "match": { "route": "r", "host": "shop.example" }, "key": ["api_key"], "limits": [ { "rate": "1/h" } ] },
        { "name": "agent", "match": { "header": { "user-agent": "bad \"bot\"" } }, "key": ["ip"], "limits": [ { "rate": "1/h" } ] } ] }"#;
    let json = r#"{"msec":1,"host":"Shop.Example:443","route":"r","http_x_api_key":"a"}
{"msec":1,"http_host":"shop.example","route":"r","header_x-api-key":"a"}
{"msec":1,"host":"shop.example","route":"r","header_X_Api_Key":"b"}
{"msec":1,"host":"shop.example","route":"other","http_x_api_key":"a"}"#;
    let report = replay(RULES, json.as_bytes(), &[]);
    assert_eq!(counts(&report), [4, 3, 1]);
    assert_eq!(report["unlimited"], 1);
    assert_eq!(report["keys"][0]["key"][0]["value"], "sha256:ca978112", "the digest of a");
    // NGINX's main format, behind a proxy; quotes are escaped in NGINX's way and in that of others.
    let main = r#"10.0.0.1 - - [30/Nov/2026:00:06:06 +0000] "GET / HTTP/1.1" 200 1 "-" "bad \x22bot\x22" "203.0.113.1"
10.0.0.1 - - [30/Nov/2026:00:06:06 +0000] "GET / HTTP/1.1" 200 1 "-" "bad \"bot\"" "6.6.6.6, 203.0.113.1"
10.0.0.1 - - [30/Nov/2026:00:06:06 +0000] "GET / HTTP/1.1" 200 1 "-" "bad \x22bot\x22" "203.0.113.2"
10.0.0.1 - - [30/Nov/2026:00:06:06 +0000] "GET / HTTP/1.1" 200 1 "-" "good" "203.0.113.1""#;
    let report = replay(RULES, main.as_bytes(), &[]);
    assert_eq!(counts(&report), [4, 3, 1]);
    assert_eq!(report["keys"][0]["key"][0]["value"], "203.0.113.1");
    let report = replay(RULES, main.as_bytes(), &["--route", "r", "--host", "shop.example"]);
    assert_eq!(report["policies"][0]["denied"], 3, "all share the key that nobody told");
}

#[test]
fn missing_identities_are_counted_and_the_field_is_named() {
    const RULES: &str = r#"{ "identity": { "api_key": { "header": "x-api-key", "required": true } },
      "policies": [ { "name": "p", "match": { "method": "POST" }, "key": ["api_key"], "limits": [ { "rate": "1/s" } ] } ] }"#;
    let report = replay(RULES, COMBINED.as_bytes(), &[]);
    assert_eq!(counts(&report), [5, 4, 0]);
    assert_eq!((&report["unidentified"], &report["policies"][0]["unidentified"]), (&1.into(), &1.into()));
    assert!(report["notes"][0].as_str().unwrap().contains("x-api-key"), "{}", report["notes"]);
}

#[test]
fn older_lines_are_counted_and_grant_nothing() {
    let mut log = COMBINED.to_owned();
    log.push_str("203.0.113.7 - - [29/Nov/2026:00:06:06 +0000] \"GET /a HTTP/1.1\" 200 12 \"-\" \"-\"\n");
    let report = replay(TWO_A_MINUTE, log.as_bytes(), &[]);
    assert_eq!(counts(&report), [6, 3, 3]);
    assert_eq!(report["faults"]["out_of_order"], 1);
    assert_eq!(report["faults"]["first_out_of_order"][0], 6);
}

#[test]
fn reports_as_table_chart_csv_and_svg() {
    let log = file("access.log", COMBINED.as_bytes()).to_str().unwrap().to_owned();
    let rules = rules(TWO_A_MINUTE);
    let table = tollgate(&["replay", &log, "--rules", &rules]);
    for expected in
        ["5 requests in 2s", "admitted", "60.0 %", "net", "ip=203.0.113.7", "2026-11-30T00:06:08Z"]
    {
        assert!(table.stdout.contains(expected), "{expected}: {}", table.stdout);
    }
    table.assert_harmless();
    assert_eq!(table.stderr, "", "no progress bar where there is no terminal");

    let chart = tollgate(&["replay", &log, "--rules", &rules, "--chart"]);
    assert!(chart.stdout.contains("██") && chart.stdout.contains(" 0 + 1 denied\n"), "{}", chart.stdout);

    let csv = tollgate(&["replay", &log, "--rules", &rules, "--format", "csv"]).stdout;
    let lines: Vec<_> = csv.lines().collect();
    assert!(lines.iter().all(|line| line.split(',').count() == 10), "{csv}");
    assert!(
        lines.contains(&"total,,,,5,3,2,,,0") && lines.contains(&"key,net,ip=203.0.113.7,,,2,2,,,"),
        "{csv}"
    );

    let svg = file("out.svg", b"");
    let run = tollgate(&["replay", &log, "--rules", &rules, "--svg", svg.to_str().unwrap()]);
    assert_eq!(run.code, 0);
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.starts_with("<svg xmlns=") && drawn.ends_with("</svg>\n"), "{drawn}");
    assert!(drawn.contains("prefers-color-scheme") && drawn.contains("3 admitted, 2 denied"));
    assert!(drawn.len() < 4000, "{} bytes", drawn.len());
}

#[test]
fn spans_of_time_grow_with_the_log() {
    let mut log = String::from("time,method\n");
    for day in 0..400 {
        let _ = writeln!(log, "{},GET", 1_700_000_000 + day * 86_400);
    }
    let report = replay(TWO_A_MINUTE, log.as_bytes(), &["--buckets", "20"]);
    let buckets = report["buckets"].as_array().unwrap();
    assert!(buckets.len() <= 20);
    assert_eq!(report["bucket_seconds"], 28 * 86_400);
    assert_eq!(buckets.iter().map(|bucket| bucket["admitted"].as_u64().unwrap()).sum::<u64>(), 400);
}

#[test]
fn too_small_a_table_is_told() {
    let mut log = String::from("time,peer\n");
    for n in 0..2000 {
        let _ = writeln!(log, "1700000000,10.0.{}.{}", n / 250, n % 250);
    }
    let report = replay(TWO_A_MINUTE, log.as_bytes(), &["--capacity", "100"]);
    assert!(report["evictions"].as_u64().unwrap() > 1000);
    assert!(report["notes"].to_string().contains("raise --capacity"), "{}", report["notes"]);
}

#[test]
fn header_fields_that_no_line_tells_are_noted() {
    const RULES: &str = r#"{ "identity": { "api_key": { "header": "x-api-key" } }, "policies": [
      { "name": "orders", "key": ["api_key"], "limits": [ { "rate": "2/m" } ] },
      { "name": "both", "key": ["api_key", "ip"], "limits": [ { "rate": "9/m" } ] },
      { "name": "agents", "key": ["header:user-agent"], "limits": [ { "rate": "9/m" } ] },
      { "name": "free", "match": { "header": { "x-plan": "free" } }, "limits": [ { "rate": "9/m" } ] } ] }"#;
    let told = [
        "this log does not tell x-api-key; policy orders counts all requests as one, policy both counts \
         without it. Log it: cli/README.md has a JSON log_format for that",
        "this log does not tell x-plan; policy free looks for it in vain. Log it: cli/README.md has a JSON \
         log_format for that",
    ];
    assert_eq!(replay(RULES, COMBINED.as_bytes(), &[])["notes"], serde_json::json!(told));
    let run = tollgate_with(&["replay", "-", "--rules", &rules(RULES)], COMBINED.as_bytes());
    assert_eq!((run.code, run.stderr), (0, told.map(|note| format!("note: {note}\n")).concat()));
    // One line that tells it is enough.
    assert_eq!(replay(RULES, CSV.as_bytes(), &[])["notes"].as_array().unwrap().len(), 2, "agent and plan");
}

#[test]
fn what_a_log_cannot_tell_is_said() {
    const RULES: &str = r#"{ "policies": [ { "name": "p", "store": "redis",
      "limits": [ { "algorithm": "concurrency", "rate": "1/m" }, { "algorithm": "sliding_log", "rate": "3/m" } ] } ] }"#;
    let report = replay(RULES, COMBINED.as_bytes(), &[]);
    assert_eq!(counts(&report), [5, 3, 2], "the log judges, the concurrency does not");
    let notes = report["notes"].to_string();
    assert!(notes.contains("concurrency is not judged") && notes.contains("Redis"), "{notes}");
}

#[test]
fn what_cannot_be_replayed_says_why() {
    let good = rules(TWO_A_MINUTE);
    let wrong = rules("{}");
    for (args, log, code, expected) in [
        (vec!["replay", "/no/such.log", "--rules", &good], "", 2, "cannot read /no/such.log"),
        (vec!["replay", "/", "--rules", &good], "", 2, "name a file in it"),
        (vec!["replay", "-", "--rules", "/no/such.json"], "", 2, "cannot read /no/such.json"),
        (vec!["replay", "-", "--rules", &wrong], COMBINED, 1, ":1:1: no policy"),
        (vec!["replay", "-", "--rules", "-"], COMBINED, 2, "only one of LOG and --rules can be -"),
        (vec!["replay", "-"], COMBINED, 2, "--rules <FILE>"),
        (vec!["replay", "-", "--rules", &good], "what is this?\n", 1, "name it with --log-format"),
        (
            vec!["replay", "-", "--rules", &good, "--log-format", "json"],
            COMBINED,
            1,
            "no line of <stdin> could be read (line 1: not a JSON object",
        ),
        (vec!["replay", "-", "--rules", &good, "--log-format", "csv"], COMBINED, 1, "one must be time"),
        (
            vec!["replay", "-", "--rules", &good],
            "time,path,path\n",
            1,
            "two columns of the log are named path",
        ),
        (
            vec!["replay", "-", "--rules", &good, "--chart", "--format", "json"],
            COMBINED,
            2,
            "leave out --format",
        ),
        (vec!["replay", "-", "--rules", &good, "--capacity", "0"], COMBINED, 2, "--capacity <KEYS>"),
        (
            vec!["replay", "-", "--rules", &good, "--svg", "/no/such/dir.svg"],
            COMBINED,
            2,
            "cannot write /no/such/dir.svg",
        ),
    ] {
        let run = tollgate_with(&args, log.as_bytes());
        assert_eq!((run.code, run.stdout.as_str()), (code, ""), "{args:?} {}", run.stderr);
        assert!(run.stderr.contains(expected), "{args:?}: {}", run.stderr);
    }
}

#[test]
fn an_empty_log_is_no_error() {
    for log in ["", "\n\n", "time,peer\n"] {
        let report = replay(TWO_A_MINUTE, log.as_bytes(), &[]);
        assert_eq!(counts(&report), [0, 0, 0]);
        let run = tollgate_with(&["replay", "-", "--rules", &rules(TWO_A_MINUTE), "--chart"], log.as_bytes());
        assert!(run.code == 0 && run.stdout.starts_with("0 requests"), "{}", run.stdout);
    }
}
