//! Hostile attributes: the same request has the same keys, keys and labels are
//! bounded, labels are printable, and there is a decision.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use tollgate_core::key::Seed;
use tollgate_core::policy::{Attributes, KeyRoom, Rules, check, label};
use tollgate_core::table::{Config, OwnedTable};

const RULES: &str = r#"{
  "identity": { "api_key": { "header": "x-key" }, "user": { "header": "x-user", "required": true },
                "tenant": { "header": "x-tenant" },
                "ip": { "trusted_proxies": ["0.0.0.0/0"], "header": "x-forwarded-for" } },
  "policies": [
    { "name": "all", "key": ["api_key", "tenant", "ip", "route", "method", "path", "header:x-any", "global"],
      "cost": { "header": "x-any", "max": 9 }, "limits": [ { "rate": "9/h" }, { "algorithm": "sliding_window", "rate": "7/s" } ] },
    { "name": "api", "match": { "path": "/a/*", "host": "h" }, "key": ["path", "route"], "limits": [ { "rate": "1/s" } ] },
    { "name": "post", "match": { "method": ["POST"], "header": { "x-any": true } }, "key": ["user"],
      "limits": [ { "rate": "2/h" } ], "penalty": {}, "overrides": [ { "key": ["u"], "limits": [ { "rate": "3/h" } ] } ] } ],
  "default": { "key": ["user"], "limits": [ { "rate": "1/s" } ] } }"#;

static GATE: LazyLock<(Rules, OwnedTable)> = LazyLock::new(|| {
    let config = Config { capacity: 256, rows: 0, row_entries: 0 };
    (
        Rules::parse(RULES, Seed([1, 2])).expect("it is legal"),
        OwnedTable::new(config, Seed([3, 4])).expect("it fits"),
    )
});

#[derive(Debug)]
struct Drawn<'a> {
    values: [&'a [u8]; 9],
    present: u16,
    peer: [u8; 4],
    now: u64,
}

impl<'a> Arbitrary<'a> for Drawn<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (present, peer, now) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
        let mut values = [&b""[..]; 9];
        for value in &mut values {
            let len = usize::from(u.arbitrary::<u8>()?).min(u.len());
            *value = u.bytes(len)?;
        }
        Ok(Drawn { values, present, peer, now })
    }
}

fuzz_target!(|drawn: Drawn<'_>| {
    let (rules, table) = &*GATE;
    let [route, method, host, path, rest @ ..] = drawn.values;
    let headers: Vec<_> = rest
        .into_iter()
        .enumerate()
        .map(|(index, value)| (drawn.present >> index & 1 == 1).then_some(value))
        .take(rules.headers().len())
        .collect();
    let request = Attributes { route, method, host, path, peer: Some(drawn.peer.into()), headers: &headers };
    let [mut room, mut other] = [(); 2].map(|()| KeyRoom::new());
    let Ok(selection) = rules.select(&request, &mut room) else { return };
    let again = rules.select(&request, &mut other).expect("as before");
    assert!(!selection.is_empty());
    for (layer, twin) in selection.layers().zip(again.layers()) {
        assert_eq!(layer.key(), twin.key());
        assert!(layer.key().len() <= 640);
        let label = label(rules, layer);
        assert!(!label.as_str().chars().any(char::is_control));
        assert_eq!(label.name(), rules.policies()[layer.policy].name());
        let fields = rules.key_fields(layer.policy, layer.key());
        assert!(fields.iter().all(|field| !field.value.to_string().chars().any(char::is_control)));
    }
    let answer = check(rules, &table.table().expect("it is there"), &selection, drawn.now);
    assert!(answer.tightest.is_some());
    let _ = rules.explain(&request);
});
