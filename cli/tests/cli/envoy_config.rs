//! `tollgate envoy-config`. That Envoy takes what it prints is Envoy's to say; here is what it prints.

use crate::common::{file, tollgate};

const RULES: &str =
    r#"{ "policies": [ { "name": "all", "key": ["ip"], "limits": [ { "rate": "10/s" } ] } ] }"#;

#[test]
fn a_configuration_has_what_the_flags_say() {
    let local = file("envoy-local.json", RULES.as_bytes());
    let run = tollgate(&["envoy-config", local.to_str().unwrap(), "--upstream", "app:81", "--port", "7777"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    for piece in
        [RULES, "address: app, port_value: 81", "port_value: 7777", "/etc/envoy/tollgate_filter.wasm"]
    {
        assert!(run.stdout.contains(piece), "{piece}: {}", run.stdout);
    }
    assert!(!run.stdout.contains("redis_proxy") && !run.stdout.contains("internal_listener"));

    let rules = RULES.replace("\"key\"", "\"store\": \"redis\", \"key\"");
    let shared = file("envoy-shared.json", rules.as_bytes());
    let shared = shared.to_str().unwrap();
    let flags = ["--redis", "store:6380", "--instances", "3", "--concurrency", "4", "--redis-cluster"];
    let run = tollgate(&[&["envoy-config", shared][..], &flags].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let connection =
        r#""redis": { "cluster": "tollgate_bridge", "timeout_ms": 5, "instances": 3, "workers": 4 }"#;
    for piece in
        [connection, "address: store, port_value: 6380", "envoy.clusters.redis", "\"role\": \"bridge\""]
    {
        assert!(run.stdout.contains(piece), "{piece}: {}", run.stdout);
    }
    for mark in ["@vm@", "@plugin@", "@host@", "@port@", "@kind@", "@module@", "@internal@"] {
        assert!(!run.stdout.contains(mark), "{mark}");
    }

    let flags = ["--redis", "store:6380", "--redis-transport", "post", "--redis-password-env", "WORD"];
    let run = tollgate(&[&["envoy-config", shared][..], &flags].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let connection = r#""cluster": "redis", "transport": "post", "password_env": "WORD", "timeout_ms": 5"#;
    for piece in
        [connection, "host_env_keys: [ WORD ]", "TcpConnectionPoolProto", "max_requests_per_connection: 1"]
    {
        assert!(run.stdout.contains(piece), "{piece}: {}", run.stdout);
    }
    for piece in ["redis_proxy", "bridge", "internal_listener", "@"] {
        let is_there = run.stdout.lines().any(|line| line.replace("\"@type\"", "").contains(piece));
        assert!(!is_there, "{piece}: {}", run.stdout);
    }

    let run = tollgate(&["envoy-config", shared]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(run.stderr.contains("--redis HOST:PORT"), "{}", run.stderr);
}

#[test]
fn wrong_rules_and_wrong_flags_are_told() {
    let bad = file("envoy-bad.json", RULES.replace("10/s", "10/fortnight").as_bytes());
    let bad = bad.to_str().unwrap();
    let run = tollgate(&["envoy-config", bad]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(run.stderr.contains("policies[0].limits[0].rate"), "{}", run.stderr);
    for upstream in ["app", "app:99999", "a b:80", ":80", "{x}:80"] {
        assert_eq!(tollgate(&["envoy-config", bad, "--upstream", upstream]).code, 2, "{upstream}");
    }
    let good = file("envoy-good.json", RULES.as_bytes());
    let with = |flags: &[&str]| tollgate(&[&["envoy-config", good.to_str().unwrap()], flags].concat());
    let run = with(&["--redis", "a:1", "--redis-transport", "post", "--redis-cluster"]);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    assert!(run.stderr.contains("--redis-cluster: only by a stream"), "{}", run.stderr);
    assert_eq!(with(&["--redis", "a:1", "--redis-transport", "pigeon"]).code, 2);
    assert_eq!(with(&["--redis", "a:1", "--redis-password-env", "A: B"]).code, 2);
    assert_eq!(tollgate(&["envoy-config", "/nowhere/rules.json"]).code, 2);
}
