//! A rules document, from text to decisions.

use std::net::IpAddr;

use tollgate_core::key::Seed;
use tollgate_core::policy::{Answer, Attributes, KeyRoom, MAX_NOTICE, Outcome, Rules, check};
use tollgate_core::table::{Config, OwnedTable};
use tollgate_core::{NEVER, Nanos};

const SECOND: Nanos = 1_000_000_000;
const START: Nanos = 1_000_000 * SECOND;

const RULES: &str = r#"{
  "identity": {
    "api_key": { "header": "X-Api-Key", "required": true },
    "user":    { "header": "x-user-id" },
    "ip":      { "trusted_proxies": ["10.0.0.0/8"], "header": "x-forwarded-for", "ipv6_prefix": 64 }
  },
  "policies": [
    { "name": "orders",
      "match": { "route": "create-order", "method": "POST" },
      "key": ["api_key"],
      "limits": [ { "rate": "100/s", "burst": 3 }, { "algorithm": "sliding_window", "rate": "100000/d" } ],
      "overrides": [ { "key": ["shop-a"], "limits": [ { "rate": "500/s", "burst": 5 } ] } ] },
    { "name": "ip-net", "match": {}, "key": ["ip"], "limits": [ { "rate": "50/s", "burst": 50 } ] },
    { "name": "login", "match": { "path": "/login" }, "key": ["user", "ip"],
      "limits": [ { "rate": "5/m" } ], "penalty": { "base": "1s", "factor": 2, "max": "15m" } }
  ],
  "default": { "limits": [ { "rate": "10/s", "burst": 20 } ], "key": ["route"] }
}"#;

struct Gate {
    rules: Rules,
    table: OwnedTable,
}

impl Gate {
    fn new(document: &str) -> Gate {
        let rules = Rules::parse(document, Seed([1, 2])).unwrap_or_else(|errors| panic!("{errors:#?}"));
        let config = Config { capacity: 1024, rows: 16, row_entries: 16 };
        Gate { rules, table: OwnedTable::new(config, Seed([3, 4])).unwrap() }
    }

    fn ask(&self, request: &[(&str, &str)], now: Nanos) -> Answer {
        let find = |name: &str| request.iter().find(|(n, _)| *n == name).map(|(_, v)| v.as_bytes());
        let headers: Vec<_> = self.rules.headers().iter().map(|name| find(name)).collect();
        let attributes = Attributes {
            route: find(":route").unwrap_or(b""),
            method: find(":method").unwrap_or(b"GET"),
            host: find(":host").unwrap_or(b"example.org"),
            path: find(":path").unwrap_or(b"/"),
            peer: find(":peer")
                .map(|peer| std::str::from_utf8(peer).unwrap().parse::<IpAddr>().unwrap())
                .or(Some([192, 0, 2, 1].into())),
            headers: &headers,
        };
        let mut room = KeyRoom::new();
        let selection = self.rules.select(&attributes, &mut room).expect("every identity is told");
        check(&self.rules, &self.table.table().unwrap(), &selection, now)
    }

    fn admitted(&self, request: &[(&str, &str)], times: usize, now: Nanos) -> usize {
        (0..times).filter(|_| self.ask(request, now).allowed).count()
    }
}

const ORDER: [(&str, &str); 3] = [(":route", "create-order"), (":method", "POST"), ("x-api-key", "k")];

#[test]
fn layers_and_overrides_apply() {
    let gate = Gate::new(RULES);
    assert_eq!(gate.rules.headers(), ["x-api-key", "x-user-id", "x-forwarded-for"]);
    assert_eq!(gate.admitted(&ORDER, 10, START), 3);
    let shop = [(":route", "create-order"), (":method", "POST"), ("x-api-key", "shop-a")];
    assert_eq!(gate.admitted(&shop, 10, START), 5);
}

