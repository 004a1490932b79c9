//! Which policies a request meets, and what it is counted under.

use tollgate_tests::nginx::Nginx;

use crate::rules_support::{RulesFile, document, policy, raw, start, start_with, statuses};

#[test]
fn a_policy_limits_what_it_matches() {
    let (nginx, _file) = start(&document(&[
        policy("path", r#""match": { "path": "/exact" },"#, "1/d"),
        policy("below", r#""match": { "path": "/api/*" },"#, "2/d"),
        policy("method", r#""match": { "method": ["PUT", "DELETE"] },"#, "1/d"),
        policy("host", r#""match": { "host": "shop.example" },"#, "1/d"),
        policy("there", r#""match": { "header": { "x-beta": true } },"#, "1/d"),
        policy("value", r#""match": { "header": { "x-plan": "free" } },"#, "1/d"),
    ]));
    assert_eq!(statuses(&nginx, 4, "/other", &[]), [200; 4]);
    assert_eq!(statuses(&nginx, 2, "/exact", &[]), [200, 429]);
    assert_eq!(nginx.get("/exact?with=query", &[]).status, 429);
    assert_eq!(nginx.get("/x/../%65xact", &[]).status, 429, "the path is the normalised one");
    assert_eq!(statuses(&nginx, 2, "/exactly", &[]), [200; 2]);
    assert_eq!(statuses(&nginx, 3, "/api/a/b", &[]), [200, 200, 429]);
    assert_eq!(nginx.send("PUT", "/x", &[]).status, 405, "empty_gif's own answer, one taken");
    assert_eq!(nginx.send("DELETE", "/x", &[]).status, 429);
    let host = |name: &str| raw(&nginx, format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes()).status;
    assert_eq!([host("Shop.Example:80"), host("shop.example"), host("other")], [200, 429, 200]);
    assert_eq!(statuses(&nginx, 2, "/", &[("X-Beta", "0")]), [200, 429]);
    assert_eq!(statuses(&nginx, 2, "/", &[("X-PLAN", "free")]), [200, 429]);
    assert_eq!(statuses(&nginx, 2, "/", &[("X-Plan", "paid")]), [200; 2]);
}

#[test]
fn a_route_is_the_name_that_the_configuration_gives_a_place() {
    let file = RulesFile::new(&document(&[
        policy("orders", r#""match": { "route": "create-order" },"#, "1/d"),
        policy("each", r#""match": { "header": { "x-each": true } }, "key": ["route"],"#, "1/d"),
    ]));
    let nginx = Nginx::start(&format!(
        "{} tollgate_zone main size=1m;
         server {{ listen 127.0.0.1:@port@;
             tollgate_policies zone=main route=site;
             location / {{ empty_gif; }}
             location /orders {{ tollgate_policies zone=main route=create-order; empty_gif; }}
             location /orders/free {{ tollgate_policies off; empty_gif; }} }}",
        file.directive("")
    ));
    assert_eq!(statuses(&nginx, 2, "/orders", &[]), [200, 429]);
    assert_eq!(statuses(&nginx, 2, "/orders/free", &[]), [200; 2]);
    assert_eq!(statuses(&nginx, 2, "/", &[("X-Each", "1")]), [200, 429]);
    assert_eq!(nginx.get("/", &[]).status, 200);
}

#[test]
fn every_part_of_a_key_tells_subjects_apart() {
    for (part, one, other) in [
        (r#""api_key""#, ("X-Api-Key", "a"), ("X-Api-Key", "b")),
        (r#""user""#, ("X-User-Id", "a"), ("X-User-Id", "b")),
        (r#""tenant""#, ("X-Tenant", "a"), ("X-Tenant", "b")),
        (r#""header:x-device""#, ("X-Device", "a"), ("X-Device", "b")),
    ] {
        let (nginx, _file) = start(&document(&[policy("p", &format!(r#""key": [{part}],"#), "1/d")]));
        assert_eq!(statuses(&nginx, 2, "/", &[one]), [200, 429], "{part}");
        assert_eq!(statuses(&nginx, 2, "/", &[other]), [200, 429], "{part}");
    }
    let (nginx, _file) = start(&document(&[policy("p", r#""key": ["path"],"#, "1/d")]));
    assert_eq!(statuses(&nginx, 2, "/a", &[]), [200, 429]);
    assert_eq!(nginx.get("/b", &[]).status, 200);
    let (nginx, _file) = start(&document(&[policy("p", r#""key": ["method"],"#, "1/d")]));
    assert_eq!(statuses(&nginx, 2, "/a", &[]), [200, 429]);
    assert_eq!(nginx.send("HEAD", "/b", &[]).status, 200);
    let (nginx, _file) = start(&document(&[policy("p", r#""key": ["global"],"#, "1/d")]));
    assert_eq!(statuses(&nginx, 2, "/a", &[("X-Api-Key", "a")]), [200, 429]);
    assert_eq!(nginx.get("/b", &[("X-Api-Key", "b")]).status, 429);
}

#[test]
fn an_address_is_the_peers_unless_a_trusted_proxy_tells_another() {
    let rules = |trusted: &str| {
        format!(
            r#"{{ "identity": {{ "ip": {{ "trusted_proxies": [{trusted}], "header": "x-forwarded-for" }} }},
                 "policies": [ {} ] }}"#,
            policy("net", r#""key": ["ip"],"#, "1/d")
        )
    };
    let (nginx, _file) = start(&rules(r#""127.0.0.0/8", "10.0.0.0/8""#));
    let chain = |chain: &str| nginx.get("/", &[("X-Forwarded-For", chain)]).status;
    assert_eq!([chain("198.51.100.1"), chain("198.51.100.1"), chain("198.51.100.2")], [200, 429, 200]);
    assert_eq!(chain("6.6.6.6, 198.51.100.1, 10.1.2.3"), 429, "what the client wrote is not believed");
    assert_eq!(chain("::ffff:198.51.100.1"), 429);
    // A proxy that appends a line of its own is read as one that appends to the line.
    let two = [("X-Forwarded-For", "203.0.113.77"), ("X-Forwarded-For", "198.51.100.1")];
    assert_eq!(nginx.get("/", &two).status, 429);
    let three = [two[0], two[1], ("X-Forwarded-For", "198.51.100.9")];
    assert_eq!(statuses(&nginx, 2, "/", &three), [200, 429]);
    // Nothing of the kind: the peer itself.
    assert_eq!(statuses(&nginx, 2, "/", &[]), [200, 429]);
    assert_eq!(chain("not an address"), 429);

    let (nginx, _file) = start(&rules(r#""10.0.0.0/8""#));
    let spoofed = |address: &str| nginx.get("/", &[("X-Forwarded-For", address)]).status;
    assert_eq!([spoofed("1.1.1.1"), spoofed("2.2.2.2")], [200, 429], "the peer is no trusted proxy");
}

#[test]
fn rfc_7239_chains_are_read_too() {
    let (nginx, _file) = start(&format!(
        r#"{{ "identity": {{ "ip": {{ "trusted_proxies": ["127.0.0.1"], "header": "forwarded" }} }},
             "policies": [ {} ] }}"#,
        policy("net", r#""key": ["ip"],"#, "1/d")
    ));
    let chain = |chain: &str| nginx.get("/", &[("Forwarded", chain)]).status;
    assert_eq!(chain(r#"for="[2001:db8::1]:4711";proto=https"#), 200);
    assert_eq!(chain(r#"for="[2001:db8::2]""#), 429, "of IPv6 the /64 counts");
    assert_eq!(chain(r#"for="[2001:db8:0:1::2]""#), 200);
}

#[test]
fn the_realip_module_is_respected() {
    let file = RulesFile::new(&document(&[policy("net", r#""key": ["ip"],"#, "1/d")]));
    if let Some(nginx) = start_if_possible(&format!(
        "{} tollgate_zone main size=1m;
         server {{ listen 127.0.0.1:@port@; set_real_ip_from 127.0.0.1; real_ip_header X-Real-IP;
             tollgate_policies zone=main; location / {{ empty_gif; }} }}",
        file.directive("")
    )) {
        let from = |address: &str| nginx.get("/", &[("X-Real-IP", address)]).status;
        assert_eq!([from("192.0.2.1"), from("192.0.2.1"), from("192.0.2.2")], [200, 429, 200]);
    }
}

#[test]
fn a_local_socket_has_no_address_and_is_limited_all_the_same() {
    let file = RulesFile::new(&document(&[policy("net", r#""key": ["ip"],"#, "1/d")]));
    let nginx = Nginx::start(&format!(
        "{} tollgate_zone main size=1m;
         server {{ listen 127.0.0.1:@port@; location / {{ proxy_pass http://unix:@dir@/s.sock; }} }}
         server {{ listen unix:@dir@/s.sock; tollgate_policies zone=main; location / {{ empty_gif; }} }}",
        file.directive("")
    ));
    assert_eq!(statuses(&nginx, 2, "/", &[]), [200, 429]);
}

#[test]
fn an_override_gives_one_subject_other_limits() {
    let (nginx, _file) = start(&document(&[policy(
        "tenant",
        r#""key": ["tenant", "api_key"],
           "overrides": [ { "key": ["big", "k"], "limits": [ { "rate": "4/d" } ] } ],"#,
        "1/d",
    )]));
    let as_tenant =
        |tenant: &str, n: usize| statuses(&nginx, n, "/", &[("X-Tenant", tenant), ("X-Api-Key", "k")]);
    assert_eq!(as_tenant("small", 2), [200, 429]);
    assert_eq!(as_tenant("big", 5), [200, 200, 200, 200, 429]);
}

#[test]
fn a_cost_comes_from_a_header_up_to_its_ceiling() {
    let (nginx, _file) = start(&document(&[policy(
        "bytes",
        r#""key": ["api_key"], "cost": { "header": "x-cost", "max": 6, "default": 2 },"#,
        "10/d",
    )]));
    let left = |key: &str, cost: &str| {
        let answer = nginx.get("/", &[("X-Api-Key", key), ("X-Cost", cost)]);
        (answer.status, answer.number("x-ratelimit-remaining"))
    };
    assert_eq!(left("a", "3"), (200, 7));
    assert_eq!(left("a", "1000000"), (200, 1), "the ceiling");
    assert_eq!(left("a", "2"), (429, 1));
    assert_eq!(left("b", "many"), (200, 8), "no number: the default");
    assert_eq!(left("b", "99999999999999999999999"), (200, 2), "more digits make nothing cheaper");
    assert_eq!(left("b", "0"), (200, 2));
}

#[test]
fn the_default_is_for_what_no_policy_matches() {
    let (nginx, _file) = start_with(
        1,
        r#"{ "identity": { "api_key": { "header": "x-api-key" } },
             "policies": [ { "name": "api", "match": { "path": "/api/*" }, "limits": [ { "rate": "3/d" } ] } ],
             "default": { "key": ["api_key"], "limits": [ { "rate": "1/d" } ] } }"#,
        "",
    );
    assert_eq!(statuses(&nginx, 2, "/x", &[("X-Api-Key", "a")]), [200, 429]);
    assert_eq!(statuses(&nginx, 1, "/x", &[("X-Api-Key", "b")]), [200]);
    assert_eq!(statuses(&nginx, 4, "/api/x", &[("X-Api-Key", "a")]), [200, 200, 200, 429]);
}

fn start_if_possible(http: &str) -> Option<Nginx> {
    let (ok, said) = Nginx::test(http);
    if !ok && said.contains("unknown directive \"set_real_ip_from\"") {
        return None; // this NGINX is built without it
    }
    Some(Nginx::start(http))
}
