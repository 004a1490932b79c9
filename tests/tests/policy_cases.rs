//! Faults that limiters in the field have had, tried on a rules document; and
//! the laws of what a request is counted under.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;
use tollgate_core::Nanos;
use tollgate_core::http::LIST_SIZE;
use tollgate_core::key::Seed;
use tollgate_core::policy::{Answer, Attributes, KeyRoom, Rules, Selection, check, give_back, label};
use tollgate_core::table::{Config, OwnedTable};
use tollgate_core::time::SECOND;

const START: Nanos = 1_000_000 * SECOND;

fn parse(document: &str) -> Rules {
    Rules::parse(document, Seed([1, 2])).unwrap_or_else(|errors| panic!("{errors:#?}"))
}

fn bare<'a>(headers: &'a [Option<&'a [u8]>]) -> Attributes<'a> {
    Attributes { route: b"", method: b"GET", host: b"h", path: b"/", peer: None, headers }
}

struct Gate {
    rules: Rules,
    table: OwnedTable,
}

impl Gate {
    fn new(document: &str) -> Gate {
        let config = Config { capacity: 1024, rows: 16, row_entries: 16 };
        Gate { rules: parse(document), table: OwnedTable::new(config, Seed([3, 4])).unwrap() }
    }

    fn select(&self, route: &str, cost: &str) -> Selection<'_> {
        let headers: Vec<_> = self.rules.headers().iter().map(|_| Some(cost.as_bytes())).collect();
        let request = Attributes { route: route.as_bytes(), ..bare(&headers) };
        self.rules.select(&request, Box::leak(Box::new(KeyRoom::new()))).unwrap()
    }

    fn ask(&self, selection: &Selection<'_>, now: Nanos) -> Answer {
        check(&self.rules, &self.table.table().unwrap(), selection, now)
    }

    /// What a client sees of an answer.
    fn seen(&self, selection: &Selection<'_>, answer: &Answer) -> (BTreeMap<&'static str, String>, Value) {
        let mut buffer = [0; LIST_SIZE];
        let fields = self.rules.write_fields(selection, answer, &mut buffer).unwrap();
        let text = |start: usize, end: usize| String::from_utf8(buffer[start..end].to_vec()).unwrap();
        let fields = fields.as_slice().iter().map(|f| (f.name, text(f.start, f.end))).collect();
        let len = self.rules.write_problem(selection, answer, &mut buffer).unwrap();
        (fields, serde_json::from_slice(&buffer[..len]).unwrap_or(Value::Null))
    }
}

/// Row 7.
#[test]
fn the_client_that_obeys_retry_after_is_admitted() {
    let gate = Gate::new(r#"{ "default": { "limits": [ { "rate": "1/1.5s" } ] } }"#);
    let selection = gate.select("", "");
    assert!(gate.ask(&selection, START).allowed);
    let denied = gate.ask(&selection, START + SECOND / 10);
    let (fields, problem) = gate.seen(&selection, &denied);
    assert_eq!((fields["Retry-After"].as_str(), &problem["retry_after"]), ("2", &Value::from(2)));
    assert!(gate.ask(&selection, START + 2 * SECOND + SECOND / 10).allowed);
}

/// Row 11, and the answer names the limit that denied.
#[test]
fn when_one_limit_denies_the_others_are_not_charged() {
    let gate = Gate::new(
        r#"{ "headers": "ratelimit", "policies": [
             { "name": "group", "limits": [ { "rate": "10/m" } ] },
             { "name": "route", "key": ["route"], "limits": [ { "rate": "3/m" } ] } ] }"#,
    );
    let selection = gate.select("a", "");
    let admitted = (0..5).filter(|_| gate.ask(&selection, START).allowed).count();
    assert_eq!(admitted, 3);
    let (fields, problem) = gate.seen(&selection, &gate.ask(&selection, START));
    assert_eq!(fields["RateLimit-Policy"], "\"group\";q=10;w=60, \"route\";q=3;w=60");
    assert_eq!(fields["RateLimit"], "\"group\";r=7;t=18, \"route\";r=0;t=20");
    assert_eq!(fields["Retry-After"], "20");
    assert_eq!(problem["violated-policies"], serde_json::json!(["route"]));
}