#[test]
fn a_denied_layer_leaves_the_others_untouched() {
    let gate = Gate::new(
        r#"{ "policies": [
            { "name": "group", "limits": [ { "rate": "10/m" } ] },
            { "name": "route", "key": ["route"], "limits": [ { "rate": "3/m" } ] } ] }"#,
    );
    assert_eq!(gate.admitted(&[(":route", "a")], 5, START), 3);
    let answer = gate.ask(&[(":route", "a")], START);
    assert_eq!(answer.outcomes(), [Outcome::Spared, Outcome::Denied]);
    assert_eq!(answer.decisions()[0].remaining, 7);
    assert_eq!(answer.tightest, Some(1));
    assert_eq!(gate.admitted(&[(":route", "b")], 9, START), 3, "another route has its own");
}

#[test]
fn a_missing_identity_is_named() {
    let gate = Gate::new(RULES);
    let attributes = Attributes {
        route: b"create-order",
        method: b"POST",
        host: b"",
        path: b"/",
        peer: None,
        headers: &[None, None, None],
    };
    let mut room = KeyRoom::new();
    let missing = gate.rules.select(&attributes, &mut room).unwrap_err();
    assert_eq!((missing.policy, missing.header), ("orders", "x-api-key"));
}

#[test]
fn clients_behind_a_proxy_are_told_apart_and_forged_chains_are_not_believed() {
    let gate = Gate::new(
        r#"{ "identity": { "ip": { "trusted_proxies": ["10.0.0.0/8"], "header": "x-forwarded-for" } },
             "policies": [ { "name": "p", "key": ["ip"], "limits": [ { "rate": "2/m" } ] } ] }"#,
    );
    let via = |chain| [(":peer", "10.0.0.1"), ("x-forwarded-for", chain)];
    assert_eq!(gate.admitted(&via("1.1.1.1"), 5, START), 2);
    assert_eq!(gate.admitted(&via("9.9.9.9, 1.1.1.1"), 5, START), 0, "the client's own words do not count");
    assert_eq!(gate.admitted(&via("2.2.2.2"), 5, START), 2);
    assert_eq!(gate.admitted(&[(":peer", "3.3.3.3"), ("x-forwarded-for", "4.4.4.4")], 5, START), 2);
    assert_eq!(gate.admitted(&[(":peer", "3.3.3.3"), ("x-forwarded-for", "5.5.5.5")], 5, START), 0);
    assert_eq!(gate.admitted(&[(":peer", "::ffff:3.3.3.3")], 5, START), 0, "the same address");
}

#[test]
fn a_dry_run_counts_and_never_stands_in_the_way() {
    let gate =
        Gate::new(r#"{ "policies": [ { "name": "p", "dry_run": true, "limits": [ { "rate": "2/m" } ] } ] }"#);
    let outcomes: Vec<_> =
        (0..4).map(|_| gate.ask(&[], START)).map(|a| (a.allowed, a.outcomes()[0])).collect();
    let (admitted, would_deny) = ((true, Outcome::Admitted), (true, Outcome::WouldDeny));
    assert_eq!(outcomes, [admitted, admitted, would_deny, would_deny]);
}

#[test]
fn penalties_grow_are_bounded_and_are_forgotten_after_quiet() {
    let gate = Gate::new(
        r#"{ "policies": [ { "name": "login", "limits": [ { "rate": "1000/s", "burst": 1 } ],
             "penalty": { "base": "1s", "factor": 2, "max": "5s" } } ] }"#,
    );
    let mut now = START;
    let mut waits = Vec::new();
    for _ in 0..5 {
        assert!(gate.ask(&[], now).allowed);
        let denied = gate.ask(&[], now);
        assert!(!denied.allowed);
        let wait = denied.decision().unwrap().retry_after;
        waits.push(wait / SECOND);
        assert!(!gate.ask(&[], now + wait - 1).allowed, "it still has to wait");
        now += wait;
    }
    assert_eq!(waits, [1, 2, 4, 5, 5]);
    now += 5 * SECOND;
    assert!(gate.ask(&[], now).allowed);
    assert_eq!(gate.ask(&[], now).decision().unwrap().retry_after, SECOND, "forgotten");
}

