//! Answers as HTTP, read back by others' parsers: structured fields by one of
//! RFC 9651, bodies as JSON.

use proptest::prelude::*;
use serde_json::Value;
use sfv::{BareItem, List, ListEntry, Parser};
use tollgate_core::http::{
    FIELDS_SIZE, Family, Fields, Item, LIST_SIZE, PROBLEM_SIZE, fields, fields_of, grpc_denial, grpc_missing,
    is_grpc, missing_fields, missing_problem, problem, problem_of,
};
use tollgate_core::limiter::MAX_LAYERS;
use tollgate_core::policy::MAX_NAME;
use tollgate_core::time::whole_seconds;
use tollgate_core::{Algorithm, Decision, Limit, NEVER};
use tollgate_tests::strategies;

const MAX_INTEGER: u64 = 999_999_999_999_999;

fn value<'b>(fields: &Fields, buffer: &'b [u8], name: &str) -> Option<&'b str> {
    let mut found = fields.as_slice().iter().filter(|field| field.name == name);
    let field = found.next()?;
    assert!(found.next().is_none(), "{name} stands there twice");
    Some(std::str::from_utf8(&buffer[field.start..field.end]).unwrap())
}

/// A list of strings with parameters, as the draft has both fields.
fn items(text: &str) -> Vec<(String, Vec<(String, BareItem)>)> {
    let list: List = Parser::new(text).parse().unwrap_or_else(|e| panic!("{e}: {text}"));
    list.into_iter()
        .map(|entry| {
            let ListEntry::Item(item) = entry else { panic!("an inner list: {text}") };
            let BareItem::String(name) = item.bare_item else { panic!("no string: {text}") };
            let params = item.params.into_iter().map(|(key, value)| (key.as_str().to_string(), value));
            (name.as_str().to_string(), params.collect())
        })
        .collect()
}

fn integer(value: &BareItem) -> u64 {
    let BareItem::Integer(integer) = value else { panic!("no integer: {value:?}") };
    u64::try_from(i64::from(*integer)).expect("it is not negative")
}

fn decision(limit: &Limit) -> BoxedStrategy<Decision> {
    let (units, burst) = (limit.limit(), limit.burst());
    let wait = prop_oneof![3 => 1u64..10_000_000_000, 1 => any::<u64>(), 1 => Just(NEVER)];
    (any::<bool>(), 0..=burst, wait, any::<u64>())
        .prop_map(move |(allowed, remaining, wait, reset_after)| Decision {
            allowed,
            limit: units,
            remaining,
            retry_after: if allowed { 0 } else { wait },
            reset_after,
            delay: 0,
        })
        .boxed()
}

fn answers() -> impl Strategy<Value = Vec<(String, Limit, Decision)>> {
    let one = strategies::limit().prop_flat_map(|limit| {
        (prop_oneof![3 => "[A-Za-z0-9._-]{1,64}", 1 => ".{0,80}"], Just(limit), decision(&limit))
    });
    proptest::collection::vec(one, 1..=MAX_LAYERS)
}

fn items_of(answers: &[(String, Limit, Decision)]) -> impl Iterator<Item = Item<'_>> + Clone {
    answers.iter().map(|(name, limit, decision)| Item { name, limit, decision })
}