/// Whether they are of one policy or of two.
#[test]
fn of_limits_that_leave_as_much_the_one_that_is_whole_last_is_told() {
    let [minute, day] = [r#"{ "rate": "5/m" }"#, r#"{ "rate": "5/d" }"#];
    for limits in [[minute, day], [day, minute]] {
        let one = format!(r#"[ {{ "name": "a", "limits": [ {} ] }} ]"#, limits.join(", "));
        let two = limits.map(|limit| format!(r#""limits": [ {limit} ] }}"#)).join(r#", { "name": "b", "#);
        for policies in [one, format!(r#"[ {{ "name": "a", {two} ]"#)] {
            let gate = Gate::new(&format!(r#"{{ "policies": {policies} }}"#));
            let selection = gate.select("", "");
            let (fields, _) = gate.seen(&selection, &gate.ask(&selection, START));
            assert_eq!(fields["X-RateLimit-Remaining"], "4", "{policies}");
            assert_eq!(fields["X-RateLimit-Reset"], "17280", "{policies}");
        }
    }
}

/// Row 12.
#[test]
fn windows_keep_the_bounds_of_their_kind() {
    for (algorithm, least, most) in
        [("sliding_log", 10, 10), ("sliding_window", 10, 12), ("fixed_window", 20, 20)]
    {
        let gate = Gate::new(&format!(
            r#"{{ "default": {{ "limits": [ {{ "algorithm": "{algorithm}", "rate": "10/m" }} ] }} }}"#
        ));
        let selection = gate.select("", "");
        let minute = START.next_multiple_of(60 * SECOND);
        let tries = |at: Nanos| (0..12).filter(|_| gate.ask(&selection, at).allowed).count();
        let admitted = tries(minute + 59_900_000_000) + tries(minute + 60_100_000_000);
        assert!((least..=most).contains(&admitted), "{algorithm}: {admitted}");
    }
}

/// Row 18.
#[test]
fn a_cost_above_the_burst_has_its_own_status_and_no_retry_after() {
    let gate = Gate::new(
        r#"{ "policies": [
             { "name": "a", "cost": { "header": "x-cost", "max": 100 }, "limits": [ { "rate": "10/s" } ] },
             { "name": "b", "limits": [ { "rate": "1/h" } ] } ] }"#,
    );
    let over = gate.select("", "16");
    for _ in 0..2 {
        let answer = gate.ask(&over, START);
        assert_eq!(gate.rules.status_of(&answer), 422);
        let (fields, problem) = gate.seen(&over, &answer);
        assert!(fields.keys().eq(&["X-RateLimit-Limit"]), "what is left is not looked at: {fields:?}");
        assert_eq!((&problem["status"], &problem["retry_after"]), (&Value::from(422), &Value::Null));
    }
    let fits = gate.select("", "10");
    assert!(gate.ask(&fits, START).allowed, "the denial cost nothing");
    assert_eq!(gate.rules.status_of(&gate.ask(&fits, START)), 429);
    // Nor is there one when another limit, which time would help, denies as well.
    assert!(!gate.seen(&over, &gate.ask(&over, START)).0.contains_key("Retry-After"));
}

/// A number too large for 64 bits costs the ceiling; what is no number, the default.
#[test]
fn no_claimed_cost_is_cheaper_than_its_ceiling_by_being_absurd() {
    let gate = Gate::new(
        r#"{ "default": { "cost": { "header": "x-cost", "max": 7, "default": 2 }, "limits": [ { "rate": "1000/s" } ] } }"#,
    );
    for (told, cost) in [
        ("3", 3),
        ("0", 0),
        ("007", 7),
        ("8", 7),
        ("18446744073709551616", 7),
        ("99999999999999999999999999", 7),
        ("-1", 2),
        ("+5", 2),
        ("5.0", 2),
        ("", 2),
        (" 5", 2),
        ("٣", 2),
        (&"9".repeat(100), 2),
    ] {
        assert_eq!(gate.select("", told).layers().next().unwrap().cost, cost, "{told:?}");
    }
}

/// Row 22.
#[test]
fn what_is_given_back_at_zero_is_there_and_never_more_than_the_burst() {
    for algorithm in ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"] {
        let gate = Gate::new(&format!(
            r#"{{ "default": {{ "cost": {{ "header": "x-cost", "max": 100 }},
                 "limits": [ {{ "algorithm": "{algorithm}", "rate": "10/h" }} ] }} }}"#
        ));
        let (seven, three, none) = (gate.select("", "7"), gate.select("", "3"), gate.select("", "0"));
        let remaining = || gate.ask(&none, START).decisions()[0].remaining;
        let mut first = gate.ask(&seven, START);
        let mut second = gate.ask(&three, START);
        assert!(first.allowed && second.allowed && remaining() == 0, "{algorithm}");
        let table = gate.table.table().unwrap();
        give_back(&table, &three, &mut second, START);
        assert_eq!(remaining(), 3, "{algorithm}");
        give_back(&table, &seven, &mut first, START);
        assert_eq!(remaining(), 10, "{algorithm}");
        give_back(&table, &seven, &mut first, START);
        assert_eq!(remaining(), 10, "{algorithm}: never above the burst");
    }
}

