//! `tollgate_redis` as it is configured, and the ways of a request that waits through NGINX.

use std::process::Command;

use tollgate_tests::nginx::{Conn, Nginx};
use tollgate_tests::redis::Server;
use tollgate_tests::redis_cluster::Cluster;

use crate::redis_support::{Gateways, directive, orders, store};
use crate::rules_support::{RulesFile, document};

const PATIENT: &str = r#", "timeout": "10s""#;

#[test]
fn what_is_not_legal_is_refused_with_what_is() {
    let rules = RulesFile::new(&orders("5/d", ""));
    for (parameters, said) in [
        ("", "invalid number of arguments"),
        ("password=verysecret", "needs an address"),
        ("127.0.0.1:1 timeout=11s", "between 1ms and 10s"),
        ("127.0.0.1:1 keepalive=2", "keepalive=1"),
        ("127.0.0.1:1 instances=0", "instances="),
        ("127.0.0.1:1 instances=3 instance=3", "instance: 3 is outside 0 to 2"),
        ("127.0.0.1:1 instances=20000", "outside 1 to 10000"),
        ("127.0.0.1:1 cluster=maybe", "cluster=on|off"),
        ("127.0.0.1:1 region=61/60", "60-100/100"),
        ("127.0.0.1:1 region=eu", "60-100/100"),
        ("127.0.0.1:1 db=70000", "db= up to 65535"),
        ("127.0.0.1:1 db=1 cluster=on", "database: 1 is none of a cluster"),
        ("127.0.0.1:1 colour=blue", "invalid parameter \"colour=\""),
        ("127.0.0.1:1 password=verysecret passwd=verysecret", "invalid parameter \"passwd=\""),
        ("127.0.0.1:99999", "invalid port"),
    ] {
        let (ok, words) =
            Nginx::test(&format!("tollgate_redis {parameters}; {}", rules.http("reload=100ms", "")));
        assert!(!ok && words.contains(said), "{parameters}: {words}");
        assert!(!words.contains("verysecret"), "{words}");
    }
    let (ok, words) = Nginx::test("tollgate_redis 127.0.0.1:1;");
    assert!(!ok && words.contains("needs \"tollgate_rules\""), "{words}");
    let all =
        "unix:/tmp/no=such.sock 127.0.0.1:1 localhost username=u password=p db=1 timeout=7ms keepalive=1
               instances=3 instance=2 cluster=off region=60-100/100";
    let (ok, words) = Nginx::test(&format!("tollgate_redis {all}; {}", rules.http("reload=100ms", "")));
    assert!(ok, "{words}");
}

#[test]
fn a_limit_that_redis_cannot_count_is_refused_before_it_is_used() {
    let redis = Server::start(&[]);
    let rules = RulesFile::new(&orders("1/d", ""));
    let http = format!("{} {}", directive(&redis, "region=1/2"), rules.http("reload=100ms", ""));
    let (ok, words) = Nginx::test(&http);
    assert!(!ok && words.contains("cannot be counted in Redis") && words.contains("orders"), "{words}");

    let mut gateways = Gateways::start(1, 1, &orders("5/d", PATIENT), "region=1/2");
    assert_eq!(gateways.nginx[0].statuses("a", "/", 3), [200, 200, 429], "half of five");
    gateways.rules.write(&orders("1/d", PATIENT));
    let nginx = &mut gateways.nginx[0];
    nginx.wait_until("the refusal", |nginx| nginx.error_log().contains("cannot be counted in Redis"));
    assert_eq!(nginx.statuses("b", "/", 3), [200, 200, 429], "the rules in force stay");
}

#[test]
fn without_redis_the_policies_count_here_and_that_is_said() {
    let rules = RulesFile::new(&orders("2/d", ""));
    let nginx = Nginx::start(&rules.http("reload=100ms", ""));
    assert_eq!(nginx.statuses("a", "/", 3), [200, 200, 429]);
    assert!(nginx.error_log().contains("counted on this machine"), "{}", nginx.error_log());
    let gateways = Gateways::start(1, 1, &orders("2/d", PATIENT), "");
    assert!(!gateways.nginx[0].error_log().contains("counted on this machine"));
}