proptest! {
    /// What is left was not looked at: nothing is said of it.
    #[test]
    fn of_a_cost_that_never_fits_the_limit_alone_is_told(answers in answers(), family in 0usize..4) {
        let (never, family) = (answers.iter().any(|(_, _, d)| d.retry_after == NEVER), Family::ALL[family]);
        let fields = fields_of(family, items_of(&answers), &mut [0; LIST_SIZE]).unwrap();
        let names: Vec<_> = fields.as_slice().iter().map(|field| field.name).collect();
        let tells_more = |name: &&str| !["X-RateLimit-Limit", "RateLimit-Limit", "RateLimit-Policy"].contains(name);
        if family != Family::Off {
            prop_assert_eq!(never, !names.iter().any(tells_more), "{:?}", names);
            prop_assert_eq!(names.iter().filter(|name| !tells_more(name)).count(), 1, "{:?}", names);
        } else if never {
            prop_assert!(names.is_empty(), "{:?}", names);
        }
    }

    #[test]
    fn the_current_drafts_fields_are_as_it_says(answers in answers()) {
        let mut buffer = [0; LIST_SIZE];
        let fields = fields_of(Family::RateLimit, items_of(&answers), &mut buffer).unwrap();
        let policies = items(value(&fields, &buffer, "RateLimit-Policy").unwrap());
        let never = answers.iter().any(|(_, _, decision)| decision.retry_after == NEVER);
        let services = value(&fields, &buffer, "RateLimit");
        prop_assert_eq!(services.is_none(), never);
        let Some(services) = services.map(items) else { return Ok(()) };
        let wait = value(&fields, &buffer, "Retry-After").map(|text| text.parse::<u64>().unwrap());
        prop_assert_eq!(policies.len(), answers.len());
        prop_assert_eq!(services.len(), answers.len());
        for (((name, limit, decision), policy), service) in answers.iter().zip(&policies).zip(&services) {
            prop_assert_eq!(&policy.0, &service.0, "both name the policy alike");
            if name.len() <= MAX_NAME && name.bytes().all(|b| matches!(b, b' '..=b'~')) {
                prop_assert_eq!(&policy.0, name);
            }
            // Exactly the draft's parameters: q, then qu or w; r and t.
            let names: Vec<_> = policy.1.iter().map(|(name, _)| name.as_str()).collect();
            let whole = limit.period() % 1_000_000_000 == 0;
            let expected = match (limit.algorithm(), whole) {
                (Algorithm::Concurrency, _) => vec!["q", "qu"],
                (_, true) => vec!["q", "w"],
                (_, false) => vec!["q"],
            };
            prop_assert_eq!(&names, &expected);
            prop_assert_eq!(integer(&policy.1[0].1), limit.limit());
            match names.get(1) {
                Some(&"w") => prop_assert_eq!(integer(&policy.1[1].1), limit.period() / 1_000_000_000),
                Some(_) => prop_assert!(matches!(&policy.1[1].1, BareItem::String(s) if s.as_str() == "concurrent-requests")),
                None => {}
            }
            let names: Vec<_> = service.1.iter().map(|(name, _)| name.as_str()).collect();
            prop_assert_eq!(names, ["r", "t"]);
            prop_assert_eq!(integer(&service.1[0].1), decision.remaining);
            let window = integer(&service.1[1].1);
            let own_wait = if decision.retry_after == NEVER { 0 } else { decision.retry_after };
            let reset = whole_seconds(decision.reset_after.max(own_wait)).min(MAX_INTEGER);
            prop_assert!(window <= reset);
            if let Some(wait) = wait {
                prop_assert!(window <= wait, "Retry-After names a time before the end of a window");
            } else {
                prop_assert_eq!(window, reset);
            }
        }
    }

    #[test]
    fn retry_after_is_the_slowest_violated_limits_rounded_up(answers in answers(), family in 0usize..4) {
        let mut buffer = [0; LIST_SIZE];
        let fields = fields_of(Family::ALL[family], items_of(&answers), &mut buffer).unwrap();
        let denied = answers.iter().filter(|(_, _, d)| !d.allowed).map(|(_, _, d)| d.retry_after).max();
        let told = value(&fields, &buffer, "Retry-After").map(|text| text.parse::<u64>().unwrap());
        prop_assert_eq!(told, denied.filter(|wait| *wait != NEVER).map(|wait| wait.div_ceil(1_000_000_000)));
        prop_assert!(told != Some(0));
        let resets = ["X-RateLimit-Reset", "RateLimit-Reset"];
        for text in resets.into_iter().filter_map(|name| value(&fields, &buffer, name)) {
            let reset: u64 = text.parse().unwrap();
            prop_assert!(told.is_none_or(|wait| reset >= wait), "{reset} is before {told:?}");
        }
        if let Some(text) = value(&fields, &buffer, "RateLimit") {
            let longest = items(text).iter().map(|(_, params)| integer(&params[1].1)).max();
            let wait = told.map(|wait| wait.min(MAX_INTEGER));
            prop_assert!(wait.is_none() || longest == wait, "{longest:?} is not {told:?}");
        }
        for field in fields.as_slice() {
            let value = &buffer[field.start..field.end];
            prop_assert!(value.iter().all(|b| matches!(b, b' '..=b'~')), "{}: {value:?}", field.name);
        }
    }

    #[test]
    fn the_problem_names_all_that_denied(answers in answers(), status in 400u16..600) {
        let mut buffer = [0; LIST_SIZE];
        let len = problem_of(status, items_of(&answers), &mut buffer).unwrap();
        let denied: Vec<_> = answers.iter().filter(|(_, _, d)| !d.allowed).collect();
        if denied.is_empty() {
            prop_assert_eq!(len, 0);
            return Ok(());
        }
        let body: Value = serde_json::from_slice(&buffer[..len]).unwrap();
        prop_assert_eq!(body["type"].as_str(), Some("https://iana.org/assignments/http-problem-types#quota-exceeded"));
        prop_assert!(body["title"].is_string() && body["detail"].is_string());
        prop_assert_eq!(body["status"].as_u64(), Some(status.into()));
        let violated = body["violated-policies"].as_array().unwrap();
        prop_assert_eq!(violated.len(), denied.len());
        for (told, (name, ..)) in violated.iter().zip(&denied) {
            let told = told.as_str().unwrap();
            prop_assert!(!told.chars().any(|c| c < ' ') && told.len() <= MAX_NAME);
            if name.len() <= MAX_NAME && !name.chars().any(|c| c < ' ') {
                prop_assert_eq!(told, name);
            }
        }
        let wait = denied.iter().map(|(_, _, d)| d.retry_after).max().unwrap();
        let expected = (wait != NEVER).then(|| wait.div_ceil(1_000_000_000));
        prop_assert_eq!(body["retry_after"].as_u64(), expected);
    }

    #[test]
    fn the_sizes_are_always_enough_and_a_small_buffer_is_an_error(answers in answers(), room in 0usize..700) {
        let (name, limit, decision) = &answers[0];
        for family in Family::ALL {
            prop_assert!(fields(family, name, limit, decision, &mut [0; FIELDS_SIZE]).is_ok());
            let mut small = vec![0; room];
            if let Ok(fields) = fields_of(family, items_of(&answers), &mut small) {
                prop_assert!(fields.as_slice().iter().all(|field| field.end <= room));
            }
        }
        prop_assert!(problem(429, name, decision, &mut [0; PROBLEM_SIZE]).is_ok());
        prop_assert!(grpc_denial(name, decision, &mut [0; FIELDS_SIZE]).is_ok());
        prop_assert!(grpc_missing(name, &mut [0; FIELDS_SIZE]).is_ok());
        prop_assert!(missing_fields(name, &mut [0; FIELDS_SIZE]).is_ok());
        prop_assert!(missing_problem(name, &mut [0; PROBLEM_SIZE]).is_ok());
        let mut small = vec![0; room];
        let _ = (grpc_denial(name, decision, &mut small), missing_problem(name, &mut small), problem_of(429, items_of(&answers), &mut small));
    }

    #[test]
    fn a_grpc_message_is_printable_and_decodes(name in ".{0,80}", wait in 1u64..u64::MAX) {
        let decision = Decision { allowed: false, limit: 1, remaining: 0, retry_after: wait, reset_after: wait, delay: 0 };
        let mut buffer = [0; FIELDS_SIZE];
        let fields = grpc_denial(&name, &decision, &mut buffer).unwrap();
        prop_assert_eq!(value(&fields, &buffer, "content-type"), Some("application/grpc"));
        prop_assert_eq!(value(&fields, &buffer, "grpc-status"), Some("8"));
        let message = value(&fields, &buffer, "grpc-message").unwrap();
        prop_assert!(message.bytes().all(|b| matches!(b, b' '..=b'~')));
        let mut decoded = Vec::new();
        let mut bytes = message.bytes();
        while let Some(byte) = bytes.next() {
            if byte == b'%' {
                let hex: Vec<u8> = bytes.by_ref().take(2).collect();
                decoded.push(u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap());
            } else {
                decoded.push(byte);
            }
        }
        let decoded = String::from_utf8(decoded).unwrap();
        let rest = decoded.strip_prefix("The limit ").unwrap();
        let (told, _) = rest.rsplit_once(" is reached. Try again in ").unwrap();
        prop_assert!(name.starts_with(told) && (told == name || told.len() > MAX_NAME - 4));
    }
}

