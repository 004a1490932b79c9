//! What an operator sees: variables in the log, both metrics pages, dry run, log levels.

use std::time::{Duration, Instant};

use tollgate_tests::nginx::Nginx;

#[test]
fn variables_tell_the_decision_in_the_access_log() {
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         log_format it '$status $tollgate_status $tollgate_limit $tollgate_remaining $tollgate_retry_after';
         access_log @dir@/access.log it;
         server { listen 127.0.0.1:@port@;
             location / { tollgate zone=main key=$http_x_api_key rate=2/m cost=$arg_cost name=it; empty_gif; }
             location /free { empty_gif; }
             location /page { error_page 429 =200 /free;
                              tollgate zone=main key=$http_x_api_key rate=1/d name=page; empty_gif; } }",
    );
    let _ = nginx.statuses("a", "/", 3);
    let _ = nginx.get_as("a", "/?cost=7");
    let _ = nginx.get_as("a", "/free");
    let _ = nginx.statuses("a", "/page", 2);
    let log = nginx.access_log(7);
    assert_eq!(log[0], "200 PASSED it 1 0");
    assert_eq!(log[1], "200 PASSED it 0 0");
    let (words, wait) = log[2].rsplit_once(' ').unwrap();
    assert_eq!(words, "429 REJECTED it 0");
    assert!((25..=30).contains(&wait.parse::<u32>().unwrap()), "{wait}");
    assert_eq!(log[3], "422 REJECTED it - -", "never: nobody looks at what is left, and no time helps");
    assert_eq!(log[4], "200 - - - -");
    assert_eq!(log[5], "200 PASSED page 0 0");
    assert!(log[6].starts_with("200 REJECTED page 0 86"), "kept through the internal redirect: {log:?}");
}

#[test]
fn variables_can_be_used_in_headers_and_conditions() {
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         map $tollgate_status $shape { default none; PASSED ok; REJECTED no; }
         server { listen 127.0.0.1:@port@;
             add_header X-Shape \"$shape $tollgate_remaining [$tollgate_ctx] $tollgate_status\" always;
             location / { tollgate zone=main key=$http_x_api_key rate=1/d; empty_gif; } }",
    );
    assert_eq!(nginx.get_as("a", "/").header("x-shape"), Some("ok 0 [] PASSED"));
    assert_eq!(nginx.get_as("a", "/").header("x-shape"), Some("no 0 [] REJECTED"));
}

fn dry(limit: &str) -> Nginx {
    Nginx::start(&format!(
        "tollgate_zone main size=1m;
         log_format it '$status $tollgate_status';
         server {{ listen 127.0.0.1:@port@;
             location / {{ tollgate_dry_run on; access_log @dir@/access.log it;
                          tollgate zone=main key=$http_x_api_key {limit} name=it; empty_gif; }}
             location = /metrics {{ tollgate_metrics; }} }}"
    ))
}

#[test]
fn a_dry_run_decides_and_counts_and_lets_everybody_pass() {
    let nginx = dry("rate=2/d");
    for _ in 0..5 {
        let answer = nginx.get_as("a", "/");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("retry-after"), None);
        assert_eq!(answer.header("x-ratelimit-limit"), None, "a trial shows nothing to clients");
    }
    let log = nginx.access_log(5);
    assert_eq!(log[1], "200 PASSED");
    assert_eq!(log[2], "200 REJECTED_DRY_RUN");
    assert_eq!(nginx.counter("it", "allowed"), 2);
    assert_eq!(nginx.counter("it", "rejected"), 0);
    assert_eq!(nginx.counter("it", "rejected_dry_run"), 3);
    assert!(nginx.error_log().contains("limiting requests, dry run, by limit \"it\" of zone \"main\""));
}

#[test]
fn a_dry_run_delays_nobody() {
    let nginx = dry("rate=1r/s burst=3 delay");
    let start = Instant::now();
    assert_eq!(nginx.statuses("a", "/", 3), [200; 3]);
    assert!(start.elapsed() < Duration::from_millis(900));
    assert_eq!(nginx.access_log(3)[2], "200 DELAYED_DRY_RUN");
    assert_eq!(nginx.counter("it", "delayed_dry_run"), 2);
    assert_eq!(nginx.counter("it", "delayed"), 0);
}

