//! `tollgate envoy-config`. That Envoy takes what it prints is Envoy's to say; here is what it prints.

use crate::common::{file, tollgate};

const RULES: &str =
    r#"{ "policies": [ { "name": "all", "key": ["ip"], "limits": [ { "rate": "10/s" } ] } ] }"#;

#[test]
fn a_configuration_has_what_the_flags_say() {
    let local = file("envoy-local.json", RULES.as_bytes());
    let run = tollgate(&[
        "envoy-config",
        local.to_str().unwrap(),
        "--upstream",
        "app:81",
        "--listen",
        "[::1]:7777",
    ]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    for piece in [
        RULES,
        "address: app, port_value: 81",
        "address: \"::1\", port_value: 7777",
        "/etc/envoy/tollgate_filter.wasm",
    ] {
        assert!(run.stdout.contains(piece), "{piece}: {}", run.stdout);
    }
    assert!(!run.stdout.contains("redis_") && !run.stdout.contains("internal_listener"));

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

    for (more, proxy, password) in [
        (&[][..], "tcp_proxy", r#""cluster": "tollgate_bridge", "password_env": "WORD","#),
        (&["--redis-cluster"], "redis_proxy", "auth_password: { environment_variable: WORD }"),
    ] {
        let flags = ["--redis", "store:6380", "--redis-password-env", "WORD"];
        let run = tollgate(&[&["envoy-config", shared][..], &flags, more].concat());
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert!(run.stdout.contains(password), "{}", run.stdout);
        assert!(run.stdout.contains("Start it with: WORD=… envoy -c FILE"), "{}", run.stdout);
        let proxies =
            ["tcp_proxy", "redis_proxy"].map(|name| run.stdout.contains(&format!("network.{name}\n")));
        assert_eq!(proxies, ["tcp_proxy", "redis_proxy"].map(|name| name == proxy), "{}", run.stdout);
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
fn who_asks_redis_is_said_by_the_host_or_by_the_filter() {
    let rules = RULES.replace("\"key\"", "\"store\": \"redis\", \"key\"");
    let shared = file("envoy-user.json", rules.as_bytes());
    let with = |more: &[&str]| {
        let base = ["envoy-config", shared.to_str().unwrap(), "--redis", "store:1"];
        tollgate(&[&base[..], more].concat())
    };
    let who = ["--redis-username", "g\"ate", "--redis-password-env", "WORD"];
    let run = with(&[&who[..], &["--redis-cluster"]].concat());
    let told = "auth_username: { inline_string: \"g\\\"ate\" }\n        auth_password: { environment_variable: WORD }";
    assert!(run.stdout.contains(told) && !run.stdout.contains("host_env_keys"), "{}", run.stdout);
    for transport in ["stream", "post"] {
        let run = with(&[&who[..], &["--redis-transport", transport]].concat());
        assert!(run.stdout.contains(r#""username": "g\"ate", "password_env": "WORD""#), "{}", run.stdout);
        assert!(run.stdout.contains("host_env_keys: [ WORD ]"), "{}", run.stdout);
    }
    let run = with(&who[..2]);
    assert!(run.code == 2 && run.stderr.contains("--redis-password-env"), "{}", run.stderr);
    assert_eq!(with(&["--redis-username", "", "--redis-password-env", "WORD"]).code, 2);
}

#[test]
fn listeners_go_into_a_file_of_their_own() {
    let local = file("envoy-lds.json", RULES.as_bytes());
    let path = local.with_extension("listeners.yaml");
    let into = |path: &str| tollgate(&["envoy-config", local.to_str().unwrap(), "--lds", path]);
    for _ in 0..2 {
        let run = into(path.to_str().unwrap());
        assert_eq!(run.code, 0, "{}", run.stderr);
        let named = format!("path_config_source: {{ path: {path:?} }}");
        assert!(run.stdout.contains(&named) && run.stdout.contains("node: {"), "{}", run.stdout);
        assert!(!run.stdout.contains("listeners:") && !run.stdout.contains(RULES), "{}", run.stdout);
        let listeners = std::fs::read_to_string(&path).unwrap();
        assert!(listeners.contains("resources:\n- \"@type\"") && listeners.contains(RULES), "{listeners}");
    }
    for name in ["/nowhere/listeners", "/nowhere/listeners.json", "/nowhere/.yaml"] {
        let run = into(name);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""));
        assert!(run.stderr.contains("ends in .yaml"), "{}", run.stderr);
    }
    let run = into("/nowhere/listeners.yaml");
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    assert!(run.stderr.contains("cannot write /nowhere/listeners.yaml"), "{}", run.stderr);
}

/// Whoever forgets a flag moves a port, or counts elsewhere: Envoy takes that with the rules.
#[test]
fn listeners_that_change_beyond_the_rules_are_told() {
    let shared = RULES.replace("\"key\"", "\"store\": \"redis\", \"key\"");
    let first = file("envoy-flags.json", shared.as_bytes());
    let path = first.with_extension("listeners.yaml");
    let again = |rules: &str, more: &[&str]| {
        std::fs::write(&first, rules).unwrap();
        let base =
            ["envoy-config", first.to_str().unwrap(), "--lds", path.to_str().unwrap(), "--redis", "a:1"];
        let run = tollgate(&[&base[..], more].concat());
        assert_eq!(run.code, 0, "{}", run.stderr);
        run.assert_harmless();
        run.stderr
    };
    let word = ["--redis-password-env", "WORD"];
    assert_eq!(again(&shared, &["--timeout-ms", "7"]), "");
    let other = shared.replace("[ {", "[\n\n{").replace("10/s", "11/s");
    assert_eq!(again(&format!("\n{other}\n\n"), &["--timeout-ms", "7"]), "", "rules of any form");
    assert_eq!(again(&format!("\u{feff}{RULES}"), &["--timeout-ms", "7"]), "");
    let told = again(&shared, &[]);
    assert!(told.starts_with("warning: ") && told.contains("\"timeout_ms\": 7"), "{told}");
    assert_eq!(again(&shared, &[]), "");
    let told = again(&shared, &["--listen", "127.0.0.1:81"]);
    assert!(told.contains("port_value: 10000") && told.contains("port_value: 81"), "{told}");
    let told = again(&shared, &["--listen", "127.0.0.1:81", "--module", "/tmp/filter.wasm"]);
    assert!(told.contains("becomes `code: { local: { filename: \"/tmp/filter.wasm"), "{told}");
    let more = [&["--listen", "127.0.0.1:81", "--module", "/tmp/filter.wasm"], &word[..]].concat();
    assert_eq!(again(&shared, &more).lines().count(), 1);
    assert_eq!(again(&shared, &more), "");
    std::fs::write(&path, "something else").unwrap();
    assert!(again(&shared, &more).contains("`something else` becomes"));
}

#[test]
fn rules_with_a_byte_order_mark_are_put_in_without_it() {
    let marked = file("envoy-marked.json", format!("\u{feff}{RULES}").as_bytes());
    let run = tollgate(&["envoy-config", marked.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains(RULES) && !run.stdout.contains('\u{feff}'), "{}", run.stdout);
    assert_eq!(tollgate(&["rules", "check", marked.to_str().unwrap()]).code, 0);
}

#[test]
fn what_the_filter_would_refuse_is_refused() {
    let log = RULES.replace(r#""rate": "10/s""#, r#""algorithm": "sliding_log", "rate": "5000/m""#);
    let log = log.replace("\"policies\"", "\n \"policies\"");
    let long = file("envoy-long.json", log.as_bytes());
    let long = long.to_str().unwrap();
    let why = "limit: 5000 is above 1024, the most of a sliding_log or concurrency limit in shared pages";
    for more in [&[][..], &["--redis", "a:1"]] {
        let run = tollgate(&[&["envoy-config", long][..], more].concat());
        assert_eq!((run.code, run.stdout.as_str()), (1, ""));
        let told = format!("{long}:2:16: policies[0]: {why} (policy all)");
        assert!(run.stderr.contains(&told), "{}", run.stderr);
    }
    // Other hosts count it.
    let run = tollgate(&["rules", "check", long]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let told = format!("{long}: policy all: refused by the Envoy filter: {why}");
    assert!(run.stderr.contains(&told), "{}", run.stderr);

    let good = file("envoy-many.json", RULES.as_bytes());
    let flags = ["--redis", "a:1", "--instances", "1000", "--concurrency", "11"];
    let run = tollgate(&[&["envoy-config", good.to_str().unwrap()][..], &flags].concat());
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    assert!(run.stderr.contains("redis: instances × workers: 11000 is above 10000"), "{}", run.stderr);
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
    for listen in ["8080", "localhost:8080", "127.0.0.1:0", "::1:80"] {
        assert_eq!(tollgate(&["envoy-config", bad, "--listen", listen]).code, 2, "{listen}");
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
