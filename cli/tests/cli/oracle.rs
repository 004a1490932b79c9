//! The command decides as the core does, request by request, and in memory
//! that does not grow with the log.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::Stdio;

use serde_json::Value;
use tollgate_core::key::Seed;
use tollgate_core::policy::{Attributes, KeyRoom, Outcome, Rules, check};
use tollgate_core::table::{Config, OwnedTable};

use crate::common::{TWO_A_MINUTE, command, replay, rules, tollgate};

const RULES: &str = r#"{
  "identity": { "api_key": { "header": "x-api-key", "required": true }, "user": { "header": "x-user" },
                "ip": { "trusted_proxies": ["10.0.0.0/8"], "header": "x-forwarded-for" } },
  "policies": [
    { "name": "orders", "match": { "path": "/orders/*", "method": "POST" }, "key": ["api_key"], "cost": { "header": "x-cost", "max": 5 },
      "limits": [ { "rate": "6/m", "burst": 9 }, { "algorithm": "sliding_window", "rate": "40/h" } ],
      "overrides": [ { "key": ["key-1"], "limits": [ { "rate": "90/m" } ] } ] },
    { "name": "net", "key": ["ip"], "limits": [ { "algorithm": "fixed_window", "rate": "7/m" } ] },
    { "name": "login", "match": { "path": "/login" }, "key": ["user", "ip"], "limits": [ { "rate": "2/m" } ],
      "penalty": { "base": "5s", "max": "2m" } },
    { "name": "trial", "key": ["route", "method"], "dry_run": true, "limits": [ { "algorithm": "sliding_log", "rate": "20/m" } ] },
    { "name": "even", "match": { "host": "b.example" }, "limits": [ { "algorithm": "leaky_bucket", "rate": "12/m", "burst": 4 } ] }
  ] }"#;

/// One made-up request.
struct Request {
    millis: u64,
    method: &'static str,
    path: &'static str,
    host: &'static str,
    route: &'static str,
    peer: &'static str,
    /// In the order of [`NAMES`].
    headers: [Option<String>; 4],
}

const NAMES: [&str; 4] = ["x-api-key", "x-user", "x-forwarded-for", "x-cost"];

