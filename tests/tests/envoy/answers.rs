//! What a client is told.

use std::process::Command;

use serde_json::json;
use tollgate_tests::envoy::{Envoy, Setup};
use tollgate_tests::redis::Server;

use super::support::{by_user, in_redis, rules, statistic};

#[test]
fn every_response_says_where_the_client_stands() {
    let envoy = Setup::new(&by_user(r#"{ "rate": "2/m", "burst": 3 }"#)).start();
    for left in [2, 1, 0] {
        let answer = envoy.get("/", &[("x-user", "a")]);
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
        assert_eq!((answer.number("x-ratelimit-limit"), answer.number("x-ratelimit-remaining")), (3, left));
        assert!(answer.number("x-ratelimit-reset") <= 90 && answer.header("retry-after").is_none());
    }
    let answer = envoy.get("/", &[("x-user", "a")]);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let wait = answer.number("retry-after");
    assert!((25..=30).contains(&wait), "{wait}");
    assert!(answer.text().contains(&format!("\"retry_after\":{wait}}}")), "{}", answer.text());
    assert_eq!(answer.number("x-ratelimit-remaining"), 0);
    assert_eq!(envoy.get("/", &[("x-user", "b")]).status, 200);
}

/// As NGINX does; a client must not choose which rules match by how it writes a path.
#[test]
fn a_path_is_one_however_it_is_written() {
    let policies = r#""policies": [
        { "name": "login", "match": { "path": "/login" }, "key": ["global"], "limits": [ { "rate": "1/d" } ] },
        { "name": "api", "match": { "path": "/api/*" }, "key": ["path"], "limits": [ { "rate": "1/d" } ] } ]"#;
    let envoy = Setup::new(&rules(policies)).start();
    assert_eq!(envoy.get("/login", &[]).status, 200);
    for path in
        ["/login?a=/b", "//login", "/%6cogin", "/%6Cogin?%", "/x/../login", "/./login", "/x/..%2flogin"]
    {
        assert_eq!(envoy.get(path, &[]).status, 429, "{path}");
    }
    for path in ["/login/", "/LOGIN", "/%256cogin", "/x/login"] {
        assert!(envoy.get(path, &[]).header("x-ratelimit-limit").is_none(), "{path}");
    }
    assert_eq!(envoy.get("/api/a", &[]).status, 200);
    assert_eq!(envoy.get("/api//%61?b", &[]).status, 429);
    assert_eq!(envoy.get("/api/b", &[]).status, 200);
}

#[test]
fn the_fields_are_those_that_the_rules_name() {
    let policies = r#""policies": [ { "name": "all", "key": ["global"], "limits": [ { "rate": "5/m" } ] } ]"#;
    let envoy = Setup::new(&rules(&format!(r#""headers": "ratelimit", {policies}"#))).start();
    let answer = envoy.get("/", &[]);
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""all";q=5;w=60"#));
    assert!(answer.header("ratelimit").is_some_and(|field| field.starts_with(r#""all";r=4;t="#)));
    let envoy = Setup::new(&rules(&format!(r#""headers": "off", "status": 503, {policies}"#))).start();
    for _ in 0..5 {
        assert!(envoy.get("/", &[]).header("x-ratelimit-limit").is_none());
    }
    let answer = envoy.get("/", &[]);
    assert_eq!((answer.status, answer.number("retry-after") > 0), (503, true));
}

#[test]
fn who_must_tell_who_he_is_and_does_not_gets_401() {
    let plugin = rules(
        r#""identity": { "api_key": { "header": "x-api-key", "required": true } },
           "policies": [ { "name": "all", "key": ["api_key"], "limits": [ { "rate": "5/m" } ] } ]"#,
    );
    let envoy = Setup::new(&plugin).start();
    let answer = envoy.get("/", &[]);
    assert_eq!(
        (answer.status, answer.header("www-authenticate")),
        (401, Some(r#"ApiKey header="x-api-key""#))
    );
    assert!(answer.text().contains("x-api-key"));
    assert_eq!(envoy.get("/", &[("x-api-key", "k")]).status, 200);
    let (status, message) = grpc(&envoy, &[]);
    assert_eq!((status, message.contains("x-api-key")), (16, true), "{message}");
}

#[test]
fn a_cost_that_never_fits_has_a_status_of_its_own() {
    let plugin = rules(
        r#""policies": [ { "name": "all", "key": ["global"], "limits": [ { "rate": "10/m" } ],
           "cost": { "header": "x-cost", "max": 100 } } ]"#,
    );
    let envoy = Setup::new(&plugin).start();
    let told = |cost: &str| {
        let answer = envoy.get("/", &[("x-cost", cost)]);
        let number = |name| answer.header(name).map(|value| value.parse::<u64>().unwrap());
        let left = number("x-ratelimit-remaining");
        assert_eq!(number("x-ratelimit-reset").is_some(), left.is_some());
        (answer.status, number("x-ratelimit-limit"), left, number("retry-after").is_some())
    };
    assert_eq!(told("16"), (422, Some(10), None, false));
    assert_eq!(told("8"), (200, Some(10), Some(2), false));
    assert_eq!(told("16"), (422, Some(10), None, false), "what is left is not looked at");
    assert_eq!(told("5"), (429, Some(10), Some(2), true));
    assert_eq!(told("5"), (429, Some(10), Some(2), true), "a denial that is remembered says the same");
    assert_eq!(told("2"), (200, Some(10), Some(0), false));
    assert_eq!(told("1").0, 429);
}

#[test]
fn a_grpc_client_is_told_in_its_own_words() {
    let envoy = Setup::new(&by_user(r#"{ "rate": "1/h" }"#)).start();
    assert_eq!(envoy.get("/", &[("x-user", "g")]).status, 200);
    let (status, message) = grpc(&envoy, &["x-user: g"]);
    assert_eq!(status, 8, "RESOURCE_EXHAUSTED");
    assert!(message.starts_with("The limit all is reached. Try again in 3"), "{message}");
}

/// Also when it waited for Redis to deny it.
#[test]
fn a_grpc_client_that_waited_is_told_in_its_own_words() {
    let server = Server::start(&[]);
    let more = r#", "on_store_error": "deny", "timeout": "2s""#;
    let plugin = in_redis(r#"{ "rate": "1/h" }"#, more, "");
    let start = || Setup::new(&plugin).redis(server.port()).start();
    let (one, other) = (start(), start());
    assert_eq!(one.get("/", &[("x-user", "g")]).status, 200);
    // This one knows nothing of it.
    let (status, message) = grpc(&other, &["x-user: g"]);
    assert_eq!(status, 8, "RESOURCE_EXHAUSTED");
    assert!(message.starts_with("The limit all is reached. Try again in 3"), "{message}");
    statistic(&other, "tollgate_store_replies", 1);
}

/// A limit that cannot be asked is not a limit that is reached.
#[test]
fn a_denial_without_redis_says_so() {
    let denied = |document: &str| {
        let plugin = in_redis(r#"{ "rate": "9/h" }"#, r#", "on_store_error": "deny""#, "");
        let plugin = plugin.replace("\"policies\"", &format!("{document} \"policies\""));
        let envoy = Setup::new(&plugin).redis(1).start(); // nobody listens there
        let answer = envoy.get("/", &[("x-user", "a")]);
        assert_eq!(answer.number("retry-after"), 1);
        assert!(answer.text().contains("#temporary-reduced-capacity"), "{}", answer.text());
        assert!(answer.text().contains("The limit all cannot be asked at present."), "{}", answer.text());
        (answer.status, grpc(&envoy, &["x-user: g"]))
    };
    let (status, (code, message)) = denied("");
    assert_eq!((status, code), (503, 14), "UNAVAILABLE");
    assert_eq!(message, "The limit all cannot be asked at present. Try again in 1 s.");
    assert_eq!(denied(r#""status_unavailable": 429,"#).0, 429);
}

#[test]
fn layers_are_charged_all_or_none_and_dry_run_never_denies() {
    let plugin = rules(
        r#""policies": [
          { "name": "group", "key": ["global"], "limits": [ { "rate": "10/h" } ] },
          { "name": "route", "key": ["path"], "limits": [ { "rate": "3/h" } ] },
          { "name": "dry", "dry_run": true, "key": ["global"], "limits": [ { "rate": "1/h" } ] } ]"#,
    );
    let envoy = Setup::new(&plugin).concurrency(2).start();
    let statuses: Vec<u16> = (0..5).map(|_| envoy.get("/a", &[]).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    // The group has seven left: the denied ones charged nothing.
    let others = (0..9).filter(|n| envoy.get(&format!("/{n}"), &[]).status == 200).count();
    assert_eq!(others, 7);
}

#[test]
fn a_route_is_its_metadata_or_its_name() {
    let plugin = rules(
        r#""policies": [
          { "name": "a", "match": { "route": "orders" }, "key": ["route"], "limits": [ { "rate": "1/h" } ] },
          { "name": "b", "match": { "route": "from-metadata" }, "key": ["route"], "limits": [ { "rate": "2/h" } ] } ]"#,
    );
    let envoy = Setup::new(&plugin).start();
    let statuses = |path: &str| -> Vec<u16> { (0..3).map(|_| envoy.get(path, &[]).status).collect() };
    assert_eq!(statuses("/orders/7"), [200, 429, 429]);
    assert_eq!(statuses("/meta"), [200, 200, 429]);
    assert_eq!(statuses("/else"), [200, 200, 200]);
}

#[test]
fn a_route_may_do_without_the_filter() {
    let off = json!({ "envoy.filters.http.wasm": {
        "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true } });
    let ok = json!({ "status": 200 });
    let mut setup = Setup::new(&by_user(r#"{ "rate": "1/h" }"#));
    setup.routes = json!([
        { "match": { "prefix": "/health" }, "direct_response": ok, "typed_per_filter_config": off },
        { "match": { "prefix": "/" }, "direct_response": ok },
    ]);
    let envoy = setup.start();
    let statuses = |path: &str| -> Vec<u16> { (0..3).map(|_| envoy.get(path, &[]).status).collect() };
    assert_eq!(statuses("/health"), [200, 200, 200]);
    assert_eq!(statuses("/"), [200, 429, 429]);
}

#[test]
fn methods_hosts_paths_and_addresses_are_matched() {
    let plugin = rules(
        r#""identity": { "ip": { "trusted_proxies": ["127.0.0.0/8"], "header": "x-forwarded-for" } },
           "policies": [
          { "name": "m", "match": { "method": "GET", "path": "/m" }, "key": ["method"], "limits": [ { "rate": "1/h" } ] },
          { "name": "h", "match": { "host": "shop.test" }, "key": ["global"], "limits": [ { "rate": "1/h" } ] },
          { "name": "i", "match": { "path": "/ip/*" }, "key": ["ip"], "limits": [ { "rate": "1/h" } ] } ]"#,
    );
    let envoy = Setup::new(&plugin).start();
    assert_eq!(envoy.get("/m?a=1", &[]).status, 200);
    assert_eq!(envoy.get("/m", &[]).status, 429);
    let mut conn = envoy.connect();
    for status in [200, 429] {
        conn.raw(b"GET / HTTP/1.1\r\nHost: Shop.Test:81\r\n\r\n");
        assert_eq!(conn.response_to("GET").expect("an answer").status, status);
    }
    let from = |address| envoy.get("/ip/x", &[("x-forwarded-for", address)]).status;
    assert_eq!([from("192.0.2.1"), from("192.0.2.2"), from("192.0.2.1")], [200, 200, 429]);
}

/// The status and message of one gRPC request, over HTTP/2 by curl.
fn grpc(envoy: &Envoy, headers: &[&str]) -> (u32, String) {
    let mut command = Command::new("curl");
    command.args([
        "-s",
        "-i",
        "--http2-prior-knowledge",
        "-X",
        "POST",
        "-H",
        "content-type: application/grpc",
    ]);
    for header in headers {
        command.args(["-H", header]);
    }
    let output = command.arg(format!("http://127.0.0.1:{}/svc/M", envoy.port())).output().expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("HTTP/2 200"), "{text}");
    let field = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_else(|| panic!("{name} in {text}"));
        line.trim().to_owned()
    };
    (field("grpc-status:").parse().expect("a number"), field("grpc-message:"))
}
