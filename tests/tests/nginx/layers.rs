//! Several limits on one request: all are charged or none, and the tightest is told.

use tollgate_tests::nginx::Nginx;

const METRICS: &str = "location = /metrics { tollgate off; tollgate_metrics; }";

#[test]
fn a_layer_that_denies_charges_no_other() {
    let nginx = Nginx::start(&format!(
        "tollgate_zone main size=1m;
         server {{ listen 127.0.0.1:@port@;
             location / {{ tollgate zone=main key=$http_x_api_key rate=10/d name=group;
                          tollgate zone=main key=$http_x_api_key rate=3/d name=route; empty_gif; }}
             location /group {{ tollgate zone=main key=$http_x_api_key rate=10/d name=group; empty_gif; }}
             {METRICS} }}"
    ));
    assert_eq!(nginx.statuses("a", "/", 5), [200, 200, 200, 429, 429]);
    // 3 were taken, and this one.
    assert_eq!(nginx.get_as("a", "/group").number("x-ratelimit-remaining"), 6);
    assert_eq!(nginx.counter("group", "allowed"), 4);
    assert_eq!(nginx.counter("group", "rejected"), 0);
    assert_eq!(nginx.counter("route", "rejected"), 2);
}

#[test]
fn layers_in_different_zones_are_all_or_none_too() {
    for (first, second) in [("one", "two"), ("two", "one")] {
        let nginx = Nginx::start(&format!(
            "tollgate_zone one size=1m; tollgate_zone two size=1m rows=16 row_entries=16;
             server {{ listen 127.0.0.1:@port@;
                 location / {{ tollgate zone={first} key=$http_x_api_key rate=10/d name=group;
                              tollgate zone={second} key=$http_x_api_key rate=3/d name=route;
                              empty_gif; }}
                 location /group {{ tollgate zone={first} key=$http_x_api_key rate=10/d name=group;
                                   empty_gif; }} }}"
        ));
        assert_eq!(nginx.statuses("a", "/", 5), [200, 200, 200, 429, 429]);
        assert_eq!(nginx.get_as("a", "/group").number("x-ratelimit-remaining"), 6);
    }
}

#[test]
fn a_hold_is_given_back_when_a_later_zone_denies() {
    let nginx = Nginx::start(
        "tollgate_zone one size=1m rows=16 row_entries=16; tollgate_zone two size=1m;
         server { listen 127.0.0.1:@port@;
             location / { tollgate zone=one key=$http_x_api_key rate=1/300s algorithm=concurrency name=busy;
                          tollgate zone=two key=$http_x_api_key rate=1/d name=day; empty_gif; }
             location /busy { tollgate zone=one key=$http_x_api_key rate=1/300s algorithm=concurrency
                                       name=busy; empty_gif; } }",
    );
    assert_eq!(nginx.statuses("a", "/", 3), [200, 429, 429]);
    assert_eq!(nginx.statuses("a", "/busy", 2), [200, 200]);
}

#[test]
fn allowed_tells_the_lowest_remaining_and_denied_the_longest_wait() {
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         log_format it '$tollgate_limit';
         access_log @dir@/access.log it;
         server { listen 127.0.0.1:@port@;
             location / { tollgate zone=main key=$http_x_api_key rate=100/d name=wide;
                          tollgate zone=main key=$http_x_api_key rate=2/h name=slow;
                          tollgate zone=main key=$http_x_api_key rate=2/m name=fast; empty_gif; } }",
    );
    let allowed = nginx.get_as("a", "/");
    assert_eq!(allowed.number("x-ratelimit-remaining"), 1);
    assert_eq!(nginx.get_as("a", "/").status, 200);
    let denied = nginx.get_as("a", "/");
    assert_eq!(denied.status, 429);
    let wait = denied.number("retry-after");
    assert!(wait > 1700 && wait <= 1800, "the hourly limit's wait, not the minute's: {wait}");
    assert_eq!(nginx.access_log(3)[2], "slow");
}

