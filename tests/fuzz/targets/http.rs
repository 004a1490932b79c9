//! Any name, limit and decision: fields are printable, bodies are JSON, and
//! the stated sizes are enough.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::http::{
    FIELDS_SIZE, Family, Fields, Item, LIST_SIZE, PROBLEM_SIZE, fields, fields_of, grpc_denial, grpc_missing,
    missing_fields, missing_problem, problem, problem_of,
};
use tollgate_core::{Algorithm, Decision, Limit};

type Drawn<'a> = (&'a str, &'a str, u8, u32, u64, u32, [u64; 4], bool, u16);

fn printable(fields: &Fields, buffer: &[u8]) {
    for field in fields.as_slice() {
        let value = &buffer[field.start..field.end];
        assert!(!value.is_empty() && value.iter().all(|byte| matches!(byte, b' '..=b'~')), "{}", field.name);
    }
}

fn json(body: &[u8]) {
    let body: serde_json::Value = serde_json::from_slice(body).expect("it is JSON");
    assert!(body["type"].is_string() && body["title"].is_string() && body["detail"].is_string());
}

fuzz_target!(|drawn: Drawn<'_>| {
    let (
        name,
        other,
        algorithm,
        units,
        period,
        burst,
        [remaining, retry_after, reset_after, delay],
        allowed,
        room,
    ) = drawn;
    let algorithm = Algorithm::ALL[usize::from(algorithm) % Algorithm::ALL.len()];
    let Ok(limit) = Limit::new(algorithm, units.into(), period) else { return };
    let limit = limit.with_burst(burst.into()).unwrap_or(limit);
    let decision = Decision {
        allowed,
        limit: limit.limit(),
        remaining,
        retry_after: if allowed { 0 } else { retry_after },
        reset_after,
        delay,
    };
    let denied = Decision { allowed: false, ..decision };
    let mut buffer = [0; LIST_SIZE];
    let items = [
        Item { name, limit: &limit, decision: &decision },
        Item { name: other, limit: &limit, decision: &denied },
    ];
    for family in Family::ALL {
        let one = fields(family, name, &limit, &decision, &mut buffer[..FIELDS_SIZE]).expect("it is enough");
        printable(&one, &buffer);
        let all = fields_of(family, items.into_iter(), &mut buffer).expect("it is enough");
        printable(&all, &buffer);
        let room = usize::from(room).min(LIST_SIZE);
        if let Ok(small) = fields_of(family, items.into_iter(), &mut buffer[..room]) {
            assert_eq!(small, all);
        }
    }
    let len = problem(429, name, &decision, &mut buffer[..PROBLEM_SIZE]).expect("it is enough");
    json(&buffer[..len]);
    let len = problem_of(429, items.into_iter(), &mut buffer).expect("it is enough");
    json(&buffer[..len]);
    let len = missing_problem(name, &mut buffer[..PROBLEM_SIZE]).expect("it is enough");
    json(&buffer[..len]);
    for fields in [
        grpc_denial(name, &denied, &mut buffer[..FIELDS_SIZE]),
        grpc_missing(name, &mut buffer[..FIELDS_SIZE]),
        missing_fields(name, &mut buffer[..FIELDS_SIZE]),
    ] {
        assert!(fields.is_ok());
    }
    printable(&grpc_denial(name, &denied, &mut buffer).expect("it is enough"), &buffer);
});
