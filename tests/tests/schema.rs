//! The JSON Schema of the rules format says what the parser says.
//!
//! Documents are drawn, most of them then broken in a few places, and shown to
//! both. What the parser accepts the schema must accept; so what the schema
//! refuses the parser refuses. What only the parser can see is listed in
//! [`ONLY_THE_PARSER_SEES`]: of a document that the schema accepts, every
//! error must be one of those.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};
use tollgate_core::key::Seed;
use tollgate_core::policy::{RuleError, Rules};

const SCHEMA: &str = include_str!("../../core/rules.schema.json");
const MANUAL: &str = include_str!("../../core/RULES.md");

/// Parts of the messages of what a schema cannot say.
const ONLY_THE_PARSER_SEES: [&str; 20] = [
    "the smallest burst of this policy's limits",
    // One place of the document against another.
    "is taken by an earlier policy",
    "this subject has a row already",
    "\"identity\" does not say which header field tells this",
    "values, as the policy's key has parts",
    "header fields are named",
    "\"base\" is longer than \"max\"",
    // A number against the algorithm, the unit or the rate.
    "has no burst apart from its limit",
    "anchor: only fixed_window has one",
    "only fixed_window counts by the calendar month",
    "take longer to refill",
    "is outside 1 to 4294967295 units per period",
    "is outside 1000 ns (1us) to",
    "is too large or too fine",
    "expected a time such as",
    // The inside of a text.
    "expected an address or a network such as",
    "expected an IPv4 address, or",
    "expected 64 hexadecimal digits after",
    // To a schema 1.0 is a whole number.
    "expected a whole number",
    // The text rather than the value: no JSON value has a field twice.
    "this field stands here twice",
];

fn parse(text: &str) -> Result<Rules, Vec<RuleError>> {
    Rules::parse_at(text, Seed([1, 2]), 1_700_000_000_000_000_000)
}

fn schema() -> jsonschema::Validator {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    jsonschema::draft202012::new(&schema).unwrap()
}

/// Shows a document to both.
fn agree(schema: &jsonschema::Validator, document: &Value) -> Result<bool, TestCaseError> {
    let text = document.to_string();
    let refused: Vec<_> =
        schema.iter_errors(document).map(|e| format!("{}: {e}", e.instance_path())).collect();
    match parse(&text) {
        Ok(_) => {
            prop_assert!(refused.is_empty(), "the parser accepts, the schema refuses: {refused:#?}\n{text}");
            Ok(true)
        }
        Err(errors) => {
            if refused.is_empty() {
                for error in errors {
                    let seen = ONLY_THE_PARSER_SEES.iter().any(|part| error.message.contains(part));
                    prop_assert!(seen, "the schema accepts, the parser refuses: {error}\n{text}");
                    if let Some((_, found)) = error.message.split_once("expected a whole number") {
                        prop_assert!(found.contains(['.', 'e']), "the schema accepts: {error}\n{text}");
                    }
                }
            }
            Ok(false)
        }
    }
}

