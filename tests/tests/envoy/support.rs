//! What the tests share.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::envoy::Envoy;

/// A plugin's configuration of these rules: the members of a rules document.
pub(crate) fn rules(members: &str) -> String {
    format!("{{ \"rules\": {{ {members} }} }}")
}

/// One policy for all, counted by the field `x-user`.
pub(crate) fn by_user(limits: &str) -> String {
    rules(&format!(
        r#""identity": {{ "user": {{ "header": "x-user" }} }},
           "policies": [ {{ "name": "all", "key": ["user"], "limits": [ {limits} ] }} ]"#
    ))
}

/// How many of these requests are admitted, on so many connections at once that begin together.
pub(crate) fn admitted(envoy: &Envoy, connections: usize, each: usize, headers: &[(&str, &str)]) -> u64 {
    let barrier = Barrier::new(connections);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..connections)
            .map(|_| {
                scope.spawn(|| {
                    let mut conn = envoy.connect();
                    barrier.wait();
                    let mut admitted = 0;
                    for _ in 0..each {
                        conn.request("GET", "/", headers);
                        let status = conn.response_to("GET").expect("an answer").status;
                        assert!(matches!(status, 200 | 429), "{status}");
                        admitted += u64::from(status == 200);
                    }
                    admitted
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}

/// One policy for all in Redis, counted by the field `x-user`; `more` are further members of the
/// policy, `connection` of the plugin's `redis`.
pub(crate) fn in_redis(limits: &str, more: &str, connection: &str) -> String {
    format!(
        r#"{{ "redis": {{ "cluster": "tollgate_bridge"{connection} }}, "rules": {{
             "identity": {{ "user": {{ "header": "x-user" }} }},
             "policies": [ {{ "name": "all", "key": ["user"], "store": "redis"{more}, "limits": [ {limits} ] }} ] }} }}"#
    )
}

/// The same without the bridge, by POSTs.
pub(crate) fn in_post(limits: &str, more: &str, connection: &str) -> String {
    let plugin = in_redis(limits, more, &format!(r#", "transport": "post"{connection}"#));
    plugin.replacen("tollgate_bridge", "redis", 1)
}

/// The user that the manual makes, as the words after `ACL`: `tollgate`, whose password is `secret`.
pub(crate) fn manuals_user() -> Vec<String> {
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/redis.md");
    let manual = std::fs::read_to_string(manual).expect("a page");
    let user = manual.lines().find_map(|line| line.strip_prefix("ACL ")).expect("a user");
    user.split(' ').map(str::to_owned).collect()
}

/// Waits until so many workers, and Envoy's main thread, which reaches a cluster but no internal
/// listener, have connected by POSTs.
pub(crate) fn connected_by_post(envoy: &Envoy, workers: u64) {
    statistic(envoy, "tollgate_store_connected", workers + 1);
}

/// Waits until a statistic has this value; counts are told ten times a second.
pub(crate) fn statistic(envoy: &Envoy, name: &str, value: u64) {
    let end = Instant::now() + Duration::from_secs(30);
    let line = format!("{name}{{}} {value}");
    while !envoy.admin("/stats/prometheus").lines().any(|found| found == line) {
        assert!(Instant::now() < end, "{line}: {}", envoy.admin("/stats?filter=tollgate"));
        thread::sleep(Duration::from_millis(50));
    }
}

/// Redis's own words come into the log, while nobody is admitted.
pub(crate) fn told(envoy: &Envoy, word: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    while !envoy.log().contains(word) {
        assert!(Instant::now() < end, "{word}: {}", envoy.log());
        assert_eq!(envoy.get("/", &[("x-user", "b")]).status, 503);
        thread::sleep(Duration::from_millis(20));
    }
}

/// A statistic in the text of `/stats`, by how its name ends; 0 when it is not there.
pub(crate) fn count(stats: &str, name: &str) -> u64 {
    let is_it = |found: &str| found.strip_suffix(name).is_some_and(|before| before.ends_with('.'));
    let value = stats.lines().filter_map(|line| line.split_once(": ")).find(|(found, _)| is_it(found));
    value.and_then(|(_, number)| number.trim().parse().ok()).unwrap_or(0)
}
