//! Clients that mean harm: keys of any bytes and any length, keys without end.

use std::thread;

use tollgate_tests::envoy::Setup;

use super::support::{by_user, rules};

/// Control characters never come that far; what does is one key, and bounded.
#[test]
fn keys_of_any_bytes_are_keys() {
    let envoy = Setup::new(&by_user(r#"{ "rate": "2/h" }"#)).concurrency(2).start();
    let long = "k".repeat(1 << 20);
    for user in ["\u{fc}\u{20ac}", "a\tb", "}{%00%0d%0a", "\"\\", long.as_str()] {
        let statuses: Vec<u16> = (0..3).map(|_| envoy.get("/", &[("x-user", user)]).status).collect();
        assert_eq!(statuses, [200, 200, 429], "{}", user.len());
    }
    for bytes in [&b"\xff\xfe\x80"[..], b"\xc3"] {
        let statuses: Vec<u16> = (0..3)
            .map(|_| {
                let mut conn = envoy.connect();
                conn.raw(&[b"GET / HTTP/1.1\r\nHost: a\r\nX-User: ", bytes, b"\r\n\r\n"].concat());
                conn.response_to("GET").expect("an answer").status
            })
            .collect();
        assert_eq!(statuses, [200, 200, 429]);
    }
    // Envoy itself refuses NUL, and takes a CR for a part of the value.
    for bytes in [&b"a\0b"[..], b"a\rX-Other: b"] {
        let mut conn = envoy.connect();
        conn.raw(&[b"GET / HTTP/1.1\r\nHost: a\r\nX-User: ", bytes, b"\r\n\r\n"].concat());
        let answer = conn.response_to("GET").expect("an answer");
        assert!(matches!(answer.status, 200 | 400) && answer.header("x-other").is_none(), "{answer:?}");
    }
    assert_eq!(envoy.get("/", &[("x-user", "sane")]).status, 200);
}

#[test]
fn nothing_of_a_key_ends_in_a_header_or_the_log() {
    let plugin = rules(
        r#""identity": { "api_key": { "header": "x-api-key" } },
           "policies": [ { "name": "all", "key": ["api_key", "path"], "limits": [ { "rate": "1/h" } ] } ]"#,
    );
    let envoy = Setup::new(&plugin).start();
    for _ in 0..2 {
        let answer = envoy.get("/%0d%0aset-cookie:%20x", &[("x-api-key", "the-secret-of-a-client")]);
        let told = format!("{:?}{}", answer.headers, answer.text());
        assert!(!told.contains("the-secret") && answer.header("set-cookie").is_none(), "{told}");
    }
    assert!(!envoy.log().contains("the-secret"));
}

/// A fixed number of pages: memory is what it was, whatever comes.
#[test]
fn keys_without_end_take_no_memory() {
    let keys: u64 = std::env::var("TOLLGATE_ENVOY_KEYS").ok().and_then(|n| n.parse().ok()).unwrap_or(60_000);
    let mut plugin = by_user(r#"{ "rate": "10/h" }"#);
    plugin.insert_str(1, r#" "embedded": { "pages": 64 }, "#);
    let envoy = Setup::new(&plugin).concurrency(2).start();
    let send = |from: u64, to: u64| {
        thread::scope(|scope| {
            for thread in 0..4 {
                let envoy = &envoy;
                scope.spawn(move || {
                    let mut conn = envoy.connect();
                    for number in (from..to).filter(|number| number % 4 == thread) {
                        conn.request("GET", "/", &[("x-user", &number.to_string())]);
                        assert_eq!(conn.response_to("GET").expect("an answer").status, 200);
                    }
                });
            }
        });
    };
    send(0, keys / 3);
    let warm = envoy.resident_kib();
    send(keys / 3, keys);
    let now = envoy.resident_kib();
    assert!(now < warm + 4096, "{warm} KiB, then {now} KiB");
}
