//! What a client sees: header fields on every answer, once, and a denial it can act on.

use std::process::Command;

use tollgate_tests::nginx::{Conn, Nginx, Response, request};

const ZONE: &str = "tollgate_zone main size=1m;";

/// One request a day for each key, below `/`.
fn one_a_day(more: &str) -> Nginx {
    Nginx::start(&format!(
        "{ZONE} server {{ listen 127.0.0.1:@port@; @h2@
             tollgate zone=main key=$http_x_api_key rate=1/d burst=1 name=day;
             location / {{ empty_gif; }}
             {more} }}"
    ))
}

/// A denial as the default is: 429, Retry-After, a problem document.
fn assert_denial(answer: &Response) {
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let wait = answer.number("retry-after");
    assert!(wait > 86_000 && wait <= 86_400, "{wait}");
    let problem: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    for member in ["type", "title", "status", "detail", "violated-policies", "retry_after"] {
        assert!(!problem[member].is_null(), "{member} is missing: {problem}");
    }
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["retry_after"].as_u64(), Some(wait));
    assert!(problem["violated-policies"].to_string().contains("day"), "{problem}");
    assert_eq!(answer.number("x-ratelimit-remaining"), 0);
}

#[test]
fn a_denial_tells_when_to_come_back_as_a_problem_document() {
    let nginx = one_a_day("");
    let first = nginx.get_as("a", "/");
    assert_eq!((first.status, first.header("retry-after")), (200, None));
    assert_eq!(first.number("x-ratelimit-limit"), 1);
    assert_eq!(first.number("x-ratelimit-remaining"), 0);
    assert!(first.number("x-ratelimit-reset") > 0);
    assert_denial(&nginx.get_as("a", "/"));
}

#[test]
fn head_gets_the_head_of_a_denial() {
    let nginx = one_a_day("");
    let key = [("X-Api-Key", "a")];
    assert_eq!(nginx.send("HEAD", "/", &key).status, 200);
    let mut conn = Conn::open(nginx.port(1));
    for _ in 0..2 {
        // On one connection: a body would be read as the next status line.
        conn.request("HEAD", "/", &key);
        let denied = conn.response_to("HEAD").expect("an answer without a body");
        assert_eq!(denied.status, 429);
        assert!(denied.number("content-length") > 0);
        assert!(denied.number("retry-after") > 0);
    }
}

#[test]
fn http_1_0_is_answered_and_closed() {
    let nginx = one_a_day("");
    for status in [200, 429] {
        let mut conn = Conn::open(nginx.port(1));
        conn.raw(b"GET / HTTP/1.0\r\nX-Api-Key: a\r\n\r\n");
        let answer = conn.response_to("GET").unwrap();
        assert_eq!(answer.status, status);
        assert_eq!(answer.number("x-ratelimit-limit"), 1);
        assert!(conn.closed());
        if status == 429 {
            assert_denial(&answer);
        }
    }
}

#[test]
fn a_connection_is_kept_through_denials() {
    let nginx = one_a_day("");
    let mut conn = Conn::open(nginx.port(1));
    for status in [200, 429, 429, 429] {
        conn.request("GET", "/", &[("X-Api-Key", "a")]);
        assert_eq!(conn.response_to("GET").expect("the connection was closed").status, status);
    }
    conn.request("GET", "/", &[("X-Api-Key", "b")]);
    assert_eq!(conn.response_to("GET").unwrap().status, 200);
}

#[test]
fn pipelined_requests_are_decided_one_by_one() {
    let nginx = one_a_day("");
    let mut conn = Conn::open(nginx.port(1));
    let mut bytes = Vec::new();
    for key in ["a", "a", "b", "a", "b"] {
        bytes.extend(request("GET", "/", &[("X-Api-Key", key)]));
    }
    conn.raw(&bytes);
    let statuses: Vec<_> = (0..5).map(|_| conn.response_to("GET").unwrap().status).collect();
    assert_eq!(statuses, [200, 429, 200, 429, 429]);
}

