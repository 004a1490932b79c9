//! A configuration that is wrong is refused, and says where and why.

use std::process::Command;

use tollgate_tests::envoy::{Envoy, STAND_INS, Setup, module};
use tollgate_tests::redis::Server;

use super::support::{by_user, connected_by_post, in_post, in_redis, statistic};

#[test]
fn a_bad_configuration_is_refused_with_its_place_and_reason() {
    let refused = |plugin: &str| Setup::new(plugin).refused();
    let log = refused("");
    assert!(log.contains("tollgate: there is no configuration"), "{log}");
    let log = refused("{ \"rules\": { } ");
    assert!(
        log.contains("tollgate: configuration: EOF while parsing an object at line 1 column 15"),
        "{log}"
    );
    let log = refused(
        "{\n  \"rules\": { \"policies\": [\n { \"name\": \"a\", \"key\": [\"global\"],\n   \"limits\": [ { \"rate\": \"10/fortnight\" } ] } ] } }",
    );
    assert!(log.contains("tollgate: line 4, column 26: rules.policies[0].limits[0].rate: "), "{log}");
    let log = refused("{ \"rules\": { \"policys\": [] } }");
    assert!(log.contains("tollgate: line 1, column 25: rules.policys: unknown field"), "{log}");
    let log = refused("{ \"rules\": { \"policies\": [] }, \"embedded\": { \"pages\": 0 } }");
    assert!(log.contains("tollgate: embedded.pages: 0 is outside 1 to 65536"), "{log}");
    let log = refused(&by_user(r#"{ "algorithm": "sliding_log", "rate": "5000/m" }"#));
    assert!(log.contains("policy \"all\": limit: 5000 is above 1024"), "{log}");
}

#[test]
fn a_way_to_redis_that_cannot_be_is_refused() {
    let refused = |connection: &str| Setup::new(&in_post(r#"{ "rate": "10/s" }"#, "", connection)).refused();
    let with = |transport: &str| in_post(r#"{ "rate": "10/s" }"#, "", "").replace("\"post\"", transport);
    let log = Setup::new(&with("\"pigeon\"")).refused();
    let told = "tollgate: configuration: unknown variant `pigeon`, expected `stream` or `post` at line 1";
    assert!(log.contains(told), "{log}");
    let log = Setup::new(&with("7")).refused();
    assert!(log.contains("tollgate: configuration: expected value at line 1 column 47"), "{log}");
    let log = Setup::new(&with(r#""stream", "password_env": "A""#)).refused();
    assert!(log.contains("redis.password_env: only with \"transport\": \"post\""), "{log}");
    let log = refused(r#", "username": "a""#);
    assert!(log.contains("tollgate: redis.username: needs redis.password_env"), "{log}");
    let log = refused(r#", "password_env": """#);
    assert!(log.contains("tollgate: redis.password_env: 0 bytes; legal are 1 to 128"), "{log}");
}

/// What `tollgate envoy-config` prints, with `more` flags, runs as it is.
fn printed(rules: &str, more: &[&str], environment: &[(&str, &str)]) -> Envoy {
    let dir = std::env::temp_dir().join(format!("tollgate-envoy-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let file = dir.join(format!("rules-{}.json", more.len()));
    std::fs::write(&file, rules).expect("a file");
    let [port, admin] = STAND_INS.map(|port| port.to_string());
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--package", "tollgate-cli", "--", "envoy-config"]).arg(&file);
    command.args(["--port", &port, "--admin-port", &admin]).arg("--module").arg(module()).args(more);
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let _ = std::fs::remove_dir_all(&dir);
    let mut setup = Setup::new("").concurrency(2).environment(environment);
    setup.whole = Some(String::from_utf8(output.stdout).expect("text"));
    setup.start()
}

/// There is no upstream: who is admitted is answered 503.
#[test]
fn what_envoy_config_prints_for_each_store_runs_as_it_is() {
    let rules = |store: &str| {
        format!(
            r#"{{ "identity": {{ "user": {{ "header": "x-user" }} }}, "policies": [ {{ "name": "all", "key": ["user"],
               "store": "{store}", "on_store_error": "deny", "timeout": "2s", "limits": [ {{ "rate": "5/d" }} ] }} ] }}"#
        )
    };
    let statuses =
        |envoy: &Envoy| -> Vec<u16> { (0..7).map(|_| envoy.get("/", &[("x-user", "a")]).status).collect() };
    let five = [503, 503, 503, 503, 503, 429, 429];
    let upstream = ["--upstream", "127.0.0.1:1"];
    assert_eq!(statuses(&printed(&rules("local"), &upstream, &[])), five);

    let word = [("TOLLGATE_TEST_WORD", "right")];
    for transport in ["stream", "post"] {
        let server = Server::start(&["--requirepass", "right"]);
        let address = format!("127.0.0.1:{}", server.port());
        let flags = [
            &upstream[..],
            &["--redis", &address, "--redis-transport", transport, "--redis-password-env", word[0].0],
        ];
        let envoy = printed(&rules("redis"), &flags.concat(), &word);
        match transport {
            "post" => connected_by_post(&envoy, 2),
            _ => statistic(&envoy, "tollgate_store_connected", 2),
        }
        assert_eq!(statuses(&envoy), five, "{transport}");
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
    let mut setup = Setup::new(&in_redis(r#"{ "rate": "10/s" }"#, more, "")).redis(server.port(), 1000);
    let bridge = &mut setup.listeners[0]["filter_chains"][0]["filters"][0]["typed_config"]["config"];
    bridge["configuration"]["value"] = by_user(r#"{ "rate": "10/s" }"#).into();
    let envoy = setup.start();
    assert_eq!(envoy.get("/", &[("x-user", "a")]).status, 429);
    let told = r#"role "filter" is an HTTP filter, and limits nothing as a network filter"#;
    assert_eq!(envoy.log().matches(told).count(), 1, "{}", envoy.log());
}