#[test]
fn the_log_level_is_the_configured_one_and_delays_are_one_below() {
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         server { listen 127.0.0.1:@port@;
             location / { tollgate zone=main key=$http_x_api_key rate=1/d name=default; empty_gif; }
             location /info { tollgate_log_level info;
                              tollgate zone=main key=$http_x_api_key rate=1/d name=info; empty_gif; }
             location /delay { tollgate_log_level warn;
                               tollgate zone=main key=$http_x_api_key rate=10/s delay name=queue;
                               empty_gif; } }",
    );
    for path in ["/", "/info", "/delay"] {
        let _ = nginx.statuses("a", path, 2);
    }
    let log = nginx.error_log();
    let level = |words: &str| {
        let line = log.lines().find(|l| l.contains(words)).unwrap_or_else(|| panic!("{words}: {log}"));
        line.split(['[', ']']).nth(1).unwrap().to_owned()
    };
    assert_eq!(level("limit \"default\""), "error");
    assert_eq!(level("limit \"info\""), "info");
    assert_eq!(level("ms by limit \"queue\""), "notice");
}

#[test]
fn both_metrics_pages_show_limits_and_zones() {
    let nginx = Nginx::start(
        "tollgate_zone main size=1m rows=10 row_entries=5; tollgate_zone spare size=64k;
         server { listen 127.0.0.1:@port@;
             location / { tollgate zone=main key=$http_x_api_key rate=2/d name=two; empty_gif; }
             location /log { tollgate zone=main key=$http_x_api_key rate=5/d algorithm=sliding_log; empty_gif; }
             location = /metrics { tollgate_metrics; } }",
    );
    assert_eq!(nginx.statuses("a", "/", 5), [200, 200, 429, 429, 429]);
    assert_eq!(nginx.statuses("b", "/", 1), [200]);
    assert_eq!(nginx.statuses("b", "/log", 1), [200]);

    let page = nginx.get("/metrics", &[]);
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let text = page.text();
    for line in [
        "# TYPE tollgate_requests_total counter",
        "tollgate_requests_total{zone=\"main\",limit=\"two\",result=\"allowed\"} 3",
        "tollgate_requests_total{zone=\"main\",limit=\"two\",result=\"rejected\"} 3",
        "tollgate_requests_total{zone=\"main\",limit=\"http_x_api_key\",result=\"allowed\"} 1",
        "tollgate_zone_keys_used{zone=\"main\"} 2",
        "tollgate_zone_evictions_total{zone=\"main\"} 0",
        "tollgate_zone_rows_used{zone=\"main\"} 1",
        "tollgate_zone_rows_capacity{zone=\"main\"} 10",
        "tollgate_zone_keys_used{zone=\"spare\"} 0",
        "tollgate_zone_bytes{zone=\"spare\"} 65536",
    ] {
        assert!(text.lines().any(|l| l == line), "{line:?} is missing in:\n{text}");
    }
    // The text format: each line a comment or `name{labels} number`, each family together.
    let mut families = Vec::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<u64>().is_ok(), "{line}");
        let family = series.split('{').next().unwrap();
        if families.last() != Some(&family) {
            assert!(!families.contains(&family), "{family} is in two places");
            families.push(family);
        }
    }

    let json = nginx.metrics();
    assert_eq!(json["zones"][0]["name"], "main");
    assert_eq!(json["zones"][0]["limits"][0]["name"], "two");
    assert_eq!(json["zones"][0]["limits"][0]["rejected"], 3);
    assert_eq!(json["zones"][0]["rows"]["used"], 1);
    assert_eq!(json["zones"][1]["name"], "spare");
    assert!(json["zones"][0]["keys"]["live"].is_null());
    let live = nginx.get("/metrics?format=json&live=1", &[]);
    let live: serde_json::Value = serde_json::from_slice(&live.body).unwrap();
    assert_eq!(live["zones"][0]["keys"]["live"], 2);
}

#[test]
fn the_metrics_page_answers_get_and_head_only() {
    let nginx = Nginx::start("server { listen 127.0.0.1:@port@; location = /metrics { tollgate_metrics; } }");
    assert_eq!(nginx.send("HEAD", "/metrics", &[]).status, 200);
    assert_eq!(nginx.send("DELETE", "/metrics", &[]).status, 405);
    let empty: serde_json::Value = nginx.metrics();
    assert_eq!(empty["zones"].as_array().unwrap().len(), 0);
}