#[test]
fn a_denied_body_is_discarded_and_the_connection_goes_on() {
    let nginx = one_a_day("");
    assert_eq!(nginx.get_as("a", "/").status, 200);
    let mut conn = Conn::open(nginx.port(1));
    let mut post = b"POST / HTTP/1.1\r\nHost: x\r\nX-Api-Key: a\r\nContent-Length: 5000\r\n\r\n".to_vec();
    post.extend(vec![b'x'; 5000]);
    conn.raw(&post);
    assert_denial(&conn.response_to("POST").unwrap());
    conn.raw(
        b"POST / HTTP/1.1\r\nHost: x\r\nX-Api-Key: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    );
    assert_denial(&conn.response_to("POST").unwrap());
    // Denied before the body: nobody says 100 Continue.
    conn.raw(
        b"POST / HTTP/1.1\r\nHost: x\r\nX-Api-Key: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    );
    assert_denial(&conn.response_to("POST").unwrap());
}

#[test]
fn http_2_is_limited_as_http_1_is() {
    let nginx = one_a_day("");
    let curl = |key: &str| {
        let out = Command::new("curl")
            .args(["-s", "-i", "--max-time", "10", "--http2-prior-knowledge", "-H"])
            .arg(format!("X-Api-Key: {key}"))
            .arg(format!("http://127.0.0.1:{}/", nginx.port(4)))
            .output()
            .expect("curl");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let first = curl("a");
    assert!(first.starts_with("HTTP/2 200") && first.contains("x-ratelimit-remaining: 0"), "{first}");
    let second = curl("a");
    assert!(second.starts_with("HTTP/2 429"), "{second}");
    assert!(second.contains("retry-after: 86"), "{second}");
    assert!(second.contains("content-type: application/problem+json"), "{second}");
    assert_eq!(second.matches("x-ratelimit-limit").count(), 1, "{second}");
    assert_eq!(nginx.get_as("a", "/").status, 429, "the same key, whatever the protocol");
}

#[test]
fn streams_of_one_http_2_connection_are_counted_one_by_one() {
    let nginx = Nginx::start(&format!(
        "{ZONE} server {{ listen 127.0.0.1:@port@; @h2@
             location / {{ tollgate zone=main key=$http_x_api_key rate=7/d; empty_gif; }}
             location = /metrics {{ tollgate_metrics; }} }}"
    ));
    let out = Command::new("nghttp")
        .args(["-n", "-m", "20", "-H", "X-Api-Key: a"])
        .arg(format!("http://127.0.0.1:{}/", nginx.port(4)))
        .output()
        .expect("nghttp");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(nginx.counter("http_x_api_key", "allowed"), 7);
    assert_eq!(nginx.counter("http_x_api_key", "rejected"), 13);
}

#[test]
fn each_family_of_fields_is_sent_when_it_is_chosen() {
    let nginx = Nginx::start(&format!(
        "{ZONE} server {{ listen 127.0.0.1:@port@;
             tollgate zone=main key=$http_x_api_key rate=10/m burst=20 name=orders;
             location /x {{ tollgate_headers x-ratelimit; empty_gif; }}
             location /03 {{ tollgate_headers ratelimit-03; empty_gif; }}
             location /draft {{ tollgate_headers ratelimit; empty_gif; }}
             location /off {{ tollgate_headers off; empty_gif; }}
             location /default {{ empty_gif; }} }}"
    ));
    let names = |path: &str| -> Vec<String> {
        nginx
            .get_as("a", path)
            .headers
            .into_iter()
            .map(|(name, _)| name)
            .filter(|name| name.to_ascii_lowercase().contains("ratelimit"))
            .collect()
    };
    let x = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"];
    assert_eq!(names("/default"), x);
    assert_eq!(names("/x"), x);
    assert_eq!(names("/03"), ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"]);
    assert_eq!(names("/draft"), ["RateLimit-Policy", "RateLimit"]);
    assert!(names("/off").is_empty());
    let draft = nginx.get_as("a", "/draft");
    assert!(draft.header("ratelimit-policy").unwrap().starts_with("\"orders\";q="), "{draft:?}");
    assert!(draft.header("ratelimit").unwrap().starts_with("\"orders\";r="), "{draft:?}");
}

#[test]
fn without_fields_a_denial_still_says_retry_after() {
    let nginx = one_a_day("location /off { tollgate_headers off; empty_gif; }");
    let first = nginx.get_as("a", "/off");
    assert_eq!((first.status, first.header("x-ratelimit-limit")), (200, None));
    let second = nginx.get_as("a", "/off");
    assert_eq!((second.status, second.header("x-ratelimit-limit")), (429, None));
    assert!(second.number("retry-after") > 0);
}