#[test]
fn two_policies_give_two_items() {
    let orders: Limit = "100/s burst 200".parse().unwrap();
    let net: Limit = "50/1.5s".parse().unwrap();
    let flight: Limit = "concurrency 20/30s".parse().unwrap();
    let first =
        Decision { allowed: true, limit: 100, remaining: 42, retry_after: 0, reset_after: 1, delay: 0 };
    let second = Decision {
        allowed: false,
        limit: 50,
        remaining: 0,
        retry_after: 1_400_000_000,
        reset_after: 9_000_000_000,
        delay: 0,
    };
    let items = [
        Item { name: "orders", limit: &orders, decision: &first },
        Item { name: "net", limit: &net, decision: &second },
        Item { name: "flight", limit: &flight, decision: &first },
    ];
    let mut buffer = [0; LIST_SIZE];
    let fields = fields_of(Family::RateLimit, items.iter().copied(), &mut buffer).unwrap();
    assert_eq!(
        value(&fields, &buffer, "RateLimit-Policy"),
        Some("\"orders\";q=100;w=1, \"net\";q=50, \"flight\";q=20;qu=\"concurrent-requests\"")
    );
    assert_eq!(
        value(&fields, &buffer, "RateLimit"),
        Some("\"orders\";r=42;t=1, \"net\";r=0;t=2, \"flight\";r=42;t=1")
    );
    assert_eq!(value(&fields, &buffer, "Retry-After"), Some("2"));
    let fields = fields_of(Family::XRateLimit, items.iter().copied(), &mut buffer).unwrap();
    assert_eq!(value(&fields, &buffer, "X-RateLimit-Limit"), Some("50"), "the tightest");
    let fields = fields_of(Family::RateLimit, [].into_iter(), &mut buffer).unwrap();
    assert!(fields.as_slice().is_empty(), "an empty list is no field");
}

