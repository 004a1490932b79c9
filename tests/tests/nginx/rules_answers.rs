//! What clients, logs and metrics are told when rules decide.

use std::process::Command;
use std::thread;
use std::time::Duration;

use tollgate_tests::nginx::{Conn, Nginx};

use crate::rules_support::{RulesFile, counter, document, policy, start, start_with, statuses};

#[test]
fn a_denial_is_as_the_directives_are() {
    let (nginx, _file) = start(&document(&[policy("orders", r#""key": ["api_key"],"#, "1/d")]));
    let first = nginx.get_as("a", "/");
    assert_eq!(
        (first.status, first.number("x-ratelimit-remaining"), first.header("retry-after")),
        (200, 0, None)
    );
    let denied = nginx.get_as("a", "/");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    let wait = denied.number("retry-after");
    assert!(wait > 86_000 && wait <= 86_400, "{wait}");
    let problem: serde_json::Value = serde_json::from_slice(&denied.body).expect("JSON");
    assert_eq!((problem["status"].as_u64(), problem["retry_after"].as_u64()), (Some(429), Some(wait)));
    assert!(problem["violated-policies"].to_string().contains("orders"), "{problem}");
    assert!(nginx.error_log().contains("by policy \"orders\" of zone \"main\""), "{}", nginx.error_log());
}

#[test]
fn a_month_ends_when_the_calendar_says() {
    let (nginx, _file) = start(
        r#"{ "policies": [ { "name": "p", "limits": [ { "algorithm": "fixed_window", "rate": "1/month" } ] } ] }"#,
    );
    assert_eq!(nginx.get("/", &[]).status, 200);
    let denied = nginx.get("/", &[]);
    let now = Command::new("date").args(["-u", "+%s"]).output().unwrap();
    let next =
        Command::new("sh").args(["-c", "date -u -d \"$(date -u +%Y-%m-01) +1 month\" +%s"]).output().unwrap();
    let seconds = |output: Vec<u8>| String::from_utf8(output).unwrap().trim().parse::<u64>().unwrap();
    let left = seconds(next.stdout) - seconds(now.stdout);
    let wait = denied.number("retry-after");
    // A test that runs over the end of a month sees the next one's length.
    assert!(denied.status == 429 && wait.abs_diff(left) <= 3 || left > 27 * 86_400, "{wait} against {left}");
}

#[test]
fn the_document_says_which_fields_and_the_directive_has_the_last_word() {
    let text =
        r#"{ "headers": "ratelimit", "policies": [ { "name": "p", "limits": [ { "rate": "5/d" } ] } ] }"#;
    let file = RulesFile::new(text);
    let nginx = Nginx::start(&format!(
        "{} tollgate_zone main size=1m;
         server {{ listen 127.0.0.1:@port@;
             tollgate_policies zone=main;
             location / {{ empty_gif; }}
             location /off {{ tollgate_headers off; empty_gif; }}
             location /03 {{ tollgate_headers ratelimit-03;
                 location /03/inner {{ empty_gif; }} }} }}",
        file.directive("reload=50ms")
    ));
    assert_eq!(nginx.get("/", &[]).header("ratelimit-policy"), Some("\"p\";q=5;w=86400"));
    let off = nginx.get("/off", &[]);
    assert!(!off.headers.iter().any(|(name, _)| name.to_lowercase().contains("ratelimit")), "{off:?}");
    assert_eq!(nginx.get("/03/inner", &[]).number("ratelimit-limit"), 5);
    file.write(&text.replace("ratelimit", "off"));
    nginx.wait_until("the change", |n| n.get("/", &[]).header("ratelimit-policy").is_none());
    file.write(&text.replace("\"headers\": \"ratelimit\",", ""));
    nginx.wait_until("the change", |n| n.get("/", &[]).header("x-ratelimit-limit") == Some("5"));
    let denied = nginx.get("/off", &[]);
    assert!(denied.status == 429 && denied.header("retry-after").is_some());
}

#[test]
fn who_must_tell_who_they_are_and_does_not_is_unauthorized() {
    let (nginx, _file) = start(
        r#"{ "identity": { "api_key": { "header": "x-api-key", "required": true } },
             "policies": [ { "name": "orders", "key": ["api_key"], "limits": [ { "rate": "1/d" } ] } ] }"#,
    );
    let answer = nginx.get("/", &[]);
    assert_eq!(answer.status, 401);
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(answer.header("www-authenticate"), Some("ApiKey header=\"x-api-key\""));
    let problem: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(problem["status"], 401);
    assert!(problem["detail"].as_str().unwrap().contains("x-api-key"), "{problem}");
    assert_eq!(nginx.get("/", &[("X-Api-Key", "")]).status, 401, "an empty one tells nothing");
    assert_eq!(nginx.get_as("a", "/").status, 200);
    assert_eq!((counter(&nginx, "orders", "rejected"), counter(&nginx, "orders", "allowed")), (2, 1));
    assert!(nginx.error_log().contains("without header \"x-api-key\""), "{}", nginx.error_log());
}

fn curl_h2(nginx: &Nginx, args: &[&str]) -> String {
    let out = Command::new("curl")
        .args(["-s", "-i", "--max-time", "10", "--http2-prior-knowledge"])
        .args(args)
        .arg(format!("http://127.0.0.1:{}/shop.Orders/Create", nginx.port(4)))
        .output()
        .expect("curl");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn a_grpc_client_is_told_in_trailers_only() {
    let (nginx, _file) = start(
        r#"{ "identity": { "api_key": { "header": "x-api-key", "required": true } },
             "policies": [ { "name": "orders", "key": ["api_key"], "limits": [ { "rate": "1/d" } ] } ] }"#,
    );
    for (kind, key) in [("application/grpc", "a"), ("application/grpc+proto", "b")] {
        let kind = format!("content-type: {kind}");
        let key = format!("x-api-key: {key}");
        let args = ["-H", &kind, "-H", &key, "-H", "te: trailers"];
        assert!(curl_h2(&nginx, &args).starts_with("HTTP/2 200"));
        // Without a body: this curl gives up when a server answers before it has read one.
        let denied = curl_h2(&nginx, &[&args[..], &["-X", "POST"]].concat());
        assert!(denied.starts_with("HTTP/2 200"), "{denied}");
        for field in [
            "\ngrpc-status: 8\r",
            "\ngrpc-message: ",
            "\ncontent-type: application/grpc\r",
            "\nretry-after: 86",
        ] {
            assert!(denied.contains(field), "{field} in {denied}");
        }
        assert!(!denied.contains("content-length"), "{denied}");
        assert!(denied.ends_with("\r\n\r\n"), "no body: {denied}");
    }
    let unknown = curl_h2(&nginx, &["-H", "content-type: application/grpc"]);
    assert!(unknown.starts_with("HTTP/2 200") && unknown.contains("\ngrpc-status: 16\r"), "{unknown}");
    // What only begins alike is no gRPC.
    let web = curl_h2(&nginx, &["-H", "content-type: application/grpcx", "-H", "x-api-key: a"]);
    assert!(web.starts_with("HTTP/2 429"), "{web}");
    // Over HTTP/1 the connection goes on.
    let mut conn = Conn::open(nginx.port(1));
    for _ in 0..2 {
        conn.request(
            "POST",
            "/",
            &[("Content-Type", "application/grpc"), ("X-Api-Key", "a"), ("Content-Length", "0")],
        );
        let denied = conn.response_to("POST").unwrap();
        assert_eq!((denied.status, denied.header("grpc-status"), denied.body.len()), (200, Some("8"), 0));
    }
}

#[test]
fn the_trailers_of_a_grpc_denial_end_the_stream() {
    let (nginx, _file) = start(&document(&[policy("none", r#""cost": 2,"#, "1/d")]));
    let Ok(out) = Command::new("nghttp")
        .args(["-nv", "-H", "content-type: application/grpc", "-H", "te: trailers"])
        .arg(format!("http://127.0.0.1:{}/", nginx.port(4)))
        .output()
    else {
        return; // another program to look at frames is not here
    };
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let headers = said.split("recv HEADERS frame").nth(1).unwrap_or_else(|| panic!("{said}"));
    assert!(headers.lines().take(3).any(|line| line.contains("END_STREAM")), "{said}");
    assert!(said.contains("grpc-status: 8") && !said.contains("recv DATA"), "{said}");
}

#[test]
fn a_dry_run_policy_stands_in_nobodys_way() {
    let (nginx, _file) = start(&document(&[
        policy("planned", r#""match": { "path": "/both" }, "dry_run": true,"#, "1/d"),
        policy("alone", r#""match": { "path": "/dry" }, "dry_run": true,"#, "1/d"),
        policy("real", r#""match": { "path": "/both" },"#, "3/d"),
    ]));
    assert_eq!(statuses(&nginx, 4, "/both", &[]), [200, 200, 200, 429]);
    assert_eq!(counter(&nginx, "planned", "allowed"), 1);
    assert_eq!(counter(&nginx, "planned", "rejected_dry_run"), 3);
    assert_eq!((counter(&nginx, "real", "allowed"), counter(&nginx, "real", "rejected")), (3, 1));
    let answers: Vec<_> = (0..3).map(|_| nginx.get("/dry", &[])).collect();
    assert!(
        answers.iter().all(|a| a.status == 200 && a.header("x-ratelimit-limit").is_none()),
        "{answers:?}"
    );
    assert_eq!(counter(&nginx, "alone", "rejected_dry_run"), 2);
    assert!(nginx.error_log().contains("limiting requests, dry run,"), "{}", nginx.error_log());
}

#[test]
fn a_place_in_dry_run_enforces_no_policy() {
    let (nginx, _file) = start_with(
        1,
        &document(&[policy("p", "", "1/d")]),
        "location /dry { tollgate_dry_run on; empty_gif; }",
    );
    assert_eq!(statuses(&nginx, 3, "/dry", &[]), [200; 3]);
    assert_eq!(counter(&nginx, "p", "rejected_dry_run"), 2);
    assert_eq!(nginx.get("/", &[]).status, 429);
}

#[test]
fn a_subject_that_is_denied_again_and_again_waits_longer() {
    let (nginx, _file) = start(&document(&[policy(
        "login",
        r#""key": ["user", "ip"], "penalty": { "base": "2s", "factor": 2, "max": "15m" },"#,
        "5/s",
    )]));
    let attempt = |user: &str| nginx.get("/login", &[("X-User-Id", user)]);
    let mut waits = Vec::new();
    for _ in 0..8 {
        let answer = attempt("mallory");
        if answer.status == 429 {
            waits.push(answer.number("retry-after"));
        }
    }
    // One denial by the limit, and then it has to wait; asking meanwhile is not counted.
    assert!(!waits.is_empty() && waits.iter().all(|wait| (1..=2).contains(wait)), "{waits:?}");
    assert_eq!(attempt("alice").status, 200);
    thread::sleep(Duration::from_millis(2100));
    let next: Vec<_> = (0..7).map(|_| attempt("mallory")).collect();
    assert_eq!(next[0].status, 200);
    let longest = next.iter().filter(|a| a.status == 429).map(|a| a.number("retry-after")).max();
    assert_eq!(longest, Some(4));
}

#[test]
fn variables_and_the_log_tell_the_policy() {
    let file = RulesFile::new(&document(&[
        policy("wide", "", "100/d"),
        policy("narrow", r#""match": { "path": "/narrow" },"#, "1/d"),
    ]));
    let nginx = Nginx::start(&format!(
        "{} tollgate_zone main size=1m;
         log_format it '$tollgate_status $tollgate_limit $tollgate_remaining $tollgate_retry_after';
         access_log @dir@/access.log it;
         server {{ listen 127.0.0.1:@port@;
             tollgate_policies zone=main; location / {{ empty_gif; }} }}",
        file.directive("")
    ));
    assert_eq!(statuses(&nginx, 2, "/narrow", &[]), [200, 429]);
    assert_eq!(nginx.get("/", &[]).status, 200);
    let log = nginx.access_log(3);
    assert_eq!(log[0], "PASSED narrow 0 0");
    assert!(log[1].starts_with("REJECTED narrow 0 86"), "{log:?}");
    assert_eq!(log[2], "PASSED wide 98 0");
}

#[test]
fn holds_are_given_back_when_the_request_ends() {
    let busy = |name: &str, more: &str| {
        format!(
            r#"{{ "name": "{name}", {more} "key": ["api_key"],
                 "limits": [ {{ "rate": "1/300s", "algorithm": "concurrency" }} ] }}"#
        )
    };
    // A backend that takes connections and says nothing.
    let backend = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let slow = format!("location /slow {{ proxy_pass http://{}; }}", backend.local_addr().unwrap());
    let rules = document(&[busy("busy", ""), busy("planned", r#""dry_run": true,"#)]);
    let (nginx, _file) = start_with(1, &rules, &slow);
    assert_eq!(nginx.statuses("a", "/", 5), [200; 5]);
    assert_eq!(counter(&nginx, "planned", "rejected_dry_run"), 0);
    let mut waits = Conn::open(nginx.port(1));
    waits.request("GET", "/slow", &[("X-Api-Key", "a")]);
    let _held = backend.accept().unwrap();
    assert_eq!(nginx.get_as("a", "/").status, 429);
    assert_eq!(nginx.get_as("b", "/").status, 200);
    drop(waits);
    nginx.wait_until("the hold to end", |n| n.get_as("a", "/").status == 200);
    assert!(counter(&nginx, "planned", "rejected_dry_run") >= 1);
}

#[test]
fn directives_and_policies_stand_together_and_charge_all_or_none() {
    let file = RulesFile::new(&document(&[
        policy("rules", r#""key": ["api_key"], "match": { "path": "/rules" },"#, "2/d"),
        policy("wide", r#""key": ["api_key"],"#, "50/d"),
    ]));
    let nginx = Nginx::start(&format!(
        "{} tollgate_zone main size=1m rows=16 row_entries=16; tollgate_zone other size=1m;
         server {{ listen 127.0.0.1:@port@;
             tollgate_policies zone=main;
             tollgate zone=other key=$http_x_api_key rate=6/d name=one;
             tollgate zone=main key=$http_x_api_key rate=20/d name=two;
             tollgate zone=main key=$http_x_api_key rate=1/300s algorithm=concurrency name=busy;
             location / {{ empty_gif; }}
             location /none {{ tollgate off; empty_gif; }}
             location = /metrics {{ tollgate off; tollgate_policies off; tollgate_metrics; }} }}",
        file.directive("")
    ));
    // The rules deny two: the directives are paid back, the hold too.
    assert_eq!(nginx.statuses("a", "/rules", 4), [200, 200, 429, 429]);
    assert_eq!((nginx.counter("one", "allowed"), nginx.counter("one", "rejected")), (2, 0));
    assert_eq!(counter(&nginx, "rules", "rejected"), 2);
    // Four are left of the directive's six; it denies then, and the rules are not charged.
    assert_eq!(nginx.statuses("a", "/", 6), [200, 200, 200, 200, 429, 429]);
    assert_eq!((counter(&nginx, "wide", "allowed"), counter(&nginx, "wide", "rejected")), (6, 0));
    assert_eq!(nginx.get_as("a", "/none").number("x-ratelimit-remaining"), 43);
    // A key that is empty is none of the directives' and still the rules'.
    assert_eq!(nginx.get("/", &[]).number("x-ratelimit-limit"), 50);
    // The tightest of both is told.
    assert_eq!(nginx.get_as("b", "/rules").number("x-ratelimit-remaining"), 0, "the one in flight");
}

#[test]
fn metrics_tell_policies_in_both_formats() {
    let (nginx, _file) = start(&document(&[policy("orders", "", "1/d")]));
    assert_eq!(statuses(&nginx, 3, "/", &[]), [200, 429, 429]);
    let text = nginx.get("/metrics", &[]).text();
    for line in [
        "tollgate_policy_requests_total{zone=\"main\",policy=\"orders\",result=\"allowed\"} 1",
        "tollgate_policy_requests_total{zone=\"main\",policy=\"orders\",result=\"rejected\"} 2",
        "tollgate_rules_policies 1",
        "tollgate_rules_last_load_failed 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in {text}");
    }
    let loaded: u64 = text
        .lines()
        .find_map(|l| l.strip_prefix("tollgate_rules_loaded_timestamp_seconds "))
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{text}"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now - loaded < 60);
    assert_eq!(nginx.metrics()["rules"]["loaded_at"], loaded);
}

#[test]
fn metrics_tell_how_fast_answers_are_and_who_is_limited_most() {
    let (nginx, _file) = start(&document(&[
        policy("each", r#""key": ["user"],"#, "2/d"),
        policy("keys", r#""key": ["api_key"],"#, "90/d"),
    ]));
    for (user, n) in [("quiet", 2), ("loud\\\"er", 9), ("loud", 5)] {
        for _ in 0..n {
            let _ = nginx.get("/", &[("X-User-Id", user), ("X-Api-Key", "secret")]);
        }
    }
    let page = nginx.metrics();
    let zone = &page["zones"][0];
    assert_eq!(zone["decision_ns"]["count"], 16);
    let p50 = zone["decision_ns"]["p50"].as_u64().unwrap();
    assert!((50..1_000_000).contains(&p50), "{p50}");
    let top = zone["top_denied"].as_array().unwrap();
    assert_eq!(
        (top[0]["count"].as_u64(), top[1]["count"].as_u64(), top.len()),
        (Some(7), Some(3), 2),
        "{page}"
    );
    assert_eq!(top[0]["policy"], "each");
    assert!(top[0]["key"].as_str().unwrap().contains("loud"), "{page}");
    let text = nginx.get("/metrics", &[]).text();
    assert!(text.contains("tollgate_decision_seconds_bucket{zone=\"main\",le=\"+Inf\"} 16\n"), "{text}");
    assert!(text.contains("tollgate_decision_seconds_count{zone=\"main\"} 16\n"), "{text}");
    let line =
        text.lines().find(|l| l.starts_with("tollgate_top_denied") && l.ends_with("} 3")).expect("a line");
    assert_eq!(line, "tollgate_top_denied{zone=\"main\",policy=\"each\",key=\"user=loud\"} 3");
    assert!(!text.contains("secret") && !page.to_string().contains("secret"));
}

#[test]
fn nginx_t_checks_the_file_and_says_all_that_is_wrong() {
    let refused = |rules: &str, words: &[&str]| {
        let file = RulesFile::new(rules);
        let (ok, said) = Nginx::test(&file.http("", ""));
        assert!(!ok, "accepted: {rules}");
        for word in words {
            assert!(said.contains(word), "{word:?} in {said}");
        }
    };
    refused(
        "{ \"policies\": [\n { \"name\": \"a\", \"limits\": [ { \"rate\": \"10\" } ] },\n { \"nam\": 3 } ] }",
        &[
            "the file is refused in ",
            "line 2, column",
            "policies[0].limits[0].rate",
            "line 3, column",
            "policies[1]",
        ],
    );
    refused("{", &["line 1, column"]);
    refused("", &["line 1, column"]);
    refused(
        r#"{ "policies": [ { "name": "deep", "limits": [ { "rate": "65/s", "algorithm": "sliding_log" } ] } ] }"#,
        &[
            "zone \"main\"",
            "cannot hold the rules",
            "policy deep",
            "\"tollgate_zone\" needs rows=",
            "row_entries=",
        ],
    );
    let file = RulesFile::new("{}");
    file.remove();
    let (ok, said) = Nginx::test(&file.http("", ""));
    assert!(!ok && said.contains("No such file or directory"), "{said}");
    let (ok, said) = Nginx::test("tollgate_rules /; ");
    assert!(!ok && said.contains("is not a file"), "{said}");
    let good = RulesFile::new(&document(&[policy("p", "", "1/d")]));
    let (ok, said) = Nginx::test(&good.http("", ""));
    assert!(ok, "{said}");
    for (directives, word) in [
        (good.directive("reload=1ms"), "must be between 10ms and 1d"),
        (good.directive("reload=x"), "invalid parameter"),
        (good.directive("again=1"), "invalid parameter"),
        (good.directive("") + &good.directive(""), "is duplicate"),
        (format!("{} tollgate_policies zone=nowhere;", good.directive("")), "unknown zone \"nowhere\""),
        ("tollgate_zone z size=1m; tollgate_policies zone=z;".to_owned(), "needs \"tollgate_rules\""),
        (format!("{} tollgate_policies route=x;", good.directive("")), "must have \"zone\""),
        (format!("{} tollgate_policies zone=z route=;", good.directive("")), "invalid parameter"),
        (format!("{} tollgate_policies off; tollgate_policies off;", good.directive("")), "is duplicate"),
    ] {
        let (ok, said) = Nginx::test(&directives);
        assert!(!ok && said.contains(word), "{word:?} in {said}");
    }
}

#[test]
fn the_example_of_the_readme_is_taken_as_it_is() {
    let readme = include_str!("../../../ffi/nginx/README.md");
    let section = readme.split("## Rules files").nth(1).expect("a section");
    let block = |kind: &str| {
        let start = section.split(&format!("```{kind}\n")).nth(1).expect("a block");
        start.split("```").next().unwrap().to_owned()
    };
    let file = RulesFile::new(&block("json"));
    let conf = block("nginx")
        .replace("load_module modules/ngx_http_tollgate_module.so;", "")
        .replace("/etc/nginx/rules.json", &file.path().display().to_string())
        .replace("listen 80;", "listen 127.0.0.1:@port@;")
        .replace("http://backend", "http://127.0.0.1:@port2@")
        .replace("http://orders", "http://127.0.0.1:@port2@");
    let http = conf.trim().strip_prefix("http {").and_then(|conf| conf.strip_suffix('}')).expect("http {}");
    let nginx = Nginx::start(&format!(
        "{http} server {{ listen 127.0.0.1:@port2@; location / {{ return 200 ok; }} }}"
    ));
    assert_eq!(nginx.send("POST", "/api/orders", &[]).status, 401);
    let order = |key: &str| nginx.send("POST", "/api/orders", &[("X-Api-Key", key)]);
    assert_eq!(order("k").header("ratelimit-policy"), Some("\"orders\";q=100;w=1"));
    assert!(order("shop-a").header("ratelimit").is_some());
    let login = || nginx.send("POST", "/login", &[("X-User-Id", "mallory")]);
    let statuses: Vec<_> = (0..7).map(|_| login().status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!(nginx.get("/health", &[]).header("ratelimit"), None);
}