#[test]
fn costs_come_from_a_header_under_a_ceiling() {
    let gate = Gate::new(
        r#"{ "policies": [ { "name": "p", "cost": { "header": "x-cost", "max": 10 }, "limits": [ { "rate": "20/m" } ] } ] }"#,
    );
    assert_eq!(gate.ask(&[("x-cost", "4")], START).decisions()[0].remaining, 16);
    assert_eq!(gate.ask(&[("x-cost", "1000000")], START).decisions()[0].remaining, 6);
    assert_eq!(gate.ask(&[("x-cost", "-3")], START).decisions()[0].remaining, 5);
    assert!(!gate.ask(&[("x-cost", "6")], START).allowed);
}

#[test]
fn a_cost_above_the_burst_never_fits() {
    let gate =
        Gate::new(r#"{ "policies": [ { "name": "p", "cost": 16, "limits": [ { "rate": "10/s" } ] } ] }"#);
    assert_eq!(gate.ask(&[], START).decision().unwrap().retry_after, NEVER);
}

#[test]
fn the_default_is_for_what_no_policy_matches() {
    let gate = Gate::new(
        r#"{ "policies": [ { "name": "api", "match": { "path": "/api/*" }, "limits": [ { "rate": "1/m" } ] } ],
             "default": { "limits": [ { "rate": "2/m" } ] } }"#,
    );
    assert_eq!(gate.admitted(&[(":path", "/api/x")], 5, START), 1);
    assert_eq!(gate.admitted(&[(":path", "/apix")], 5, START), 2);
}

#[test]
fn everything_that_is_wrong_is_told_at_once_with_its_place() {
    let errors = Rules::parse(
        "{\n  \"policies\": [\n    { \"name\": \"a b\", \"limits\": [ { \"rate\": \"10/q\" } ] },\n    { \"name\": \"x\", \"key\": [\"tenant\"], \"limits\": [], \"color\": 1 }\n  ]\n}",
        Seed([0, 0]),
    )
    .unwrap_err();
    let told: Vec<_> = errors.iter().map(|e| (e.line, e.path.as_str())).collect();
    assert_eq!(
        told,
        [
            (3, "policies[0].name"),
            (3, "policies[0].limits[0].rate"),
            (4, "policies[1].key[0]"),
            (4, "policies[1].limits"),
            (4, "policies[1].color"),
        ],
        "{errors:#?}"
    );
}

#[test]
fn one_bad_row_of_ten_thousand_refuses_the_document_with_its_line() {
    let rows: Vec<String> = (1..=10_000)
        .map(|n| {
            let rate = if n == 4_711 { "ten/s" } else { "10/s" };
            format!("{{ \"key\": [\"tenant-{n}\"], \"limits\": [ {{ \"rate\": \"{rate}\" }} ] }}")
        })
        .collect();
    let document = format!(
        "{{ \"identity\": {{ \"tenant\": {{ \"header\": \"x-tenant\" }} }}, \"policies\": [ {{ \"name\": \"p\", \"key\": [\"tenant\"],\n\"limits\": [ {{ \"rate\": \"1/s\" }} ], \"overrides\": [\n{} ] }} ] }}",
        rows.join(",\n")
    );
    let errors = Rules::parse(&document, Seed([0, 0])).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert_eq!(
        (errors[0].line, errors[0].path.as_str()),
        (4_713, "policies[0].overrides[4710].limits[0].rate")
    );
}