const HOSTILE: &str = r#"{
  "headers": "ratelimit",
  "identity": { "api_key": { "header": "x-key" }, "user": { "header": "x-user" }, "tenant": { "header": "x-tenant" },
                "ip": { "trusted_proxies": ["10.0.0.0/8"], "header": "forwarded" } },
  "policies": [
    { "name": "all", "key": ["api_key", "user", "tenant", "ip", "route", "method", "path", "header:x-any"],
      "cost": { "header": "x-any", "max": 3 }, "limits": [ { "rate": "1/h", "burst": 3 } ] },
    { "name": "login", "key": ["user"], "limits": [ { "rate": "1/h", "burst": 3 } ], "penalty": {} } ] }"#;

/// Row 23.
#[test]
fn hostile_values_get_a_decision_at_bounded_cost_and_inject_nothing() {
    let gate = Gate::new(HOSTILE);
    let huge = vec![b'x'; 1 << 20];
    let commas = vec![b','; 1 << 20];
    let quotes = [b"for=\"".to_vec(), vec![b'\\'; 1 << 20]].concat();
    let values: [&[u8]; 8] = [
        b"a\r\nSet-Cookie: b\r\n\r\n<html>",
        b"\0\0\0",
        b"\x1b]0;title\x07\x1b[2J",
        b"\xff\xfe\xc3\x28",
        "\u{202e}\u{2028}".as_bytes(),
        &huge,
        &commas,
        &quotes,
    ];
    for value in values {
        let headers = vec![Some(value); gate.rules.headers().len()];
        let request = Attributes {
            route: value,
            method: value,
            host: value,
            path: value,
            peer: Some([10, 0, 0, 1].into()),
            headers: &headers,
        };
        let start = Instant::now();
        for _ in 0..5 {
            let mut room = KeyRoom::new();
            let selection = gate.rules.select(&request, &mut room).unwrap();
            let answer = gate.ask(&selection, START);
            let (fields, problem) = gate.seen(&selection, &answer);
            let visible =
                |text: &str| text.chars().all(|c| !c.is_control() && c != '\u{202e}' && c != '\u{2028}');
            assert!(fields.values().all(|value| visible(value)), "{fields:?}");
            assert!(visible(&problem.to_string()));
            for layer in selection.layers() {
                assert!(layer.key().len() <= 640);
                let label = label(&gate.rules, layer);
                assert!(visible(label.as_str()) && label.as_str().len() <= 120, "{label}");
            }
        }
        // One digest of each value, whatever the number of policies; without optimisation.
        assert!(start.elapsed() < Duration::from_secs(10), "{:?} for {} bytes", start.elapsed(), value.len());
    }
}

