//! A configuration that is wrong is refused, and says where and why.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::envoy::{Envoy, STAND_INS, Setup, module};
use tollgate_tests::redis::Server;
use tollgate_tests::redis_cluster::Cluster;

use super::support::{by_user, connected_by_post, in_post, in_redis, manuals_user, statistic, told};

#[test]
fn a_bad_configuration_is_refused_with_its_place_and_reason() {
    let refused = |plugin: &str| Setup::new(plugin).refused();
    let log = refused("");
    assert!(log.contains("tollgate: there is no configuration"), "{log}");
    let log = refused("{ \"rules\": { } ");
    assert!(log.contains("tollgate: line 1, column 15: not JSON: EOF while parsing an object"), "{log}");
    let log = refused(
        "{\n  \"rules\": { \"policies\": [\n { \"name\": \"a\", \"key\": [\"global\"],\n   \"limits\": [ { \"rate\": \"10/fortnight\" } ] } ] } }",
    );
    assert!(log.contains("tollgate: line 4, column 26: rules.policies[0].limits[0].rate: "), "{log}");
    assert!(log.contains("at byte 3 (policy a)"), "{log}");
    let log = refused("{ \"rules\": { \"policys\": [] }, \"embedded\": { \"pages\": \"many\" } }");
    assert!(log.contains("tollgate: line 1, column 25: rules.policys: unknown field"), "{log}");
    let told = "line 1, column 54: embedded.pages: expected a whole number from 1 to 65536, found a string";
    assert!(log.contains(told), "{log}");
    let log = refused(&by_user(r#"{ "algorithm": "sliding_log", "rate": "5000/m" }"#));
    assert!(log.contains("rules.policies[0]: limit: 5000 is above 1024, the most of a sliding_log"), "{log}");
    assert!(log.contains("in shared pages (policy all)"), "{log}");
}

/// What a machine admits by itself while Redis is away, it counts in pages, too.
#[test]
fn what_pages_cannot_count_without_redis_is_refused() {
    let log = r#"{ "algorithm": "sliding_log", "rate": "5000/m" }"#;
    let told = Setup::new(&in_redis(log, "", r#", "instances": 4"#)).refused();
    let why = r#"rules.policies[0]: "on_store_error": "local": limit: 1250 is above 1024"#;
    assert!(told.contains(why), "{told}");
    for (more, connection) in [(r#", "on_store_error": "deny""#, ""), ("", r#", "instances": 5"#)] {
        let envoy = Setup::new(&in_redis(log, more, connection)).redis(1).start();
        let status = envoy.get("/", &[("x-user", "a")]).status;
        assert_eq!(status, if more.is_empty() { 200 } else { 503 });
    }
}

#[test]
fn a_way_to_redis_that_cannot_be_is_refused() {
    let refused = |connection: &str| Setup::new(&in_post(r#"{ "rate": "10/s" }"#, "", connection)).refused();
    let with = |transport: &str| in_post(r#"{ "rate": "10/s" }"#, "", "").replace("\"post\"", transport);
    let log = Setup::new(&with("\"pigeon\"")).refused();
    let told = "tollgate: line 1, column 47: redis.transport: expected one of stream, post";
    assert!(log.contains(told), "{log}");
    let log = Setup::new(&with(r#""stream", "password_env": "A""#)).refused();
    assert!(log.contains("redis.password_env: the VM has no variable \"A\""), "{log}");
    let log = refused(r#", "username": "a""#);
    assert!(log.contains("redis.username: needs \"password_env\" beside it"), "{log}");
    let log = refused(r#", "password_env": "TOLLGATE_TEST_NOWHERE""#);
    let told = "tollgate: redis.password_env: the VM has no variable \"TOLLGATE_TEST_NOWHERE\"";
    assert!(log.contains(told), "{log}");
}

/// Envoy makes no call to a cluster that it has not, and that is told; else it would look as if Redis were away.
#[test]
fn a_cluster_that_the_host_has_not_is_named_once() {
    for transport in ["stream", "post"] {
        let plugin = in_redis(r#"{ "rate": "2/d" }"#, "", &format!(r#", "transport": "{transport}""#));
        let envoy = Setup::new(&plugin.replace("tollgate_bridge", "brigde")).start();
        for status in [200, 200, 429] {
            assert_eq!(envoy.get("/", &[("x-user", "a")]).status, status, "{transport}");
        }
        let told = r#"tollgate: redis.cluster: the host makes no call to "brigde" (status "#;
        let end = Instant::now() + Duration::from_secs(20);
        // Of the worker, and of Envoy's main thread.
        while envoy.log().matches(told).count() < 2 {
            assert!(Instant::now() < end, "{transport}: {}", envoy.log());
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_secs(1)); // in which it is tried again
        assert_eq!(envoy.log().matches(told).count(), 2, "{transport}: {}", envoy.log());
    }
}

/// What `tollgate envoy-config` prints for these rules, with `more` flags.
fn envoy_config(rules: &str, more: &[&str]) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("tollgate-envoy-config-{}-{number}.json", std::process::id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, rules).expect("a file");
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--package", "tollgate-cli", "--", "envoy-config"]).arg(&file);
    command.arg("--module").arg(module()).args(["--upstream", "127.0.0.1:1"]).args(more);
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let _ = std::fs::remove_file(&file);
    String::from_utf8(output.stdout).expect("text")
}

/// It runs as it is.
fn printed(rules: &str, more: &[&str], environment: &[(&str, &str)]) -> Envoy {
    let [port, admin] = STAND_INS;
    let [listen, admin] = [format!("127.0.0.1:{port}"), admin.to_string()];
    let ports = ["--listen", &listen, "--admin-port", &admin];
    let mut setup = Setup::new("").concurrency(2).environment(environment);
    setup.whole = Some(envoy_config(rules, &[&ports, more].concat()));
    if let Some(at) = more.iter().position(|flag| *flag == "--lds") {
        let path = PathBuf::from(more[at + 1]);
        let text = std::fs::read_to_string(&path).expect("it is written");
        setup.lds = Some((path, text));
    }
    setup.start()
}

fn rules_in(store: &str, rate: &str) -> String {
    format!(
        r#"{{ "identity": {{ "user": {{ "header": "x-user" }} }}, "policies": [ {{ "name": "all", "key": ["user"],
           "store": "{store}", "on_store_error": "deny", "timeout": "2s", "limits": [ {{ "rate": "{rate}" }} ] }} ] }}"#
    )
}

/// There is no upstream: who is admitted is answered 503.
fn statuses(envoy: &Envoy) -> Vec<u16> {
    (0..7).map(|_| envoy.get("/", &[("x-user", "a")]).status).collect()
}

const FIVE: [u16; 7] = [503, 503, 503, 503, 503, 429, 429];

#[test]
fn what_envoy_config_prints_for_each_store_runs_as_it_is() {
    assert_eq!(statuses(&printed(&rules_in("local", "5/d"), &[], &[])), FIVE);

    let word = [("TOLLGATE_TEST_WORD", "right")];
    for transport in ["stream", "post"] {
        let acl = ["--requirepass", "wrong", "--user", "gate", "on", ">right", "~*", "+@all"];
        let server = Server::start(&acl);
        let address = format!("127.0.0.1:{}", server.port());
        let envoy = printed(
            &rules_in("redis", "5/d"),
            &[
                ["--redis", &address],
                ["--redis-transport", transport],
                ["--redis-username", "gate"],
                ["--redis-password-env", word[0].0],
            ]
            .concat(),
            &word,
        );
        match transport {
            "post" => connected_by_post(&envoy, 2),
            _ => statistic(&envoy, "tollgate_store_connected", 2),
        }
        assert_eq!(statuses(&envoy), FIVE, "{transport}");
    }

    let server = Server::start(&[]);
    let by_name = format!("localhost:{}", server.port());
    let envoy = printed(&rules_in("redis", "5/d"), &["--redis", &by_name], &[]);
    statistic(&envoy, "tollgate_store_connected", 2);
    assert_eq!(statuses(&envoy), FIVE, "a name that has an IPv6 address, too");

    let nodes = Cluster::start(3, 0);
    let flags = ["--redis", &nodes.addresses()[0], "--redis-cluster"];
    let envoy = printed(&rules_in("redis", "5/d"), &flags, &[]);
    statistic(&envoy, "tollgate_store_connected", 2);
    assert_eq!(statuses(&envoy), FIVE);
}

/// Behind redis_proxy it is Envoy that says who it is, to each node that it talks to: as the user of
/// the manual, who may do no more.
#[test]
fn a_user_of_a_cluster_is_envoys_to_name() {
    let nodes = Cluster::start(3, 0);
    for server in &nodes.servers {
        let mut connection = server.connection();
        let () = redis::cmd("ACL").arg(manuals_user()).query(&mut connection).expect("a user");
        let default = ["SETUSER", "default", "resetpass", ">other"];
        let () = redis::cmd("ACL").arg(&default).query(&mut connection).expect("a password");
    }
    let start = |user: &str, word: &str| {
        let flags = [
            ["--redis", &nodes.addresses()[0]],
            ["--redis-username", user],
            ["--redis-password-env", "TOLLGATE_TEST_WORD"],
        ];
        let flags = [&flags.concat()[..], &["--redis-cluster"]].concat();
        printed(&rules_in("redis", "5/d"), &flags, &[("TOLLGATE_TEST_WORD", word)])
    };
    let envoy = start("tollgate", "secret");
    statistic(&envoy, "tollgate_store_connected", 2);
    assert_eq!(statuses(&envoy), FIVE);
    // On each node some.
    for user in 0..30 {
        let user = format!("user-{user}");
        let status = || envoy.get("/", &[("x-user", &user)]).status;
        assert_eq!([(); 6].map(|()| status()), FIVE[..6], "{user}");
    }
    assert!(!envoy.admin("/config_dump").contains("\"secret\""));
    for (user, word) in [("tollgate", "wrong"), ("nobody", "secret")] {
        let envoy = start(user, word);
        let answer = envoy.get("/", &[("x-user", "b")]);
        let is_denied = answer.status == 503 && answer.text().contains("cannot be asked");
        assert!(is_denied, "{user}: {}", answer.text());
        told(&envoy, "NOAUTH");
    }
}

/// A dot and an underscore differ in what Envoy counts, and in the label of Prometheus.
#[test]
fn each_policy_has_statistics_of_its_own() {
    let policies = [("a.b", "5/d"), ("a_b", "6/d"), ("a-b", "7/d")];
    let policies = policies.map(|(name, rate)| {
        format!(
            r#"{{ "name": "{name}", "match": {{ "path": "/{name}" }}, "limits": [ {{ "rate": "{rate}" }} ] }}"#
        )
    });
    let envoy = printed(&format!(r#"{{ "policies": [ {} ] }}"#, policies.join(", ")), &[], &[]);
    for name in ["a.b", "a_b", "a-b"] {
        for _ in 0..10 {
            let _ = envoy.get(&format!("/{name}"), &[]);
        }
    }
    let end = Instant::now() + Duration::from_secs(20);
    let told = [("a.b", 5), ("a_b", 6), ("a-b", 7)]
        .map(|(name, allowed)| format!("tollgate_policy_allowed{{policy=\"{name}\"}} {allowed}"));
    while !told.iter().all(|line| envoy.admin("/stats/prometheus").lines().any(|found| found == line)) {
        assert!(Instant::now() < end, "{}", envoy.admin("/stats?filter=tollgate.policy"));
        thread::sleep(Duration::from_millis(50));
    }
}

/// The command that wrote the listeners once puts changed rules in force, and counts stay.
#[test]
fn listeners_that_envoy_config_writes_are_taken_anew() {
    let dir = std::env::temp_dir().join(format!("tollgate-envoy-lds-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let path = dir.join("listeners.yaml");
    let lds = ["--lds", path.to_str().expect("a path")];
    let server = Server::start(&[]);
    let address = format!("127.0.0.1:{}", server.port());
    for more in [&lds[..], &[&lds[..], &["--redis", &address]].concat()] {
        let store = if more.len() > 2 { "redis" } else { "local" };
        let envoy = printed(&rules_in(store, "5/d"), more, &[]);
        assert_eq!(statuses(&envoy), FIVE, "{store}");
        let listen = format!("127.0.0.1:{}", envoy.port());
        let more = [&["--listen", &listen], more].concat();
        let _ = envoy_config(&rules_in(store, "7/d"), &more);
        let end = Instant::now() + Duration::from_secs(20);
        while envoy.get("/", &[("x-user", "probe")]).number("x-ratelimit-limit") != 7 {
            assert!(Instant::now() < end, "the new rules do not come: {}", envoy.log());
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(statuses(&envoy)[..3], [503, 503, 429], "{store}");
    }
    let _ = std::fs::remove_dir_all(&dir);
}

/// Redis is away when Envoy starts: it starts, and requests are decided as the policies say.
#[test]
fn an_envoy_starts_without_its_redis() {
    let rules = rules_in("redis", "5/d").replace("\"2s\"", "\"20ms\"");
    for more in [&[][..], &["--redis-cluster"]] {
        let envoy = printed(&rules, &[&["--redis", "127.0.0.1:1"], more].concat(), &[]);
        let answer = envoy.get("/", &[("x-user", "a")]);
        assert!(
            answer.status == 503 && answer.text().contains("cannot be asked"),
            "{more:?}: {}",
            answer.text()
        );
    }
}

/// In the other's place a role says so, and who comes is not let through as if limits were asked.
#[test]
fn a_role_where_it_does_nothing_is_told() {
    let envoy = Setup::new(r#"{ "role": "bridge" }"#).start();
    let answer = envoy.get("/", &[]);
    assert_eq!((answer.status, answer.text()), (503, "tollgate: this plugin is a network filter\n".into()));
    assert!(envoy.log().contains(r#"role "bridge" is a network filter"#), "{}", envoy.log());

    let server = Server::start(&[]);
    let more = r#", "on_store_error": "deny", "timeout": "200ms""#;
    let mut setup = Setup::new(&in_redis(r#"{ "rate": "10/s" }"#, more, "")).redis(server.port());
    let bridge = &mut setup.listeners[0]["filter_chains"][0]["filters"][0]["typed_config"]["config"];
    bridge["configuration"]["value"] = by_user(r#"{ "rate": "10/s" }"#).into();
    let envoy = setup.start();
    assert_eq!(envoy.get("/", &[("x-user", "a")]).status, 503);
    let told = r#"role "filter" is an HTTP filter, and limits nothing as a network filter"#;
    assert_eq!(envoy.log().matches(told).count(), 1, "{}", envoy.log());
}