#[test]
fn what_limits_less_than_it_seems_to_is_told() {
    let rules = RulesFile::new(&orders("5/d", ""));
    let http = |parameters: &str, rules: &RulesFile| {
        format!("tollgate_redis 127.0.0.1:1 {parameters}; {}", rules.http("reload=100ms", ""))
    };
    let (ok, words) = Nginx::test(&http("", &rules));
    assert!(ok && words.contains("[warn]") && words.contains("has no \"instances=\""), "{words}");
    let (ok, words) = Nginx::test(&http("instances=1", &rules));
    assert!(ok && !words.contains("instances="), "{words}");
    assert!(!words.contains("counts nothing") && !words.contains("limit nothing"), "{words}");

    let local =
        RulesFile::new(&document(&[r#"{ "name": "own", "limits": [ { "rate": "1000/s" } ] }"#.into()]));
    let (ok, words) = Nginx::test(&http("instances=1", &local));
    assert!(ok && words.contains("\"tollgate_redis\" counts nothing"), "{words}");

    let unused = rules.http("reload=100ms", "").replace("tollgate_policies zone=main;", "");
    let (ok, words) = Nginx::test(&unused);
    assert!(ok && words.contains("no location has \"tollgate_policies\""), "{words}");
}

#[test]
fn a_log_says_why_it_is_decided_without_redis() {
    let told = |redis: &Server, more: &str, causes: &[&str]| {
        let rules = RulesFile::new(&orders("1000/d", r#", "timeout": "1s""#));
        let nginx = Nginx::start(&format!(
            "{} {}",
            directive(redis, &format!("instances=1 {more}")),
            rules.http("reload=100ms", "")
        ));
        // One line a second: what is told of the connection may come first.
        nginx.wait_until("the cause", |nginx| {
            let _ = nginx.get_as("a", "/");
            let log = nginx.error_log();
            let mut lines = log.lines().filter(|line| line.contains("decided without Redis"));
            lines.any(|line| causes.iter().all(|cause| line.contains(cause)))
        });
        let log = nginx.error_log();
        assert!(!log.contains("is connected again") && !log.contains("verysecret"), "{log}");
        log
    };
    let guarded = Server::start(&["--requirepass", "right"]);
    let log = told(&guarded, "password=verysecret", &["auth (WRONGPASS ", "not connected"]);
    assert!(log.contains("refused us: WRONGPASS "), "{log}");
    let log = told(&guarded, "", &["auth (NOAUTH ", "not connected"]);
    assert!(log.contains("refused us: NOAUTH "), "{log}");
    let full = Server::start(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    told(&full, "", &["(OOM command not allowed"]);
    let mut gone = Server::start(&[]);
    gone.kill();
    told(&gone, "", &["not connected", "Connection refused"]);
}

#[test]
fn a_redis_that_comes_back_is_told_of() {
    let mut redis = Server::start(&[]);
    let rules = RulesFile::new(&orders("1000/d", r#", "timeout": "1s""#));
    let nginx =
        Nginx::start(&format!("{} {}", directive(&redis, "instances=1"), rules.http("reload=100ms", "")));
    assert_eq!(nginx.get_as("a", "/").status, 200);
    redis.kill();
    nginx.wait_until("a word about it", |nginx| {
        let _ = nginx.get_as("a", "/");
        nginx.error_log().contains("decided without Redis")
    });
    assert!(!nginx.error_log().contains("is connected again"), "{}", nginx.error_log());
    redis.restart();
    nginx.wait_until("Redis", |nginx| nginx.error_log().contains("is connected again, and takes calls"));
}

#[test]
fn http_2_and_subrequests_and_internal_redirects_wait_as_well() {
    let mut gateways = Gateways::start(1, 1, &orders("3/d", PATIENT), "");
    let http = gateways.http(
        "",
        "location /auth { tollgate_policies off; auth_request /check; empty_gif; }
         location = /check { internal; tollgate_policies zone=main; proxy_pass http://127.0.0.1:@port@/free; }
         location /mirrored { mirror /copy; empty_gif; }
         location = /copy { internal; tollgate_policies off; proxy_pass http://127.0.0.1:@port@/free; }
         location /copied { tollgate_policies off; mirror /checked; empty_gif; }
         location = /checked { internal; tollgate_policies zone=main; proxy_pass http://127.0.0.1:@port@/free; }
         location /moved { tollgate_policies off; try_files /none /landed; }
         location = /landed { tollgate_policies zone=main; empty_gif; }
         location = /ssi { tollgate_policies off; default_type text/html; root @dir@/www; ssi on; }
         location = /part { tollgate_policies zone=main; proxy_pass http://127.0.0.1:@port@/free; }
         location = /free { tollgate_policies off; empty_gif; }",
    );
    gateways.nginx[0].reload(&http);
    let nginx = &gateways.nginx[0];
    std::fs::create_dir_all(nginx.dir().join("www")).unwrap();
    std::fs::write(
        nginx.dir().join("www/ssi"),
        "<!--#include virtual=\"/part\" --><!--#include virtual=\"/part\" -->",
    )
    .unwrap();
    assert_eq!(nginx.statuses("auth", "/auth", 4), [200, 200, 200, 500], "auth_request knows no 429");
    assert_eq!(nginx.statuses("mirrored", "/mirrored", 4), [200, 200, 200, 429]);
    assert_eq!(nginx.statuses("moved", "/moved", 4), [200, 200, 200, 429]);
    assert_eq!(nginx.statuses("ssi", "/ssi", 5), [200; 5], "a page with a part that is denied is a page");
    assert_eq!(nginx.statuses("copied", "/copied", 5), [200; 5], "nobody sees what a mirror is told");
    // On one connection: it is for the next request when the copy has ended.
    let mut conn = Conn::open(nginx.port(1));
    for _ in 0..5 {
        conn.request("GET", "/copied", &[("X-Api-Key", "kept")]);
        assert_eq!(conn.response_to("GET").map(|answer| answer.status), Some(200));
    }
    let h2: Vec<String> = (0..4)
        .map(|_| {
            let said = Command::new("curl")
                .args(["-s", "-i", "--max-time", "10", "--http2-prior-knowledge", "-H", "x-api-key: h2"])
                .arg(format!("http://127.0.0.1:{}/", nginx.port(4)))
                .output()
                .unwrap()
                .stdout;
            String::from_utf8_lossy(&said)[..10].to_owned()
        })
        .collect();
    assert_eq!(h2, ["HTTP/2 200", "HTTP/2 200", "HTTP/2 200", "HTTP/2 429"]);
    assert_eq!((store(nginx, "waiting"), store(nginx, "fallback_local")), (0, 0));
}

#[test]
fn a_cluster_counts_each_key_where_it_belongs() {
    let cluster = Cluster::start(3, 0);
    let rules = RulesFile::new(&orders("2/d", PATIENT));
    let nginx = Nginx::start_with(
        2,
        &format!("{} {}", directive(&cluster.servers[0], "cluster=on"), rules.http("reload=100ms", "")),
    );
    for key in 0..30 {
        let statuses = nginx.statuses(&format!("key-{key}"), "/", 3);
        // Why, should it ever be otherwise: the log of a whole run is too long to be read.
        let log = nginx.error_log();
        let words: Vec<&str> = log.lines().filter(|line| line.contains("redis")).collect();
        assert_eq!(statuses, [200, 200, 429], "{key}: {} {words:#?}", nginx.metrics());
    }
    assert_eq!((store(&nginx, "fallback_local"), store(&nginx, "failures")), (0, 0));
}

#[test]
fn a_log_tells_what_a_decision_rests_on() {
    let rules = RulesFile::new(&document(&[
        r#"{ "name": "leased", "match": { "path": "/leased" }, "key": ["api_key"], "store": "redis",
             "timeout": "10s", "lease": { "max": 20, "ttl": "5s" }, "limits": [ { "rate": "10000/s" } ] }"#
            .into(),
        r#"{ "name": "asked", "match": { "path": "/asked" }, "key": ["api_key"], "store": "redis",
             "timeout": "10s", "on_store_error": "allow", "limits": [ { "rate": "1/d" } ] }"#
            .into(),
        r#"{ "name": "own", "match": { "path": "/own" }, "limits": [ { "rate": "1000/s" } ] }"#.into(),
    ]));
    let mut redis = Server::start(&[]);
    let nginx = Nginx::start(&format!(
        "log_format it '$uri $status $tollgate_store'; access_log @dir@/access.log it; {} {}",
        directive(&redis, ""),
        rules.http("reload=100ms", "")
    ));
    let _ = nginx.statuses("a", "/leased", 30);
    let _ = nginx.statuses("a", "/asked", 2);
    let _ = nginx.statuses("a", "/own", 1);
    redis.kill();
    let _ = nginx.statuses("b", "/asked", 1);
    let log = nginx.access_log(34);
    assert!(log.contains(&"/leased 200 asked".to_owned()), "{log:?}");
    assert!(log.contains(&"/leased 200 lease".to_owned()), "{log:?}");
    assert_eq!(log[30..], ["/asked 200 asked", "/asked 429 denial", "/own 200 local", "/asked 200 fallback"]);
}