#[test]
fn a_missing_identity_is_a_401_that_names_the_field() {
    let mut buffer = [0; PROBLEM_SIZE];
    let len = missing_problem("x-api-key", &mut buffer).unwrap();
    let body: Value = serde_json::from_slice(&buffer[..len]).unwrap();
    assert_eq!((body["type"].as_str(), body["title"].as_str()), (Some("about:blank"), Some("Unauthorized")));
    assert_eq!(body["status"], 401);
    assert!(body["detail"].as_str().unwrap().contains("x-api-key"), "{body}");
    let fields = missing_fields("x-api-key", &mut buffer).unwrap();
    assert_eq!(value(&fields, &buffer, "WWW-Authenticate"), Some("ApiKey header=\"x-api-key\""));
    let fields = grpc_missing("x-api-key", &mut buffer).unwrap();
    assert_eq!(value(&fields, &buffer, "grpc-status"), Some("16"));
}

#[test]
fn grpc_is_told_by_its_content_type() {
    for yes in ["application/grpc", "application/grpc+proto", "Application/GRPC;x=y", "application/grpc ; x"]
    {
        assert!(is_grpc(yes.as_bytes()), "{yes}");
    }
    for no in
        ["", "application/grpc-web", "application/grpc-web+proto", "application/json", "application/grp"]
    {
        assert!(!is_grpc(no.as_bytes()), "{no}");
    }
}

/// What `deny` says while Redis is away is not taken for a limit that is reached.
#[test]
fn a_denial_that_no_limit_gave_says_so() {
    let limit: Limit = "10/s".parse().unwrap();
    let second = 1_000_000_000;
    let denied = Decision {
        allowed: false,
        limit: 0,
        remaining: 0,
        retry_after: second,
        reset_after: second,
        delay: 0,
    };
    let mut buffer = [0; PROBLEM_SIZE];
    let len = problem(503, "login", &denied, &mut buffer).unwrap();
    let body: Value = serde_json::from_slice(&buffer[..len]).unwrap();
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        "title": "Limit not available",
        "status": 503,
        "detail": "The limit login cannot be asked at present. Try again in 1 s.",
        "violated-policies": ["login"],
        "retry_after": 1,
    });
    assert_eq!(body, expected);
    assert!(problem(503, &"\"".repeat(MAX_NAME), &denied, &mut buffer).is_ok());

    let mut buffer = [0; FIELDS_SIZE];
    let told = grpc_denial("login", &denied, &mut buffer).unwrap();
    assert_eq!(value(&told, &buffer, "grpc-status"), Some("14"));
    let message = "The limit login cannot be asked at present. Try again in 1 s.";
    assert_eq!(value(&told, &buffer, "grpc-message"), Some(message));
    let told = fields(Family::XRateLimit, "login", &limit, &denied, &mut buffer).unwrap();
    assert_eq!(value(&told, &buffer, "Retry-After"), Some("1"));

    // What can never fit is another thing.
    let never = Decision { retry_after: NEVER, ..denied };
    assert!(denied.is_unavailable() && !never.is_unavailable());
    assert!(!Decision { limit: 10, ..denied }.is_unavailable());
}

#[test]
fn a_penalty_that_takes_longer_than_the_bucket_moves_the_reset() {
    let limit: Limit = "1/s".parse().unwrap();
    let denied = Decision {
        allowed: false,
        limit: 1,
        remaining: 0,
        retry_after: 60_000_000_000,
        reset_after: 500_000_000,
        delay: 0,
    };
    let told = |family, name| {
        let mut buffer = [0; FIELDS_SIZE];
        let fields = fields(family, "login", &limit, &denied, &mut buffer).unwrap();
        assert_eq!(value(&fields, &buffer, "Retry-After"), Some("60"));
        value(&fields, &buffer, name).unwrap().to_owned()
    };
    assert_eq!(told(Family::XRateLimit, "X-RateLimit-Reset"), "60");
    assert_eq!(told(Family::RateLimit03, "RateLimit-Reset"), "60");
    assert_eq!(told(Family::RateLimit, "RateLimit"), "\"login\";r=0;t=60");
}
