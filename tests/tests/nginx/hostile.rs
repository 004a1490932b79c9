//! Keys are a client's to choose: whatever they hold, the answer is a decision and nothing more.

use tollgate_tests::nginx::{Conn, Nginx, version};

fn open() -> Nginx {
    Nginx::start(
        "tollgate_zone main size=1m;
         log_format it escape=default '[$tollgate_status] $request';
         access_log @dir@/access.log it;
         # large enough for a key of a megabyte where a test asks for it
         server { listen 127.0.0.1:@port@;
             location / { tollgate zone=main key=$http_x_api_key rate=1/d; empty_gif; }
             location ~ ^/path/(?<decoded>[^a]*)$ { tollgate zone=main key=$decoded rate=1/d; empty_gif; } }
         server { listen 127.0.0.1:@port2@; large_client_header_buffers 4 2m;
             location / { tollgate zone=main key=$http_x_api_key rate=1/d; empty_gif; } }",
    )
}

fn raw(port: u16, key: &[u8]) -> Option<u16> {
    let mut conn = Conn::open(port);
    let mut bytes = b"GET / HTTP/1.1\r\nHost: x\r\nX-Api-Key: ".to_vec();
    bytes.extend(key);
    bytes.extend(b"\r\n\r\n");
    conn.raw(&bytes);
    conn.response_to("GET").map(|answer| {
        assert!(answer.headers.iter().all(|(n, _)| !n.eq_ignore_ascii_case("x-evil")), "{answer:?}");
        answer.status
    })
}

#[test]
fn any_bytes_are_a_key() {
    let nginx = open();
    for key in [
        &b"\xff\xfe\x80"[..],
        b"\xc3\x28 not utf-8",
        b"\x01\x02\x7f",
        b"\"quoted\" \\ {json} <html>",
        b"${jndi:ldap://x} %s %n %V",
        "ключ-鍵".as_bytes(),
    ] {
        assert_eq!(raw(nginx.port(1), key), Some(200), "{key:?}");
        assert_eq!(raw(nginx.port(1), key), Some(429), "{key:?}");
    }
}

#[test]
fn decoded_line_ends_and_nul_end_in_no_header_and_no_log_line() {
    let nginx = open();
    for path in [
        "/path/x%0d%0aX-Evil:%201",
        "/path/%00%00%00",
        "/path/%0d%0a%0d%0a<html>",
        "/path/%ff%fe",
        "/path/x%0d%0aX-Evil:%202",
    ] {
        let statuses: Vec<_> = (0..2)
            .map(|_| {
                let answer = nginx.get(path, &[]);
                assert!(answer.header("x-evil").is_none());
                assert!(!answer.text().contains("Evil"));
                answer.status
            })
            .collect();
        // NGINX itself refuses a path with NUL.
        assert!(statuses == [200, 429] || statuses == [400, 400], "{path}: {statuses:?}");
    }
    for line in nginx
        .access_log(10)
        .iter()
        .chain(nginx.error_log().lines().map(str::to_owned).collect::<Vec<_>>().iter())
    {
        assert!(line.starts_with('[') || line.starts_with("20"), "a line that a key began: {line:?}");
    }
}

#[test]
fn line_ends_in_a_header_are_the_end_of_the_header() {
    let nginx = open();
    // Whatever NGINX makes of it, it is not a field of the answer.
    let _ = raw(nginx.port(1), b"a\r\nX-Evil: 1");
    let _ = raw(nginx.port(1), b"a\rX-Evil: 1");
    let _ = raw(nginx.port(1), b"a\0b");
    assert_eq!(nginx.get_as("fine", "/").status, 200);
}

#[test]
fn a_key_of_a_megabyte_is_refused_by_default_and_decided_where_allowed() {
    let nginx = open();
    let key = vec![b'k'; 1 << 20];
    assert!(matches!(raw(nginx.port(1), &key), Some(400) | None));
    assert_eq!(raw(nginx.port(2), &key), Some(200));
    assert_eq!(raw(nginx.port(2), &key), Some(429));
    let mut other = key;
    *other.last_mut().unwrap() = b'x';
    assert_eq!(raw(nginx.port(2), &other), Some(200), "every byte of a key counts");
    for length in [1, 7, 8, 1000, 1016, 1017, 4096, 65_535, 65_536] {
        let key = vec![b'z'; length];
        assert_eq!(raw(nginx.port(2), &key), Some(200), "{length}");
        assert_eq!(raw(nginx.port(2), &key), Some(429), "{length}");
    }
}

#[test]
fn a_repeated_header_is_the_key_that_nginx_makes_of_it() {
    let nginx = open();
    let twice = [("X-Api-Key", "a"), ("X-Api-Key", "b")];
    assert_eq!(nginx.get("/", &twice).status, 200);
    assert_eq!(nginx.get("/", &twice).status, 429);
    // Since 1.23 the values are joined; before, the first one counts.
    let joined = version() >= (1, 23);
    assert_eq!(nginx.get("/", &[("X-Api-Key", "a, b")]).status, if joined { 429 } else { 200 });
    assert_eq!(nginx.get("/", &[("X-Api-Key", "a")]).status, if joined { 200 } else { 429 });
    // Names of the same length, and the name in another case, change nothing.
    let more = [("X-Api-Kex", "z"), ("x-aPI-keY", "c"), ("Forwarded", "for=x")];
    assert_eq!(nginx.get("/", &more).status, 200);
    assert_eq!(nginx.get("/", &[("X-API-KEY", "c")]).status, 429);
}

#[test]
fn a_credential_stands_in_no_log_line_of_ours() {
    let nginx = open();
    assert_eq!(nginx.statuses("very-secret", "/", 3), [200, 429, 429]);
    assert!(nginx.error_log().contains("limiting requests"));
    assert!(!nginx.error_log().contains("very-secret"));
}