#[test]
fn errors_of_nginx_carry_the_fields() {
    let nginx = Nginx::start(&format!(
        "{ZONE} server {{ listen 127.0.0.1:@port@; root @dir@/none;
             tollgate zone=main key=$http_x_api_key rate=10/d;
             location / {{ }}
             location /denied {{ deny all; }}
             location /gone {{ proxy_pass http://127.0.0.1:1; }} }}"
    ));
    for (n, (path, status)) in [("/nothing", 404), ("/denied", 403), ("/gone", 502)].into_iter().enumerate() {
        let answer = nginx.get_as("a", path);
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.number("x-ratelimit-remaining"), 9 - n as u64, "{path}");
    }
    // A condition that a filter finds unmet starts the answer anew; the fields are there once.
    let nginx = one_a_day("");
    let unmet =
        nginx.get("/", &[("X-Api-Key", "a"), ("If-Unmodified-Since", "Mon, 01 Jan 1900 00:00:00 GMT")]);
    assert_eq!(unmet.number("x-ratelimit-limit"), 1, "{unmet:?}");
}

#[test]
fn a_limited_404_is_denied_before_it_is_looked_for() {
    let nginx = Nginx::start(&format!(
        "{ZONE} server {{ listen 127.0.0.1:@port@; root @dir@/none;
             location / {{ tollgate zone=main key=$http_x_api_key rate=2/d; }} }}"
    ));
    assert_eq!(nginx.statuses("a", "/nothing", 3), [404, 404, 429]);
}

#[test]
fn error_page_replaces_the_body_and_the_status_and_keeps_the_fields() {
    for (error_page, status, body) in [
        ("error_page 429 /busy.html;", 429, "busy"),
        ("error_page 429 =503 /busy.html;", 503, "busy"),
        ("error_page 429 = @busy;", 200, "GIF"),
        ("error_page 429 @busy;", 429, "GIF"),
        ("error_page 429 =200 @busy;", 200, "GIF"),
    ] {
        let nginx = one_a_day(&format!(
            "{error_page}
             location = /busy.html {{ internal; alias @dir@/busy.html; }}
             location @busy {{ empty_gif; }}"
        ));
        std::fs::write(nginx.dir().join("busy.html"), "busy").unwrap();
        assert_eq!(nginx.get_as("a", "/").status, 200);
        let denied = nginx.get_as("a", "/");
        assert_eq!(denied.status, status, "{error_page}");
        assert!(denied.text().contains(body), "{error_page}");
        assert_ne!(denied.header("content-type"), Some("application/problem+json"), "{error_page}");
        assert!(denied.number("retry-after") > 0, "{error_page}");
        assert_eq!(denied.number("x-ratelimit-limit"), 1, "{error_page}");
    }
}

#[test]
fn an_error_page_for_another_status_changes_nothing() {
    let nginx = one_a_day("error_page 503 404 /busy.html;");
    assert_eq!(nginx.get_as("a", "/").status, 200);
    assert_denial(&nginx.get_as("a", "/"));
}

#[test]
fn proxy_intercept_errors_works_and_an_upstream_denial_is_told_once() {
    let nginx = Nginx::start(&format!(
        "{ZONE}
         server {{ listen 127.0.0.1:@port2@;
             location / {{ add_header X-RateLimit-Limit 77 always; add_header x-ratelimit-remaining 0 always;
                          add_header Retry-After 9 always; return 429; }} }}
         server {{ listen 127.0.0.1:@port@;
             tollgate zone=main key=$http_x_api_key rate=10/d;
             location / {{ proxy_pass http://127.0.0.1:@port2@; }}
             location /intercepted {{ proxy_pass http://127.0.0.1:@port2@; proxy_intercept_errors on;
                                     error_page 429 =503 /page; }}
             location = /page {{ empty_gif; }} }}"
    ));
    let passed = nginx.get_as("a", "/");
    assert_eq!(passed.status, 429);
    assert_eq!(passed.number("x-ratelimit-limit"), 10);
    assert_eq!(passed.number("x-ratelimit-remaining"), 9);
    assert_eq!(passed.number("retry-after"), 9, "the upstream's own, since ours denied nothing");
    let page = nginx.get_as("a", "/intercepted");
    assert_eq!((page.status, page.number("x-ratelimit-remaining")), (503, 8));
}

#[test]
fn an_internal_redirect_is_charged_once_and_tells_once() {
    let nginx = Nginx::start(&format!(
        "{ZONE} server {{ listen 127.0.0.1:@port@; root @dir@/none;
             tollgate zone=main key=$http_x_api_key rate=3/d;
             location / {{ try_files $uri /landing; }}
             location = /landing {{ empty_gif; }}
             location /named {{ try_files $uri @there; }}
             location @there {{ empty_gif; }}
             location /index/ {{ index /landing; }}
             location /rewritten {{ rewrite ^ /landing last; }} }}"
    ));
    for (key, path) in [("a", "/x"), ("b", "/named"), ("c", "/rewritten")] {
        for remaining in [2, 1, 0] {
            let answer = nginx.get_as(key, path);
            assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (200, remaining), "{path}");
        }
        assert_eq!(nginx.get_as(key, path).status, 429, "{path}");
    }
}

