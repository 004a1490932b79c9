//! A request is charged once, however many subrequests nginx makes of it.

use std::fs;
use std::time::{Duration, Instant};

use tollgate_tests::nginx::{Conn, Nginx};

#[test]
fn auth_request_and_mirror_and_ssi_are_not_charged_again() {
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         server { listen 127.0.0.1:@port2@; location / { empty_gif; } }
         server { listen 127.0.0.1:@port@; root @dir@/www;
             tollgate zone=main key=$http_x_api_key rate=2/d;
             location /auth { auth_request /check; empty_gif; }
             location = /check { internal; proxy_pass http://127.0.0.1:@port2@; }
             location /mirrored { mirror /copy; empty_gif; }
             location = /copy { internal; proxy_pass http://127.0.0.1:@port2@; }
             location /ssi/ { ssi on; }
             location = /part { proxy_pass http://127.0.0.1:@port2@; } }",
    );
    fs::create_dir_all(nginx.dir().join("www/ssi")).unwrap();
    fs::write(
        nginx.dir().join("www/ssi/page.html"),
        "<!--#include virtual=\"/part\" --><!--#include virtual=\"/part\" -->",
    )
    .unwrap();
    for (key, path) in [("a", "/auth"), ("m", "/mirrored"), ("s", "/ssi/page.html")] {
        let answers: Vec<_> = (0..3).map(|_| nginx.get_as(key, path)).collect();
        let statuses: Vec<_> = answers.iter().map(|a| a.status).collect();
        assert_eq!(statuses, [200, 200, 429], "{path}");
        assert_eq!(answers[0].number("x-ratelimit-remaining"), 1, "{path}");
    }
}

#[test]
fn a_subrequest_alone_may_be_limited() {
    // The page is free, the check behind it is not: once a request, and a denial there is an
    // answer of the subrequest, which auth_request makes an error of its own.
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         server { listen 127.0.0.1:@port2@; location / { empty_gif; } }
         server { listen 127.0.0.1:@port@;
             location / { auth_request /check; empty_gif; }
             location = /check { internal; tollgate zone=main key=$http_x_api_key rate=2/d status=403;
                                 proxy_pass http://127.0.0.1:@port2@; } }",
    );
    assert_eq!(nginx.statuses("a", "/", 3), [200, 200, 403]);
}

#[test]
fn the_variables_of_a_subrequest_are_those_of_the_request() {
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         log_format it '$tollgate_status $tollgate_remaining';
         log_subrequest on;
         server { listen 127.0.0.1:@port2@; location / { empty_gif; } }
         server { listen 127.0.0.1:@port@; access_log @dir@/access.log it;
             tollgate zone=main key=$http_x_api_key rate=5/d;
             location / { auth_request /check; empty_gif; }
             location = /check { internal; proxy_pass http://127.0.0.1:@port2@; } }",
    );
    assert_eq!(nginx.get_as("a", "/").status, 200);
    assert_eq!(nginx.access_log(2), ["PASSED 4", "PASSED 4"]);
}

#[test]
fn a_subrequest_that_nothing_would_wake_does_not_wait() {
    // A mirror is in the background, and the second include is not the one whose turn it is: the
    // timer of the connection wakes another request than theirs.
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         server { listen 127.0.0.1:@port2@; location / { empty_gif; } }
         server { listen 127.0.0.1:@port@; root @dir@/www;
             location /mirrored { mirror /copy; empty_gif; }
             location = /copy { internal; tollgate zone=main key=copy rate=2/s burst=9 delay name=copy;
                                proxy_pass http://127.0.0.1:@port2@; }
             location /ssi/ { ssi on; }
             location = /free { proxy_pass http://127.0.0.1:@port2@; }
             location = /part { tollgate zone=main key=part rate=3/s burst=9 delay name=part;
                                proxy_pass http://127.0.0.1:@port2@; }
             location = /metrics { tollgate_metrics; } }",
    );
    fs::create_dir_all(nginx.dir().join("www/ssi")).unwrap();
    fs::write(
        nginx.dir().join("www/ssi/page.html"),
        "<!--#include virtual=\"/free\" --><!--#include virtual=\"/part\" -->",
    )
    .unwrap();
    for path in ["/mirrored", "/ssi/page.html"] {
        // On one connection: it is for the next request when the last one's copy has ended.
        let mut conn = Conn::open(nginx.port(1));
        for i in 0..4 {
            conn.request("GET", path, &[]);
            let answer = conn.response_to("GET");
            assert_eq!(answer.map(|a| a.status), Some(200), "{path} {i}");
        }
    }
    assert_eq!(nginx.counter("copy", "delayed") + nginx.counter("part", "delayed"), 0);
    assert_eq!((nginx.counter("copy", "allowed"), nginx.counter("part", "allowed")), (4, 4));
}

#[test]
fn a_subrequest_whose_turn_it_is_waits() {
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         server { listen 127.0.0.1:@port2@; location / { empty_gif; } }
         server { listen 127.0.0.1:@port@;
             location / { auth_request /check; empty_gif; }
             location = /check { internal; tollgate zone=main key=k rate=5/s burst=9 delay;
                                 proxy_pass http://127.0.0.1:@port2@; } }",
    );
    let start = Instant::now();
    assert_eq!(nginx.statuses("a", "/", 3), [200, 200, 200]);
    assert!(start.elapsed() >= Duration::from_millis(400));
}