/// Row 24: whatever is wrong with it, and wherever it stands.
#[test]
fn a_document_with_one_bad_row_of_ten_thousand_is_refused_whole_and_the_old_rules_stay() {
    let document = |bad: &str| {
        let rows: Vec<String> = (1..=10_000)
            .map(|n| match n {
                4_711 => bad.to_string(),
                n => format!(r#"{{ "key": ["t{n}"], "limits": [ {{ "rate": "10/s" }} ] }}"#),
            })
            .collect();
        format!(
            "{{ \"identity\": {{ \"tenant\": {{ \"header\": \"x-tenant\" }} }}, \"policies\": [ {{ \"name\": \"p\",\
             \"key\": [\"tenant\"], \"limits\": [ {{ \"rate\": \"2/h\" }} ], \"overrides\": [\n{} ] }} ] }}",
            rows.join(",\n")
        )
    };
    let good = document(r#"{ "key": ["t4711"], "limits": [ { "rate": "3/h" } ] }"#);
    let gate = Gate::new(&good);
    let selection = gate.select("", "t4711");
    assert!(gate.ask(&selection, START).allowed);
    for (bad, what) in [
        (r#"{ "key": ["t4711"], "limits": [ { "rate": "0/s" } ] }"#, "is outside 1 to 4294967295"),
        (r#"{ "key": ["t4710"], "limits": [ { "rate": "3/s" } ] }"#, "has a row already"),
        (r#"{ "key": ["a", "b"], "limits": [ { "rate": "3/s" } ] }"#, "expected 1 values"),
        (r#"{ "key": ["t4711"], "limit": [ { "rate": "3/s" } ] }"#, "unknown field"),
        (r#"{ "key": "t4711", "limits": [ { "rate": "3/s" } ] }"#, "expected an array"),
        (r#"{ "key": ["t4711"], "limits": [ { "rate": "3/s" } ] "#, "not JSON"),
        ("\"\\u0000\"", "expected an object"),
    ] {
        let errors = Rules::parse(&document(bad), Seed([1, 2])).unwrap_err();
        assert!(errors.iter().any(|e| e.message.contains(what)), "{what}: {errors:#?}");
        let line = if what == "not JSON" { 4_713 } else { 4_712 };
        assert!(errors.iter().all(|e| e.line == line), "{errors:#?}");
    }
    assert_eq!(gate.ask(&selection, START).decisions()[0].remaining, 1, "what was counted still counts");
}

/// A name is a policy's alone: it is part of every key.
#[test]
fn the_defaults_name_is_taken_as_any_other() {
    let errors = Rules::parse(
        r#"{ "policies": [ { "name": "default", "limits": [ { "rate": "1/s" } ] } ], "default": { "limits": [ { "rate": "1/s" } ] } }"#,
        Seed([1, 2]),
    );
    assert!(errors.unwrap_err()[0].message.contains("is taken"));
}

#[test]
fn three_hundred_thousand_rows_load_and_are_found() {
    let rows: Vec<String> = (0..300_000)
        .map(|n| {
            let rate = 1 + n % 1_000;
            format!(r#"{{"key":["tenant-{}","route-{}"],"limits":[{{"rate":"{rate}/s"}}]}}"#, n / 10, n % 10)
        })
        .collect();
    let rules = parse(&format!(
        r#"{{ "identity": {{ "tenant": {{ "header": "x-tenant" }} }}, "policies": [ {{ "name": "p", "key": ["tenant", "route"],
             "limits": [ {{ "rate": "5000/s" }} ], "overrides": [{}] }} ] }}"#,
        rows.join(",")
    ));
    assert_eq!(rules.policies()[0].overrides().len(), 300_000);
    let limit = |tenant: &str, route: &str| {
        let headers = [Some(tenant.as_bytes())];
        let request = Attributes { route: route.as_bytes(), ..bare(&headers) };
        let mut room = KeyRoom::new();
        let selection = rules.select(&request, &mut room).unwrap();
        let layer = *selection.layers().next().unwrap();
        (layer.limit.limit(), layer.overridden)
    };
    for n in 0..300_000 {
        assert_eq!(limit(&format!("tenant-{}", n / 10), &format!("route-{}", n % 10)), (1 + n % 1_000, true));
    }
    for (tenant, route) in
        [("tenant-30000", "route-0"), ("tenant-0", "route-10"), ("tenant-1route-", "0"), ("", "")]
    {
        assert_eq!(limit(tenant, route), (5_000, false), "{tenant} {route}");
    }
    let overhead = rules.policies()[0].overrides().overhead();
    assert!(overhead <= 64 * 300_000, "{overhead} bytes");
}

/// An override of an address is found however the address is written.
#[test]
fn rows_by_address_match_what_is_counted() {
    let gate = Gate::new(
        r#"{ "policies": [ { "name": "p", "key": ["ip"], "limits": [ { "rate": "1/s" } ], "overrides": [
             { "key": ["192.0.2.1"], "limits": [ { "rate": "2/s" } ] },
             { "key": ["2001:db8:0:1::/64"], "limits": [ { "rate": "3/s" } ] },
             { "key": ["2001:db8:0:2:ffff::7"], "limits": [ { "rate": "4/s" } ] } ] } ] }"#,
    );
    let limit = |peer: &str| {
        let peer = Some(peer.parse::<IpAddr>().unwrap());
        let mut room = KeyRoom::new();
        let selection = gate.rules.select(&Attributes { peer, ..bare(&[]) }, &mut room).unwrap();
        selection.layers().next().unwrap().limit.limit()
    };
    for (peer, expected) in [
        ("192.0.2.1", 2),
        ("::ffff:192.0.2.1", 2),
        ("192.0.2.2", 1),
        ("2001:db8:0:1::9", 3),
        ("2001:db8:0:2::1", 4),
        ("2001:db8:0:3::1", 1),
    ] {
        assert_eq!(limit(peer), expected, "{peer}");
    }
    let twice = r#"{ "policies": [ { "name": "p", "key": ["ip"], "limits": [ { "rate": "1/s" } ], "overrides": [
        { "key": ["::ffff:192.0.2.1"], "limits": [ { "rate": "2/s" } ] },
        { "key": ["192.0.2.1/32"], "limits": [ { "rate": "2/s" } ] } ] } ] }"#;
    assert!(Rules::parse(twice, Seed([1, 2])).unwrap_err()[0].message.contains("has a row already"));
}