#[test]
fn a_denial_in_an_error_page_has_its_own_status() {
    let nginx = Nginx::start(&format!(
        "{ZONE} server {{ listen 127.0.0.1:@port@; root @dir@/none;
             location /prox {{ proxy_pass http://127.0.0.1:1; error_page 502 =200 /d; }}
             location /same {{ proxy_pass http://127.0.0.1:1; error_page 502 /d; }}
             location /named {{ error_page 404 @n; }}
             location /d {{ tollgate zone=main key=$http_x_api_key rate=1/d name=day; empty_gif; }}
             location @n {{ tollgate zone=main key=$http_x_api_key rate=1/d name=day; empty_gif; }} }}"
    ));
    for (key, path, page) in [("a", "/prox", 200), ("b", "/same", 502), ("c", "/named", 404)] {
        assert_eq!(nginx.get_as(key, path).status, page, "{path}");
        assert_denial(&nginx.get_as(key, path));
        let grpc = nginx.get(path, &[("X-Api-Key", key), ("Content-Type", "application/grpc")]);
        assert_eq!((grpc.status, grpc.header("grpc-status")), (200, Some("8")), "{path}");
    }
}

#[test]
fn the_status_444_closes_the_connection() {
    let nginx = Nginx::start(&format!(
        "{ZONE} log_format it '$status';
         server {{ listen 127.0.0.1:@port@; access_log @dir@/access.log it;
             location / {{ tollgate zone=main key=$http_x_api_key rate=1/d status=444; empty_gif; }} }}"
    ));
    let mut conn = Conn::open(nginx.port(1));
    conn.request("GET", "/", &[("X-Api-Key", "a")]);
    assert_eq!(conn.response_to("GET").unwrap().status, 200);
    conn.request("GET", "/", &[("X-Api-Key", "a")]);
    assert!(conn.response_to("GET").is_none(), "not a byte");
    assert_eq!(nginx.access_log(2), ["200", "444"]);
}

/// The two maps of ffi/nginx/README.md.
#[test]
fn maps_count_who_has_no_key_by_address_and_ipv6_by_network() {
    let nginx = Nginx::start(
        r#"tollgate_zone main size=1m; set_real_ip_from 127.0.0.1; real_ip_header X-Real-IP;
         map $http_x_api_key $client {
             ""      "address $binary_remote_addr";
             default "key $http_x_api_key";
         }
         map $binary_remote_addr $network {
             "~(?s)^(?<prefix>.{8}).{8}$"  $prefix;
             default                       $binary_remote_addr;
         }
         server { listen 127.0.0.1:@port@;
             location /bare { tollgate zone=main key=$http_x_api_key rate=1/d name=bare; empty_gif; }
             location /key { tollgate zone=main key=$client rate=1/d name=key; empty_gif; }
             location /net { tollgate zone=main key=$network rate=1/d name=net; empty_gif; } }"#,
    );
    let from = |address: &str, path| nginx.get(path, &[("X-Real-IP", address)]).status;
    assert_eq!([from("192.0.2.1", "/bare"), from("192.0.2.1", "/bare")], [200, 200], "an empty key");
    assert_eq!(
        [from("192.0.2.1", "/key"), from("192.0.2.1", "/key"), from("192.0.2.2", "/key")],
        [200, 429, 200]
    );
    assert_eq!(nginx.statuses("a", "/key", 2), [200, 429]);
    assert_eq!(
        [from("192.0.2.1", "/net"), from("192.0.2.1", "/net"), from("192.0.2.2", "/net")],
        [200, 429, 200]
    );
    let [first, same, other] = ["2001:db8:0:a::1", "2001:db8:0:a:ffff::a", "2001:db8:0:b::1"];
    assert_eq!([from(first, "/net"), from(same, "/net"), from(other, "/net")], [200, 429, 200]);
}
