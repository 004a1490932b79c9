//! Clients that mean harm: keys of any bytes and any length, keys without end.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::envoy::Setup;
use tollgate_tests::redis::Server;

use super::support::{by_user, count, in_post, in_redis, rules};

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

/// In Redis they are text of a few characters, and never a command.
#[test]
fn keys_of_any_bytes_are_keys_in_redis() {
    let server = Server::start(&[]);
    let more = r#", "on_store_error": "deny", "timeout": "2s""#;
    let plugin = in_redis(r#"{ "rate": "2/h" }"#, more, "");
    let envoy = Setup::new(&plugin).concurrency(2).redis(server.port()).start();
    let long = "k".repeat(1 << 20);
    let users: [&[u8]; 8] = [
        "\u{fc}\u{20ac}".as_bytes(),
        b"a\tb",
        b"}{%00%0d%0a",
        b"\"\\",
        b"\xff\xfe\x80",
        b"a:b#hold",
        b"*1\\r\\n$8\\r\\nFLUSHALL",
        long.as_bytes(),
    ];
    for user in users {
        let statuses: Vec<u16> = (0..3)
            .map(|_| {
                let mut conn = envoy.connect();
                conn.raw(&[b"GET / HTTP/1.1\r\nHost: a\r\nX-User: ", user, b"\r\n\r\n"].concat());
                conn.response_to("GET").expect("an answer").status
            })
            .collect();
        assert_eq!(statuses, [200, 200, 429], "{}", user[..user.len().min(80)].escape_ascii());
    }
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut server.connection()).expect("keys");
    assert_eq!(keys.len(), users.len());
    for key in keys {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._~@/-%{}:".contains(byte);
        assert!(key.len() < 256 && key.iter().all(is_plain), "{}", key.escape_ascii());
    }
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
    // Each page has room for about 50 of them; none is idle, and who had to go is counted.
    let evicted = || count(&envoy.admin("/stats?filter=wasmcustom.tollgate.pages"), "pages.evicted");
    let end = Instant::now() + Duration::from_secs(10);
    while evicted() < keys - 64 * 60 {
        assert!(Instant::now() < end, "{} of {keys} were evicted", evicted());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(evicted() <= keys - 64 * 30, "{} of {keys}", evicted());
}

/// Requests as no browser makes them: each has an answer, Envoy's or ours, and the VM lives on.
#[test]
fn requests_of_any_shape_leave_the_filter_alive() {
    let plugin = rules(
        r#""identity": { "user": { "header": "x-user" }, "ip": { "trusted_proxies": ["127.0.0.0/8"], "header": "x-forwarded-for" } },
           "policies": [ { "name": "all", "key": ["user", "ip", "path", "method"], "limits": [ { "rate": "1000/s" } ] } ]"#,
    );
    let envoy = Setup::new(&plugin).concurrency(2).start();
    let many: String = (0..1000).map(|number| format!("x-{number}: {number}\r\n")).collect();
    let forwarded = "x-forwarded-for: 1.2.3.4,,,[::1]:99999, not an address,\r\n".repeat(50);
    let long_path = "p".repeat(500_000);
    let requests: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.0\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"GET  HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nhost: \r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nhost: ]:[::\r\n\r\n".to_vec(),
        b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
        b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n".to_vec(),
        b"BREW /#?#? HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nhost: a\r\nx-us\xffer: a\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nhost: a\r\n!#$%&'*+.^_`|~: a\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nhost: a\r\nx-user:\r\nx-user: b\r\nx-user: \xff\r\n\r\n".to_vec(),
        format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n").into_bytes(),
        format!("GET / HTTP/1.1\r\nhost: a\r\n{forwarded}\r\n").into_bytes(),
        format!("GET /{long_path} HTTP/1.1\r\nhost: a\r\n\r\n").into_bytes(),
        format!("GET / HTTP/1.1\r\nhost: a\r\nx-user: {}\r\n\r\n", "u".repeat(4 << 20)).into_bytes(),
    ];
    for (place, request) in requests.iter().enumerate() {
        for _ in 0..3 {
            let mut conn = envoy.connect();
            conn.raw(request);
            let answer = conn.response_to("GET").map(|answer| answer.status);
            let is_answered = matches!(answer, Some(200 | 400 | 404 | 426 | 431));
            assert!(is_answered, "request {place}: {answer:?}");
        }
        assert_eq!(envoy.get("/", &[("x-user", "sane")]).status, 200, "after request {place}");
    }
}

/// A server that says that a gigabyte follows, or sends megabytes: the policies decide without it.
#[test]
fn a_redis_without_measure_is_as_none() {
    for answer in [&b"$1073741824\r\n"[..], b"*1048576\r\n", b"$-2\r\n", b":99999999999999999999\r\n", FLOOD]
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut stream = stream;
                    let mut room = [0; 4096];
                    while stream.read(&mut room).is_ok_and(|count| count > 0) {
                        let times = if answer == FLOOD { 2_000 } else { 1 };
                        if (0..times).any(|_| stream.write_all(answer).is_err()) {
                            return;
                        }
                    }
                });
            }
        });
        let more = r#", "on_store_error": "deny", "timeout": "20ms""#;
        let limit = r#"{ "rate": "10/s" }"#;
        let by_stream = Setup::new(&in_redis(limit, more, "")).redis(port).start();
        let by_post = Setup::new(&in_post(limit, more, "")).redis_by_post(port).start();
        for envoy in [&by_stream, &by_post] {
            for _ in 0..30 {
                assert_eq!(envoy.get("/", &[("x-user", "a")]).status, 503);
            }
        }
    }
}

/// Four KiB that are a line without an end.
const FLOOD: &[u8] = &[b'+'; 4096];

/// Configurations that no one means: refused in words, or obeyed.
#[test]
fn absurd_configurations_are_refused() {
    let policies = |count: usize| -> String {
        let one = |number| {
            format!(r#"{{ "name": "p{number}", "key": ["ip"], "limits": [ {{ "rate": "10/s" }} ] }}"#)
        };
        (0..count).map(one).collect::<Vec<_>>().join(",")
    };
    let refused = [
        "[".repeat(100_000),
        format!("{{ \"rules\": {}", "{\"a\":".repeat(10_000)),
        "\u{0}\u{1}".to_owned(),
        rules(&format!("\"policies\": [ {} ]", policies(5_000))),
        by_user(r#"{ "rate": "99999999999999999999999999/s" }"#),
        by_user(r#"{ "rate": "0/s" }"#),
        by_user(r#"{ "rate": "1/s", "burst": 1e400 }"#),
        by_user(r#"{ "rate": "10/s" }"#).replacen('{', r#"{ "embedded": { "pages": 4294967296 }, "#, 1),
        by_user(r#"{ "rate": "10/s" }"#).replacen('{', r#"{ "embedded": { "zone": "" }, "#, 1),
    ];
    for plugin in refused {
        let start: String = plugin.chars().take(80).collect();
        let log = Setup::new(&plugin).refused();
        assert!(log.contains("tollgate: ") && !log.contains("panicked"), "{start}: {log}");
    }
}