fn requests(count: u64, step_ms: u64) -> Vec<Request> {
    let mut state = 7u64;
    let mut below = move |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut all = Vec::new();
    for n in 0..count {
        // A few come late.
        let late = if below(50) == 0 { below(3 * step_ms + 1) } else { 0 };
        let mut pick = |choices: &[&'static str]| choices[below(choices.len() as u64) as usize];
        let method = pick(&["GET", "POST"]);
        let path = pick(&["/orders/1", "/login", "/a b", "/"]);
        let host = pick(&["a.example", "b.example", ""]);
        let route = pick(&["", "r", "s"]);
        let peer = pick(&["10.0.0.1", "203.0.113.7", "2001:db8::1", "2001:db8::2", "198.51.100.4"]);
        let mut some = |name: &str, kinds: u64, seldom: u64| {
            (below(seldom) != 0).then(|| format!("{name}{}", below(kinds)))
        };
        let headers = [some("key-", 4, 20), some("u", 3, 3), some("192.0.2.", 5, 3), some("", 7, 3)];
        let millis = 1_800_000_000_000 + n * step_ms - late;
        all.push(Request { millis, method, path, host, route, peer, headers });
    }
    all
}

/// Was it admitted, and which policies denied or would have? None without identity.
type Verdict = Option<(bool, Vec<usize>)>;

/// What the core says of each: admitted, denied (with the policies that
/// denied or would have), or no identity.
fn core(requests: &[Request]) -> Vec<Verdict> {
    let rules = Rules::parse(RULES, Seed([5, 6])).unwrap();
    let owned =
        OwnedTable::new(Config { capacity: 1 << 16, rows: 64, row_entries: 20 }, Seed([7, 8])).unwrap();
    let table = owned.table().unwrap();
    let ask = |request: &Request| {
        let value = |name: &String| {
            let at = NAMES.iter().position(|known| known == name)?;
            request.headers[at].as_deref().map(str::as_bytes)
        };
        let headers: Vec<_> = rules.headers().iter().map(value).collect();
        let attributes = Attributes {
            route: request.route.as_bytes(),
            method: request.method.as_bytes(),
            host: request.host.as_bytes(),
            path: request.path.as_bytes(),
            peer: Some(request.peer.parse::<IpAddr>().unwrap()),
            headers: &headers,
        };
        let mut room = KeyRoom::new();
        let selection = rules.select(&attributes, &mut room).ok()?;
        let answer = check(&rules, &table, &selection, request.millis * 1_000_000);
        let outcomes = selection.layers().zip(answer.outcomes());
        let hit = outcomes.filter(|(_, outcome)| matches!(outcome, Outcome::Denied | Outcome::WouldDeny));
        let mut policies: Vec<_> = hit.map(|(layer, _)| layer.policy).collect();
        policies.dedup();
        Some((answer.allowed, policies))
    };
    requests.iter().map(ask).collect()
}

fn csv(requests: &[Request]) -> String {
    let mut log = format!("time,method,path,host,route,peer,{}\n", NAMES.join(","));
    for r in requests {
        let (seconds, millis) = (r.millis / 1000, r.millis % 1000);
        let _ =
            write!(log, "{seconds}.{millis:03},{},{},{},{},{}", r.method, r.path, r.host, r.route, r.peer);
        r.headers.iter().for_each(|value| {
            let _ = write!(log, ",{}", value.as_deref().unwrap_or(""));
        });
        log.push('\n');
    }
    log
}

fn json(requests: &[Request]) -> String {
    let mut log = String::new();
    for r in requests {
        let mut fields = serde_json::json!({
            "msec": format!("{}.{:03}", r.millis / 1000, r.millis % 1000), "request_method": r.method,
            "uri": r.path, "host": r.host, "route": r.route, "remote_addr": r.peer });
        for (name, value) in NAMES.iter().zip(&r.headers) {
            fields[format!("http_{}", name.replace('-', "_"))] = value.clone().unwrap_or_default().into();
        }
        let _ = writeln!(log, "{fields}");
    }
    log
}

#[test]
fn each_verdict_is_the_core_s() {
    // One request a second: each has a span of time of its own.
    let mut requests = requests(9_000, 1_000);
    let mut seen = std::collections::BTreeSet::new();
    requests.retain(|request| seen.insert(request.millis / 1000));
    let verdicts = core(&requests);
    let expected: BTreeMap<u64, [u64; 3]> = requests
        .iter()
        .zip(&verdicts)
        .map(|(request, verdict)| {
            let told = match verdict {
                Some((allowed, _)) => [u64::from(*allowed), u64::from(!*allowed), 0],
                None => [0, 0, 1],
            };
            (request.millis / 1000, told)
        })
        .collect();
    for log in [csv(&requests), json(&requests)] {
        let report = replay(RULES, log.as_bytes(), &["--buckets", "10000"]);
        assert_eq!(report["bucket_seconds"], 1);
        let mut compared = 0;
        for (index, bucket) in report["buckets"].as_array().unwrap().iter().enumerate() {
            let second = requests.iter().map(|r| r.millis / 1000).min().unwrap() + index as u64;
            let found = ["admitted", "denied", "unidentified"].map(|name| bucket[name].as_u64().unwrap());
            assert_eq!(found, expected.get(&second).copied().unwrap_or_default(), "second {second}");
            compared += found.iter().sum::<u64>();
        }
        assert_eq!(compared as usize, requests.len());
        assert_totals(&report, &verdicts);
    }
    let denied = verdicts.iter().flatten().filter(|(allowed, _)| !allowed).count();
    assert!(denied > 1000 && denied < 8000, "{denied} of {} were denied: both ways are seen", requests.len());
}

#[test]
fn counts_by_policy_are_the_core_s_in_a_busy_log() {
    let requests = requests(20_000, 37);
    let verdicts = core(&requests);
    for log in [csv(&requests), json(&requests)] {
        assert_totals(&replay(RULES, log.as_bytes(), &["--top", "1000"]), &verdicts);
    }
}

fn assert_totals(report: &Value, verdicts: &[Verdict]) {
    let count = |of: &dyn Fn(&Verdict) -> bool| verdicts.iter().filter(|v| of(v)).count();
    assert_eq!(report["admitted"], count(&|v| matches!(v, Some((true, _)))));
    assert_eq!(report["denied"], count(&|v| matches!(v, Some((false, _)))));
    assert_eq!(report["unidentified"], count(&|v| v.is_none()));
    for (place, policy) in report["policies"].as_array().unwrap().iter().enumerate() {
        let limited = count(&|v| v.as_ref().is_some_and(|(_, policies)| policies.contains(&place)));
        let told = if policy["name"] == "trial" { &policy["would_deny"] } else { &policy["denied"] };
        assert_eq!(*told, limited, "{policy}");
        if report["keys"].as_array().unwrap().len() > 10 {
            let keys =
                report["keys"].as_array().unwrap().iter().filter(|key| key["policy"] == policy["name"]);
            assert_eq!(keys.map(|key| key["denied"].as_u64().unwrap()).sum::<u64>(), limited as u64);
        }
    }
}

#[test]
fn combined_logs_are_decided_as_the_core_decides() {
    let rules = Rules::parse(TWO_A_MINUTE, Seed([5, 6])).unwrap();
    let owned = OwnedTable::new(Config { capacity: 1 << 16, rows: 0, row_entries: 0 }, Seed([7, 8])).unwrap();
    let table = owned.table().unwrap();
    let (mut log, mut denied) = (String::new(), 0);
    for n in 0..20_000u64 {
        let client = n * n % 331;
        let (minute, second) = (n / 600, n / 10 % 60);
        let _ = writeln!(
            log,
            "192.0.{}.{} - - [30/Nov/2026:00:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"",
            client / 256,
            client % 256
        );
        let peer = Some(IpAddr::from([192, 0, (client / 256) as u8, (client % 256) as u8]));
        let request = Attributes { route: b"", method: b"GET", host: b"", path: b"/", peer, headers: &[] };
        let at = (1_795_996_800 + minute * 60 + second) * 1_000_000_000;
        let mut room = KeyRoom::new();
        let selection = rules.select(&request, &mut room).unwrap();
        denied += usize::from(!check(&rules, &table, &selection, at).allowed);
    }
    let report = replay(TWO_A_MINUTE, log.as_bytes(), &[]);
    assert!(denied > 1000);
    assert_eq!(report["denied"], denied);
}

/// The log that speed is measured on; `TOLLGATE_LINES=1000000` takes all of it.
#[test]
fn the_made_up_log_is_decided_as_the_core_decides() {
    const RULES: &str = r#"{ "policies": [
        { "name": "net", "key": ["ip"], "limits": [ { "rate": "1/s", "burst": 5 } ] },
        { "name": "paths", "match": { "method": "POST" }, "key": ["path"], "limits": [ { "algorithm": "sliding_window", "rate": "40/s" } ] },
        { "name": "login", "match": { "path": "/login" }, "key": ["ip"], "limits": [ { "rate": "5/m" } ], "penalty": {} } ] }"#;
    let lines = std::env::var("TOLLGATE_LINES").unwrap_or_else(|_| "50000".to_owned());
    let log = tollgate(&["bench-log", "--lines", &lines]).stdout;
    let rules = Rules::parse(RULES, Seed([5, 6])).unwrap();
    let owned = OwnedTable::new(Config { capacity: 1 << 20, rows: 0, row_entries: 0 }, Seed([7, 8])).unwrap();
    let table = owned.table().unwrap();
    let mut denied = BTreeMap::<u64, u64>::new();
    for line in log.lines() {
        let mut words = line.split(' ');
        let peer = words.next().unwrap().parse().ok();
        let clock = words.nth(2).unwrap().strip_prefix("[01/Nov/2026:").unwrap();
        let clock: Vec<u64> = clock.split(':').map(|number| number.parse().unwrap()).collect();
        let second = 1_793_491_200 + clock[0] * 3600 + clock[1] * 60 + clock[2];
        let method = words.nth(1).unwrap().strip_prefix('"').unwrap();
        let path = words.next().unwrap().split('?').next().unwrap().replace("%e2%82%ac", "€");
        let (method, path) = (method.as_bytes(), path.as_bytes());
        let request = Attributes { route: b"", method, host: b"", path, peer, headers: &[] };
        let mut room = KeyRoom::new();
        let selection = rules.select(&request, &mut room).unwrap();
        let answer = check(&rules, &table, &selection, second * 1_000_000_000);
        *denied.entry(second).or_default() += u64::from(!answer.allowed);
    }
    let report = replay(RULES, log.as_bytes(), &["--buckets", "10000"]);
    assert_eq!(report["requests"], log.lines().count());
    let found = report["buckets"].as_array().unwrap().iter().map(|bucket| bucket["denied"].as_u64().unwrap());
    assert_eq!(found.collect::<Vec<_>>(), denied.values().copied().collect::<Vec<_>>());
    assert!(denied.values().sum::<u64>() > 1000);
}

/// Peak memory of a replay of so many clients, in KiB.
#[cfg(target_os = "linux")]
fn peak(clients: u32, rules: &str) -> u64 {
    let mut child = command()
        .args(["replay", "-", "--rules", rules, "--format", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut block = String::new();
    for n in 0..clients {
        let [a, b, c, d] = (0x0100_0000 + n).to_be_bytes();
        let _ = writeln!(
            block,
            "{a}.{b}.{c}.{d} - - [30/Nov/2026:00:00:00 +0000] \"GET /{n} HTTP/1.1\" 200 1 \"-\" \"-\""
        );
        if block.len() > 1 << 16 || n + 1 == clients {
            stdin.write_all(block.as_bytes()).unwrap();
            block.clear();
        }
    }
    // All but the last pipeful was read; the process waits for more.
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    drop(stdin);
    let report: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(report["requests"], clients);
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn memory_does_not_grow_with_the_number_of_keys() {
    let rules = rules(TWO_A_MINUTE);
    let (few, many) = (peak(200_000, &rules), peak(1_000_000, &rules));
    assert!(many < few + 1024, "{few} KiB for 200,000 keys, {many} KiB for 1,000,000");
    assert!(many < 64 << 10, "{many} KiB");
}