#[test]
fn settings_without_effect_are_told_and_defaults_are_not() {
    let name = "n".repeat(64);
    let document = format!(
        r#"{{ "policies": [
          {{ "name": "daily", "store": "redis", "limits": [ {{ "rate": "1/s" }} ] }},
          {{ "name": "plain", "store": "local", "timeout": "5ms", "shards": 1, "on_store_error": "local",
             "limits": [ {{ "rate": "1/s" }} ] }},
          {{ "name": "{name}", "on_store_error": "deny", "timeout": "1ms", "lease": {{ "max": 2 }}, "shards": 2,
             "limits": [ {{ "rate": "2/s" }} ] }} ],
          "default": {{ "shards": 256, "limits": [ {{ "rate": "1/s", "burst": 256 }} ] }} }}"#
    );
    let gate = Gate::new(&document);
    let told: Vec<_> = gate.rules.notices(true).map(|notice| notice.to_string()).collect();
    assert_eq!(
        told,
        [
            format!("policy {name}: on_store_error, timeout, lease, shards have no effect with store local"),
            "policy default: shards has no effect with store local".to_owned(),
        ]
    );
    assert!(told.iter().all(|line| line.len() <= MAX_NOTICE), "{told:?}");
    let without: Vec<_> = gate.rules.notices(false).map(|notice| notice.to_string()).collect();
    assert_eq!(without[0], "policy daily: counted on this machine, as this host has no Redis");
    assert_eq!(without[1..], told);
    let queue = Gate::new(
        r#"{ "policies": [ { "name": "q", "store": "redis", "lease": { "max": 2 },
             "limits": [ { "algorithm": "leaky_bucket", "rate": "1/s" } ] } ] }"#,
    );
    let told: Vec<_> = queue.rules.notices(true).map(|notice| notice.to_string()).collect();
    assert_eq!(told, ["policy q: lease has no effect where a limit is a leaky_bucket"]);
}

#[test]
fn no_more_shards_than_a_burst_has_units() {
    let document = |shards: u64, row: &str| {
        format!(
            r#"{{ "policies": [ {{ "name": "p", "key": ["route"], "shards": {shards},
               "limits": [ {{ "rate": "300/s" }}, {{ "rate": "9/s", "burst": 9 }} ],
               "overrides": [ {{ "key": ["r"], "limits": [ {{ "rate": "{row}" }} ] }} ] }} ] }}"#
        )
    };
    assert!(Rules::parse(&document(9, "9/s"), Seed([1, 2])).is_ok());
    for (shards, row, smallest) in [(10, "99/s", 9), (9, "8/s", 8)] {
        let errors = Rules::parse(&document(shards, row), Seed([1, 2])).unwrap_err();
        let expected = format!("expected at most {smallest}, the smallest burst of this policy's limits");
        assert_eq!((errors[0].path.as_str(), &errors[0].message), ("policies[0].shards", &expected));
    }
}

#[test]
fn no_more_policies_than_can_be_counted() {
    let policies = |count: usize| {
        let items: Vec<_> = (0..count)
            .map(|n| format!(r#"{{ "name": "p{n}", "limits": [ {{ "rate": "1/s" }} ] }}"#))
            .collect();
        Rules::parse(&format!(r#"{{ "policies": [ {} ] }}"#, items.join(",")), Seed([1, 2]))
    };
    assert!(policies(1024).is_ok());
    let errors = policies(1025).unwrap_err();
    assert_eq!((errors.len(), errors[0].path.as_str()), (1, "policies"));
}

/// The table of the section `penalty` in core/RULES.md.
#[test]
fn denials_while_a_subject_waits_do_not_count_as_further_ones() {
    let gate = Gate::new(
        r#"{ "policies": [ { "name": "login", "limits": [ { "rate": "5/m" } ],
             "penalty": { "base": "1s", "factor": 2, "max": "15m" } } ] }"#,
    );
    assert_eq!(gate.admitted(&[], 5, START), 5);
    let told = [0, 500, 2_000, 5_000, 9_500, 13_000, 17_500].map(|ms: u64| {
        let answer = gate.ask(&[], START + ms * 1_000_000);
        (!answer.allowed).then(|| answer.decision().unwrap().retry_after.div_ceil(SECOND))
    });
    assert_eq!(told, [Some(12), Some(12), Some(10), Some(7), Some(8), Some(5), None]);
    assert_eq!(gate.ask(&[], START + 17_500_000_000).decision().unwrap().retry_after, 16 * SECOND);
}