#[test]
fn limits_are_inherited_as_a_whole_or_replaced_as_a_whole() {
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         tollgate zone=main key=$http_x_api_key rate=5/d name=everywhere;
         server { listen 127.0.0.1:@port@;
             location / { empty_gif; }
             location /own { tollgate zone=main key=$http_x_api_key rate=1/d name=own; empty_gif; }
             location /free { tollgate off; empty_gif; } }",
    );
    assert_eq!(nginx.statuses("a", "/own", 2), [200, 429]);
    assert_eq!(nginx.statuses("a", "/free", 8), [200; 8]);
    assert_eq!(nginx.get_as("a", "/free").header("x-ratelimit-limit"), None);
    assert_eq!(nginx.statuses("a", "/", 6), [200, 200, 200, 200, 200, 429]);
}

#[test]
fn an_empty_key_is_not_limited_and_other_layers_still_are() {
    let nginx = Nginx::start(&format!(
        "tollgate_zone main size=1m;
         server {{ listen 127.0.0.1:@port@;
             location / {{ tollgate zone=main key=$http_x_api_key rate=1/d; empty_gif; }}
             location /both {{ tollgate zone=main key=$http_x_api_key rate=1/d name=key;
                              tollgate zone=main key=$arg_user rate=2/d name=user; empty_gif; }}
             {METRICS} }}"
    ));
    for _ in 0..3 {
        let free = nginx.get("/", &[]);
        assert_eq!((free.status, free.header("x-ratelimit-limit")), (200, None));
    }
    assert_eq!(nginx.counter("http_x_api_key", "allowed"), 0);
    let statuses: Vec<_> = (0..3).map(|_| nginx.get("/both?user=u", &[]).status).collect();
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn a_key_may_be_made_of_several_variables_or_of_none() {
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         server { listen 127.0.0.1:@port@;
             location / { tollgate zone=main key=$remote_addr:$arg_a-$arg_b rate=1/d; empty_gif; }
             location /all { tollgate zone=main key=everybody rate=1/d; empty_gif; } }",
    );
    assert_eq!(nginx.statuses("x", "/?a=1&b=2", 2), [200, 429]);
    assert_eq!(nginx.statuses("x", "/?a=12&b=", 1), [200]);
    assert_eq!(nginx.statuses("x", "/all", 1), [200]);
    assert_eq!(nginx.statuses("y", "/all", 1), [429]);
}

#[test]
fn limits_of_one_zone_and_key_count_apart_unless_they_are_the_same_limit() {
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         server { listen 127.0.0.1:@port@;
             location /a { tollgate zone=main key=$http_x_api_key rate=2/d; empty_gif; }
             location /b { tollgate zone=main key=$http_x_api_key rate=3/d; empty_gif; }
             location /c { tollgate zone=main key=$http_x_api_key rate=2/d; empty_gif; } }",
    );
    assert_eq!(nginx.statuses("k", "/a", 3), [200, 200, 429]);
    assert_eq!(nginx.statuses("k", "/b", 4), [200, 200, 200, 429]);
    assert_eq!(nginx.statuses("k", "/c", 1), [429], "the same words are the same limit");
}

#[test]
fn sixteen_layers_are_the_most() {
    let many = |n: usize| {
        let layers: String =
            (0..n).map(|i| format!("tollgate zone=main key=$http_x_api_key rate=9/d name=l{i};")).collect();
        format!(
            "tollgate_zone main size=1m;
             server {{ listen 127.0.0.1:@port@; location / {{ {layers} empty_gif; }} }}"
        )
    };
    let nginx = Nginx::start(&many(16));
    assert_eq!(nginx.get_as("a", "/").number("x-ratelimit-remaining"), 8);
    let (ok, said) = Nginx::test(&many(17));
    assert!(!ok && said.contains("more than 16 limits"), "{said}");
}