/// Policies whose names and keys look alike.
const ALIKE: &str = r#"{
  "identity": { "api_key": { "header": "x-key" }, "user": { "header": "x-user" }, "tenant": { "header": "x-tenant" } },
  "policies": [
    { "name": "a", "key": ["user"], "limits": [ { "rate": "1/s" }, { "rate": "2/s" } ] },
    { "name": "aa", "key": ["user", "tenant"], "limits": [ { "rate": "1/s" }, { "rate": "2/s" } ] },
    { "name": "ab", "key": ["tenant", "user"], "limits": [ { "rate": "1/s" } ] },
    { "name": "penalty", "key": ["api_key", "user"], "limits": [ { "rate": "1/s" } ], "penalty": {} },
    { "name": "ip", "key": ["ip", "path"], "limits": [ { "rate": "1/s" } ] },
    { "name": "all", "key": ["global", "route", "method", "path", "user", "tenant", "api_key", "header:x-b"],
      "limits": [ { "rate": "1/s" } ] } ] }"#;

/// Values that try to look like lengths, digests, names and joints of keys.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(vec![]),
        Just(vec![0]),
        Just(vec![1]),
        Just(vec![0xFF]),
        Just(vec![64]),
        Just(b"a".to_vec()),
        Just(b"aa".to_vec()),
        Just(b"penalty".to_vec()),
        Just(vec![b'x'; 32]),
        Just(vec![b'x'; 64]),
        Just(vec![b'x'; 65]),
        proptest::collection::vec(any::<u8>(), 0..3),
    ];
    proptest::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

