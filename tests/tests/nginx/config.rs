//! A wrong configuration is refused at `nginx -t`, with what, where and what would be right.

use tollgate_tests::nginx::Nginx;

/// In a location of a server whose zone is `main`.
fn location(directive: &str) -> String {
    format!(
        "tollgate_zone main size=1m;
         server {{ listen 127.0.0.1:@port@; location / {{ {directive} }} }}"
    )
}

fn refused(conf: &str, words: &[&str]) {
    let (ok, said) = Nginx::test(conf);
    assert!(!ok, "accepted: {conf}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert!(said.contains("nginx.conf:"), "no file and line in: {said}");
}

#[test]
fn a_right_configuration_is_accepted() {
    for directive in [
        "tollgate zone=main key=$http_x_api_key rate=100r/s burst=200;",
        "tollgate zone=main key=$http_x_api_key rate=30r/m;",
        "tollgate zone=main key=${http_x_api_key} rate=1/1.5s;",
        "tollgate zone=main key=$binary_remote_addr$uri rate=5000/h algorithm=fixed_window;",
        "tollgate zone=main key=$http_x_api_key rate=700/m cost=$arg_c status=503 status_over=400 name=x;",
        "tollgate zone=main key=$http_x_api_key rate=100/s delay;",
        "tollgate off;",
        "tollgate_headers ratelimit; tollgate_dry_run on; tollgate_log_level info;",
        "tollgate_metrics;",
    ] {
        let (ok, said) = Nginx::test(&location(directive));
        assert!(ok, "{directive}: {said}");
    }
}

#[test]
fn what_is_missing_is_named() {
    refused(&location("tollgate zone=main rate=1r/s;"), &["\"tollgate\" must have \"key\" parameter"]);
    refused(&location("tollgate zone=main key=$uri;"), &["\"tollgate\" must have \"rate\" parameter"]);
    refused(&location("tollgate key=$uri rate=1r/s;"), &["\"tollgate\" must have \"zone\" parameter"]);
    refused(&location("tollgate;"), &["invalid number of arguments in \"tollgate\""]);
    refused("tollgate_zone main rows=1;", &["\"tollgate_zone\" must have \"size\" parameter"]);
}

#[test]
fn unknown_words_are_named() {
    refused(&location("tollgate zone=main key=$uri rate=1r/s brust=5;"), &["invalid parameter \"brust=5\""]);
    refused(&location("tollgate zone=main key=$uri rate=1r/s nodelay;"), &["invalid parameter \"nodelay\""]);
    refused(&location("tollgate zone=main key=$uri rate=1r/s burst=;"), &["invalid parameter \"burst=\""]);
    let (ok, said) = Nginx::test(&location("tollgate zone=main key=$nosuch rate=1r/s;"));
    assert!(!ok && said.contains("unknown \"nosuch\" variable"), "{said}");
    refused(
        &location("tollgate zone=main key=$uri rate=1r/s algorithm=gcra;"),
        &["unknown algorithm \"gcra\"", "token_bucket", "concurrency"],
    );
    refused(
        &location("tollgate zone=main key=$uri rate=1r/s brust=5;"),
        &["zone=, key=, rate=, burst=, algorithm=, cost=, delay, name=, status= and status_over= are legal"],
    );
    refused(
        &location("tollgate_headers x-rate;"),
        &["invalid value \"x-rate\"", "\"tollgate_headers\"", "off, x-ratelimit, ratelimit-03, ratelimit in"],
    );
    refused(
        &location("tollgate_log_level debug;"),
        &["invalid value \"debug\"", "info, notice, warn, error in"],
    );
    refused(&location("tollgate_dry_run maybe;"), &["invalid value \"maybe\""]);
    refused("tollgate_zone main size=1m colour=red;", &["invalid parameter \"colour=red\"", "rows="]);
}

#[test]
fn zones_are_defined_once_and_before_use_or_after() {
    refused("tollgate_zone main size=1m; tollgate_zone main size=1m;", &["duplicate zone \"main\""]);
    refused("tollgate_zone main size=1m; tollgate_zone main size=2m;", &["main", "conflicts"]);
    refused(
        "server { listen 127.0.0.1:@port@; location / { tollgate zone=nowhere key=$uri rate=1r/s; } }",
        &["unknown zone \"nowhere\""],
    );
    refused("limit_req_zone $uri zone=main:1m rate=1r/s; tollgate_zone main size=1m;", &["already", "main"]);
    let (ok, said) = Nginx::test(
        "server { listen 127.0.0.1:@port@; location / { tollgate zone=later key=$uri rate=1r/s; } }
         tollgate_zone later size=1m;",
    );
    assert!(ok, "{said}");
}

#[test]
fn zone_sizes_have_a_range() {
    refused("tollgate_zone main size=0;", &["invalid zone size \"size=0\"", "from 65536"]);
    refused("tollgate_zone main size=lots;", &["invalid zone size \"size=lots\""]);
    refused("tollgate_zone main size=63k;", &["zone \"main\" is too small"]);
    refused("tollgate_zone main size=1m row_entries=5;", &["needs \"rows\""]);
    refused("tollgate_zone main size=1m rows=0;", &["invalid parameter \"rows=0\""]);
    refused("tollgate_zone main size=1m rows=-4;", &["invalid parameter \"rows=-4\""]);
    let (ok, said) = Nginx::test("tollgate_zone main size=1m rows=1000000 row_entries=1000;");
    assert!(!ok && said.contains("zone \"main\" is too small"), "{said}");
    let (ok, said) = Nginx::test("tollgate_zone main size=64k;");
    assert!(ok, "{said}");
    refused("tollgate_zone 'ma in' size=1m;", &["invalid zone name"]);
}

#[test]
fn limits_say_what_is_wrong_and_the_legal_range() {
    for rate in ["0/s", "-1/s", "100", "100/x", "1/0s", "99999999999/s", "1.5/s", "100r", "/s", "1/9999d"] {
        refused(&location(&format!("tollgate zone=main key=$uri rate={rate};")), &["invalid limit", rate]);
    }
    for burst in ["0", "-3", "x", "99999999999999999999"] {
        refused(
            &location(&format!("tollgate zone=main key=$uri rate=1r/s burst={burst};")),
            &["invalid limit", burst],
        );
    }
    refused(
        &location("tollgate zone=main key=$uri rate=10/s burst=20 algorithm=fixed_window;"),
        &["invalid limit", "burst"],
    );
    refused(
        &location("tollgate zone=main key=$uri rate=10/s algorithm=fixed_window delay;"),
        &["\"delay\" needs algorithm=leaky_bucket", "fixed_window"],
    );
    refused(&location("tollgate zone=main key=$uri rate=10/s cost=much;"), &["invalid cost \"much\""]);
    refused(&location("tollgate zone=main key=$uri rate=10/s cost=-1;"), &["invalid cost \"-1\""]);
    refused(&location("tollgate zone=main key=$uri rate=10/s cost=11;"), &["cost", "11", "10"]);
    refused(&location("tollgate zone=main key=$uri rate=10/s status=200;"), &["between 400 and 599"]);
    refused(&location("tollgate zone=main key=$uri rate=10/s status_over=999;"), &["between 400 and 599"]);
}

#[test]
fn limits_that_need_rows_say_so() {
    for algorithm in ["sliding_log", "concurrency"] {
        let conf = location(&format!("tollgate zone=main key=$uri rate=10/s algorithm={algorithm};"));
        refused(&conf, &["zone \"main\"", "needs \"rows\"", "row_entries=10"]);
    }
    let (ok, said) = Nginx::test(
        "tollgate_zone main size=1m rows=100 row_entries=9;
         server { listen 127.0.0.1:@port@;
             location / { tollgate zone=main key=$uri rate=10/s algorithm=sliding_log; } }",
    );
    assert!(!ok && said.contains("row_entries=10"), "{said}");
}

#[test]
fn names_are_identities() {
    refused(
        &location(
            "tollgate zone=main key=$uri rate=10/s name=x; tollgate zone=main key=$uri rate=20/s name=x;",
        ),
        &["limit \"x\" of zone \"main\"", "limits that differ need different names"],
    );
    refused(
        &location("tollgate zone=main key=$uri rate=1/s; tollgate zone=main key=$uri rate=1/s;"),
        &["is duplicate"],
    );
    for name in ["a b", "a\\\"b", "ü", &"n".repeat(64)] {
        refused(
            &location(&format!("tollgate zone=main key=$uri rate=1/s 'name={name}';")),
            &["invalid name"],
        );
    }
    refused(
        &location("tollgate off; tollgate zone=main key=$uri rate=1/s;"),
        &["cannot be \"off\" beside limits"],
    );
    refused(
        &location("tollgate zone=main key=$uri rate=1/s; tollgate off;"),
        &["cannot be \"off\" beside limits"],
    );
}

#[test]
fn directives_stand_where_they_may() {
    refused(
        "server { listen 127.0.0.1:@port@; tollgate_zone main size=1m; }",
        &["\"tollgate_zone\" directive is not allowed here"],
    );
    refused("tollgate_metrics;", &["\"tollgate_metrics\" directive is not allowed here"]);
    refused(&location("tollgate_metrics; tollgate_metrics;"), &["is duplicate"]);
}
