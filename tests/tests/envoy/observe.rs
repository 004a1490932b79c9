//! What the operator sees.

use std::time::Duration;

use tollgate_tests::envoy::Setup;
use tollgate_tests::redis::Server;

use super::support::{by_user, count, in_redis, statistic};

#[test]
fn every_request_is_counted_once_by_its_policy() {
    let envoy = Setup::new(&by_user(r#"{ "rate": "10/h" }"#)).concurrency(2).start();
    for _ in 0..25 {
        let _ = envoy.get("/", &[("x-user", "a")]);
    }
    statistic(&envoy, "tollgate_policy_all_allowed", 10);
    statistic(&envoy, "tollgate_policy_all_denied", 15);
    statistic(&envoy, "tollgate_store_fallback_local", 0);
}

#[test]
fn what_redis_does_is_seen() {
    let server = Server::start(&[]);
    let plugin = in_redis(r#"{ "rate": "5/h" }"#, r#", "timeout": "2s""#, "");
    let envoy = Setup::new(&plugin).redis(server.port()).start();
    statistic(&envoy, "tollgate_store_connected", 1);
    for _ in 0..8 {
        let _ = envoy.get("/", &[("x-user", "a")]);
    }
    statistic(&envoy, "tollgate_policy_all_allowed", 5);
    statistic(&envoy, "tollgate_policy_all_denied", 3);
    // The fifth answer said that none is left: nobody asks for the sixth.
    statistic(&envoy, "tollgate_store_replies", 5);
    statistic(&envoy, "tollgate_store_breaker_open", 0);
    statistic(&envoy, "tollgate_store_waiting", 0);
    // Envoy shows histograms some seconds later.
    statistic(&envoy, "tollgate_redis_wait_us_count", 5);
}

/// Envoy's main thread has the plugin as well, but neither requests nor a way to the bridge: its
/// statistics do not tell of failures for ever.
#[test]
fn who_is_never_asked_does_not_try_to_connect_for_ever() {
    let server = Server::start(&[]);
    let envoy =
        Setup::new(&in_redis(r#"{ "rate": "10/s" }"#, "", "")).concurrency(2).redis(server.port()).start();
    statistic(&envoy, "tollgate_store_connected", 2);
    let failed = || count(&envoy.admin("/stats?filter=cluster.tollgate_bridge"), "upstream_cx_connect_fail");
    std::thread::sleep(Duration::from_secs(3));
    let before = failed();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(failed(), before);
    assert!((1..=10).contains(&before), "{before}");
    assert_eq!(envoy.get("/", &[("x-user", "a")]).status, 200);
}