/// One request: its strings, and the peer.
#[derive(Clone, Debug)]
struct Drawn {
    values: [Vec<u8>; 7],
    peer: Option<IpAddr>,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let peers = ["1.2.3.4", "::ffff:1.2.3.4", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"];
    let peer = proptest::option::of(select(peers.map(|p| p.parse::<IpAddr>().unwrap()).to_vec()));
    (proptest::array::uniform7(value()), peer).prop_map(|(values, peer)| Drawn { values, peer })
}

/// What each policy counts by, told without the code under test.
fn subject(name: &str, request: &Drawn) -> Vec<Vec<u8>> {
    let [route, method, path, key, user, tenant, b] = &request.values;
    let ip = match request.peer.map(|peer| peer.to_canonical()) {
        None => vec![],
        Some(IpAddr::V4(v4)) => v4.octets().to_vec(),
        Some(IpAddr::V6(v6)) => v6.octets()[..8].to_vec(),
    };
    let parts: &[&Vec<u8>] = match name {
        "a" => &[user],
        "aa" => &[user, tenant],
        "ab" => &[tenant, user],
        "penalty" => &[key, user],
        "ip" => &[&ip, path],
        _ => &[route, method, path, user, tenant, key, b],
    };
    parts.iter().map(|part| part.to_vec()).collect()
}

type Subject = (usize, usize, Vec<Vec<u8>>);

/// The keys of one request, by what they are of.
fn keys(rules: &Rules, request: &Drawn) -> Vec<(Subject, Vec<u8>)> {
    let [route, method, path, rest @ ..] = &request.values;
    assert_eq!(rules.headers(), ["x-key", "x-user", "x-tenant", "x-b"]);
    let headers: Vec<_> = rest.iter().map(|value| Some(value.as_slice())).collect();
    let request_of = Attributes { route, method, host: b"h", path, peer: request.peer, headers: &headers };
    let mut room = KeyRoom::new();
    let selection = rules.select(&request_of, &mut room).unwrap();
    assert!(!selection.overflow());
    selection
        .layers()
        .map(|layer| {
            let name = rules.policies()[layer.policy].name();
            ((layer.policy, layer.index, subject(name, request)), layer.key().to_vec())
        })
        .collect()
}

proptest! {
    #[test]
    fn equal_subjects_have_equal_keys_and_no_others_have(requests in proptest::collection::vec(drawn(), 2..12)) {
        let (rules, again) = (parse(ALIKE), Rules::parse(ALIKE, Seed([9, 9])).unwrap());
        let mut requests = requests;
        // Keys themselves, and their digests, as values.
        let imitations: Vec<Vec<u8>> = requests.iter().flat_map(|r| keys(&rules, r)).map(|(_, key)| key).collect();
        for (index, key) in imitations.into_iter().enumerate().take(40) {
            let mut request = requests[index % requests.len()].clone();
            let digest = key.windows(33).find(|w| w[0] == 0xFF).map(|w| w.to_vec());
            request.values[index % 7] = key.clone();
            request.values[(index + 3) % 7] = digest.unwrap_or(key);
            requests.push(request);
        }
        let (mut by_key, mut by_subject) = (BTreeMap::new(), BTreeMap::new());
        for request in &requests {
            let all = keys(&rules, request);
            prop_assert_eq!(&all, &keys(&again, request), "neither the seed nor the time matters");
            for (subject, key) in all {
                let before = by_key.insert(key.clone(), subject.clone());
                prop_assert!(before.is_none_or(|before| before == subject), "two subjects share a key");
                let before = by_subject.insert(subject, key.clone());
                prop_assert!(before.is_none_or(|before| before == key), "a subject has two keys");
            }
        }
    }
}

#[test]
fn a_quota_of_a_month_begins_anew_when_the_month_does() {
    let document = r#"{ "default": { "limits": [ { "algorithm": "fixed_window", "rate": "3/month" } ] } }"#;
    let refused = Rules::parse(document, Seed([1, 2])).unwrap_err();
    assert!(refused[0].message.contains("does not know the time of day"), "{refused:?}");
    // The host's clock began at noon UTC on 31 January 2024.
    let noon = 1_706_702_400 * SECOND;
    let config = Config { capacity: 64, rows: 0, row_entries: 0 };
    let gate = Gate {
        rules: Rules::parse_at(document, Seed([1, 2]), noon).unwrap(),
        table: OwnedTable::new(config, Seed([3, 4])).unwrap(),
    };
    let selection = gate.select("", "");
    let hour = 3_600 * SECOND;
    let admitted = |at: Nanos| (0..5).filter(|_| gate.ask(&selection, at).allowed).count();
    assert_eq!(admitted(hour), 3);
    assert_eq!(admitted(12 * hour - 1), 0);
    assert_eq!(gate.ask(&selection, 2 * hour).decision().unwrap().retry_after, 10 * hour);
    assert_eq!(admitted(12 * hour), 3, "February");
    assert_eq!(admitted((12 + 29 * 24) * hour - 1), 0, "which has 29 days in 2024");
    assert_eq!(admitted((12 + 29 * 24) * hour), 3, "March");
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_document() {
    let right = r#"{ "policies": [ { "name": "all", "limits": [ { "rate": "3/s" } ] } ] }"#;
    let wrong = right.replace("3/s", "3/fortnight");
    let marked = |text: &str| Rules::parse(&format!("\u{feff}{text}"), Seed([1, 2]));
    assert_eq!(marked(right).unwrap().policies()[0].name(), "all");
    // Places are those that an editor shows.
    assert_eq!(marked(&wrong).unwrap_err(), Rules::parse(&wrong, Seed([1, 2])).unwrap_err());
    assert_eq!(marked("\u{feff}{}").unwrap_err()[0].column, 1, "a second one is");
}

#[test]
fn a_mistake_is_told_with_all_that_is_legal_there() {
    let told = |document: &str| Rules::parse(document, Seed([1, 2])).unwrap_err()[0].message.clone();
    let header = |value: &str| {
        told(&format!(
            r#"{{ "default": {{ "limits": [ {{ "rate": "3/s" }} ] }}, "policies": [ {{ "name": "all",
               "match": {{ "header": {{ "x-api-key": {value} }} }}, "limits": [ {{ "rate": "3/s" }} ] }} ] }}"#
        ))
    };
    assert_eq!(header("false"), "expected true or a string, found false");
    assert_eq!(header("7"), "expected true or a string, found a number");
    let proxy = |network: &str| {
        told(&format!(
            r#"{{ "identity": {{ "ip": {{ "header": "x-forwarded-for", "trusted_proxies": ["{network}"] }} }},
               "default": {{ "limits": [ {{ "rate": "3/s" }} ] }} }}"#
        ))
    };
    let network =
        "expected an address or a network such as 10.0.0.0/8 (/0 to /32) or 2001:db8::/32 (/0 to /128)";
    assert_eq!(proxy("10.0.0.0/33"), network);
    assert_eq!(proxy("2001:db8::/129"), network);
}

/// Documents that are large in the ways that cost parsers their stack or their time.
#[test]
fn no_document_takes_the_parser_down() {
    let deep = "[".repeat(1 << 20);
    let nested = format!("{}1{}", r#"{"identity":"#.repeat(200_000), "}".repeat(200_000));
    let wide = format!("{{{}}}", (0..100_000).map(|n| format!("\"f{n}\":0")).collect::<Vec<_>>().join(","));
    let wrong = format!(r#"{{ "policies": [{}] }}"#, vec!["0"; 100_000].join(","));
    let twice = format!("{{{}}}", vec![r#""policies":[]"#; 64].join(","));
    let start = Instant::now();
    for document in [&deep, &nested, &wide, &wrong, &twice, &"\u{feff}{}".to_string(), &String::new()] {
        let errors = Rules::parse(document, Seed([1, 2])).unwrap_err();
        assert!((1..=100).contains(&errors.len()), "{}", errors.len());
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
