//! A request is charged once, however many subrequests nginx makes of it.

use std::fs;

use tollgate_tests::nginx::Nginx;

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