/// An object of fields of which each may be left out.
fn object(fields: Vec<(&'static str, bool, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let mut all: BoxedStrategy<Map<String, Value>> = Just(Map::new()).boxed();
    for (name, required, value) in fields {
        let value = if required { value.prop_map(Some).boxed() } else { proptest::option::of(value).boxed() };
        all = (all, value)
            .prop_map(move |(mut all, value)| {
                all.extend(value.map(|value| (name.to_string(), value)));
                all
            })
            .boxed();
    }
    all.prop_map(Value::Object).boxed()
}

fn one_of(values: Vec<Value>) -> BoxedStrategy<Value> {
    select(values).boxed()
}

fn list(item: BoxedStrategy<Value>, lens: std::ops::RangeInclusive<usize>) -> BoxedStrategy<Value> {
    proptest::collection::vec(item, lens).prop_map(Value::Array).boxed()
}

fn header_name() -> BoxedStrategy<Value> {
    one_of(vec![
        json!("x-api-key"),
        json!("X-User-Id"),
        json!("a"),
        json!("Forwarded"),
        json!("!#$%&'*+-.^_`|~9"),
    ])
}

fn told() -> BoxedStrategy<Value> {
    object(vec![
        ("header", true, header_name()),
        ("required", false, any::<bool>().prop_map(Value::from).boxed()),
    ])
}

fn limit() -> BoxedStrategy<Value> {
    let rates = [
        "100/s",
        "1/1.5s",
        "700r/m",
        "1000000001/s",
        "4294967295/us",
        "1/3660d",
        "100000/d",
        "5/250ms",
        "007/h",
    ];
    let bucket = object(vec![
        ("rate", true, one_of(rates.map(Value::from).to_vec())),
        ("burst", false, one_of(vec![json!(1), json!(200), json!(1_000)])),
        ("algorithm", false, one_of(vec![json!("token_bucket"), json!("leaky_bucket")])),
    ]);
    let window = object(vec![
        ("rate", true, one_of(rates.map(Value::from).to_vec())),
        ("algorithm", true, one_of(vec![json!("fixed_window")])),
        ("anchor", false, one_of(vec![json!("clock"), json!("first_request")])),
    ]);
    let month = object(vec![
        ("rate", true, one_of(vec![json!("1000000/month")])),
        ("algorithm", true, one_of(vec![json!("fixed_window")])),
    ]);
    let others = ["sliding_window", "sliding_log", "concurrency"].map(Value::from).to_vec();
    let other = object(vec![
        ("rate", true, one_of(vec![json!("10/s"), json!("40/d")])),
        ("algorithm", true, one_of(others)),
    ]);
    prop_oneof![3 => bucket, 1 => window, 1 => other, 1 => month].boxed()
}

fn matcher() -> BoxedStrategy<Value> {
    let method = one_of(vec![json!("GET"), json!("M-SEARCH")]);
    let paths = ["/", "/login", "/a/*", "/*", "/ü\n/x", "/a b?c"].map(Value::from).to_vec();
    let wanted = one_of(vec![json!(true), json!("v"), json!("")]);
    object(vec![
        ("route", false, one_of(vec![json!("create-order"), json!("ü")])),
        ("method", false, prop_oneof![method.clone(), list(method, 1..=3)].boxed()),
        ("host", false, one_of(vec![json!("Example.org")])),
        ("path", false, one_of(paths)),
        ("header", false, object(vec![("x-a", false, wanted.clone()), ("X-B", false, wanted)])),
    ])
}

fn span(values: &[&str]) -> BoxedStrategy<Value> {
    one_of(values.iter().map(|&v| v.into()).collect())
}

/// The fields that policies and the default have in common, with a key of
/// parts that rows can name.
fn policy(name: Option<String>) -> BoxedStrategy<Value> {
    let parts = ["api_key", "user", "tenant", "route", "method", "path", "global", "header:x-b"];
    let keys = prop_oneof![
        Just((json!(["ip"]), json!(["192.0.2.1"]))),
        Just((json!(["ip", "user"]), json!(["2001:db8::7", "u"]))),
        proptest::collection::vec(select(parts.to_vec()), 1..=8)
            .prop_map(|parts| (json!(parts), json!(vec!["v"; parts.len()]))),
    ];
    let is_default = name.is_none();
    let rest = object(vec![
        ("name", false, one_of(vec![json!("the.default"), json!("D_-9")])),
        ("limits", true, list(limit(), 1..=3)),
        ("match", false, matcher()),
        (
            "cost",
            false,
            prop_oneof![
                one_of(vec![json!(0), json!(1), json!(4_294_967_295_u64)]),
                object(vec![
                    ("header", true, header_name()),
                    ("max", true, one_of(vec![json!(1), json!(4_294_967_295_u64)])),
                    ("default", false, one_of(vec![json!(0), json!(7)])),
                ])
            ]
            .boxed(),
        ),
        ("store", false, span(&["local", "redis"])),
        ("on_store_error", false, span(&["local", "allow", "deny"])),
        ("timeout", false, span(&["100us", "10s", "0.005s"])),
        (
            "lease",
            false,
            object(vec![
                ("max", true, one_of(vec![json!(1), json!(50)])),
                ("ttl", false, span(&["1ms", "h", "60m"])),
            ]),
        ),
        ("shards", false, one_of(vec![json!(1), json!(256)])),
        (
            "penalty",
            false,
            object(vec![
                ("base", false, span(&["1ms", "1s"])),
                ("factor", false, one_of(vec![json!(1), json!(1.5), json!(100), json!(100.0)])),
                ("max", false, span(&["1s", "30d"])),
            ]),
        ),
        ("dry_run", false, any::<bool>().prop_map(Value::from).boxed()),
    ]);
    (rest, proptest::option::of((keys, proptest::option::of(list(limit(), 1..=2)))))
        .prop_map(move |(mut policy, key)| {
            if let Some(name) = &name {
                policy["name"] = json!(name);
            }
            let fields = policy.as_object_mut().unwrap();
            if is_default {
                fields.remove("match");
            }
            if let Some(((key, row), limits)) = key {
                fields.insert("key".into(), key);
                fields.extend(limits.map(|l| ("overrides".into(), json!([{ "key": row, "limits": l }]))));
            }
            policy
        })
        .boxed()
}

/// Any legal document, more or less.
fn document() -> impl Strategy<Value = Value> {
    let networks = ["10.0.0.0/8", "192.0.2.1", "2001:db8::/32", "::ffff:10.0.0.0/104", "::1"];
    let ip = object(vec![
        ("trusted_proxies", true, list(one_of(networks.map(Value::from).to_vec()), 1..=3)),
        ("header", false, header_name()),
        ("ipv6_prefix", false, one_of(vec![json!(1), json!(64), json!(128)])),
    ]);
    let identity = object(vec![
        ("api_key", true, told()),
        ("user", true, told()),
        ("tenant", true, told()),
        ("ip", false, ip),
    ]);
    let root = object(vec![
        ("$schema", false, one_of(vec![json!("rules.schema.json")])),
        ("identity", true, identity),
        ("headers", false, span(&["off", "x-ratelimit", "ratelimit-03", "ratelimit"])),
        ("status", false, one_of(vec![json!(400), json!(429), json!(599)])),
        ("status_over", false, one_of(vec![json!(413)])),
        ("status_unavailable", false, one_of(vec![json!(500)])),
        ("default", false, policy(None)),
    ]);
    (root, policy(Some("a".into())), proptest::option::of(policy(Some("b-2._".into())))).prop_map(
        |(mut root, first, second)| {
            root["policies"] = Value::Array([Some(first), second].into_iter().flatten().collect());
            root
        },
    )
}

/// Values that are wrong in most places.
fn odd() -> impl Strategy<Value = Value> {
    let texts = [
        "",
        "x",
        "api_key",
        "header:",
        "header:a b",
        "header:x-c",
        "10/q",
        "0/s",
        "1/999ns",
        "99999999999/s",
        "1/s burst 2",
        "fixed_window 1/s",
        "5ms",
        "1.0000000001s",
        "31d",
        "0s",
        "10.0.0.0/33",
        "10.0.0.0/+8",
        "::1/129",
        "::g",
        "300.1.1.1",
        "GET",
        "get",
        "*",
        "/a*",
        "a/*",
        "/a/*/*",
        "sha256:00",
        "sha256:+f",
        "concurrency",
        "first_request",
        "redis",
        "name with space",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "\u{0}",
        "\n",
        "ü",
        "r/s",
        "1r/s",
        "1/month",
        "1/2month",
        "1/.5s",
        "1/5.s",
    ];
    let numbers = [
        json!(0),
        json!(-1),
        json!(1),
        json!(1.0),
        json!(2.5),
        json!(65),
        json!(129),
        json!(257),
        json!(399),
        json!(600),
        json!(4_294_967_295_u64),
        json!(4_294_967_296_u64),
        json!(1e300),
        json!(u64::MAX),
        json!(0.5),
        json!(101),
    ];
    let shapes = [
        Value::Null,
        json!(true),
        json!(false),
        json!([]),
        json!({}),
        json!([""]),
        json!([[]]),
        json!(["ip", "ip"]),
        json!({ "header": "x" }),
        json!({ "rate": "1/s" }),
        json!([{ "rate": "1/s" }]),
        json!({ "max": 5 }),
        json!(vec!["ip"; 9]),
        json!(vec![json!({ "rate": "1/s" }); 17]),
        json!({ "x y": true }),
        json!({ "x": false }),
    ];
    prop_oneof![
        select(texts.to_vec()).prop_map(Value::from),
        select(numbers.to_vec()),
        select(shapes.to_vec())
    ]
}

const FIELDS: [&str; 24] = [
    "policies",
    "default",
    "identity",
    "name",
    "match",
    "key",
    "limits",
    "rate",
    "burst",
    "algorithm",
    "anchor",
    "overrides",
    "cost",
    "header",
    "max",
    "ttl",
    "lease",
    "penalty",
    "base",
    "method",
    "path",
    "trusted_proxies",
    "colour",
    "Name",
];

#[derive(Clone, Debug)]
enum Break {
    Replace(Value),
    Remove(Index),
    Add(&'static str, Value),
    Repeat(Index),
    Grow(usize),
    Nudge(i64),
    Append(char),
    SwapCase,
}

fn breaks() -> impl Strategy<Value = Break> {
    prop_oneof![
        4 => odd().prop_map(Break::Replace),
        2 => any::<Index>().prop_map(Break::Remove),
        2 => (select(&FIELDS[..]), odd()).prop_map(|(name, value)| Break::Add(name, value)),
        1 => any::<Index>().prop_map(Break::Repeat),
        1 => select(vec![0, 8, 9, 16, 17]).prop_map(Break::Grow),
        2 => select(vec![-1, 1]).prop_map(Break::Nudge),
        2 => select(vec!['*', '/', '0', 'x', ' ', '-', '\n', '+', '%']).prop_map(Break::Append),
        1 => Just(Break::SwapCase),
    ]
}

/// All places of a document.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_string());
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                places(value, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                places(value, &format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

fn broken(mut document: Value, breaks: &[(Index, Break)]) -> Value {
    for (place, how) in breaks {
        let mut all = Vec::new();
        places(&document, "", &mut all);
        let Some(value) = document.pointer_mut(&all[place.index(all.len())]) else { continue };
        match (how, value) {
            (Break::Replace(odd), value) => *value = odd.clone(),
            (Break::Remove(which), Value::Object(fields)) if !fields.is_empty() => {
                let name = fields.keys().nth(which.index(fields.len())).cloned();
                fields.remove(&name.unwrap());
            }
            (Break::Remove(which), Value::Array(items)) if !items.is_empty() => {
                items.remove(which.index(items.len()));
            }
            (Break::Add(name, odd), Value::Object(fields)) => {
                fields.insert((*name).into(), odd.clone());
            }
            (Break::Repeat(which), Value::Array(items)) if !items.is_empty() => {
                let again = items[which.index(items.len())].clone();
                items.push(again);
            }
            (Break::Grow(len), Value::Array(items)) if !items.is_empty() => {
                let last = items[items.len() - 1].clone();
                items.resize(*len, last);
            }
            (Break::Nudge(by), value) if value.is_i64() => {
                *value = json!(value.as_i64().unwrap() + by);
            }
            (Break::Append(c), Value::String(text)) => text.push(*c),
            (Break::SwapCase, Value::String(text)) => {
                let upper = text.to_uppercase();
                *text = if *text == upper { text.to_lowercase() } else { upper };
            }
            _ => {}
        }
    }
    document
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    #[test]
    fn legal_documents_are_legal_to_both(document in document()) {
        thread_local! { static SCHEMA: jsonschema::Validator = schema(); }
        // A few that are drawn break a rule between two places; never one of the schema's.
        SCHEMA.with(|schema| agree(schema, &document))?;
        let refused = SCHEMA.with(|schema| schema.iter_errors(&document).map(|e| e.to_string()).collect::<Vec<_>>());
        prop_assert!(refused.is_empty(), "{refused:?}\n{document}");
    }

    #[test]
    fn broken_documents_are_refused_by_both_or_for_a_listed_reason(
        document in document(),
        breaks in proptest::collection::vec((any::<Index>(), breaks()), 1..3),
    ) {
        thread_local! { static SCHEMA: jsonschema::Validator = schema(); }
        SCHEMA.with(|schema| agree(schema, &broken(document, &breaks)))?;
    }
}

/// The property above would be empty if hardly any document were accepted.
#[test]
fn a_good_share_of_what_is_drawn_is_accepted_and_a_good_share_is_not() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let schema = schema();
    let strategy = (document(), proptest::collection::vec((any::<Index>(), breaks()), 0..3));
    let mut accepted = 0;
    for _ in 0..300 {
        let (document, breaks) = strategy.new_tree(&mut runner).unwrap().current();
        accepted += u32::from(agree(&schema, &broken(document, &breaks)).unwrap());
    }
    assert!((60..=240).contains(&accepted), "{accepted} of 300");
}

#[test]
fn a_field_that_stands_twice_is_the_parsers_to_refuse() {
    let text = r#"{ "default": { "limits": [ { "rate": "1/s", "rate": "2/s" } ] } }"#;
    let errors = parse(text).unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert!(errors[0].to_string().contains("this field stands here twice"), "{errors:#?}");
}

#[test]
fn the_examples_of_the_manual_are_legal_to_both() {
    let schema = schema();
    let mut count = 0;
    for block in MANUAL.split("```json\n").skip(1) {
        let text = block.split("```").next().unwrap();
        let document: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert!(agree(&schema, &document).unwrap(), "{text}\n{:#?}", parse(text).unwrap_err());
        count += 1;
    }
    assert!(count >= 8, "{count} examples");
}

#[test]
fn the_manual_names_every_field_of_the_schema() {
    fn fields(value: &Value, found: &mut Vec<String>) {
        let Value::Object(object) = value else { return };
        for (name, value) in object {
            if name == "properties" {
                found.extend(value.as_object().unwrap().keys().cloned());
            }
            match value {
                Value::Array(items) => items.iter().for_each(|item| fields(item, found)),
                value => fields(value, found),
            }
        }
    }
    let mut found = Vec::new();
    fields(&serde_json::from_str(SCHEMA).unwrap(), &mut found);
    assert!(found.len() > 40);
    for field in found {
        assert!(MANUAL.contains(&format!("`{field}`")), "RULES.md does not say what {field} is");
    }
}
