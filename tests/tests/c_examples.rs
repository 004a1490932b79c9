//! The programs of `ffi/examples`: each is compiled as C and as C++, with the static and the shared
//! library, by nothing but pkg-config; each runs plain, under valgrind and under sanitizers, and says
//! what it should.

use tollgate_tests::install::{all_ways, compile, root};
use tollgate_tests::redis::Server;

fn every_way(example: &str, check: impl Fn(&str)) {
    for (language, linkage, watch) in all_ways() {
        check(&compile(&format!("ffi/examples/{example}.c"), language, linkage, watch).run());
    }
}

#[test]
fn a_single_bucket_admits_its_burst_and_says_when_to_come_back() {
    every_way("single_bucket", |out| {
        let lines: Vec<&str> = out.lines().collect();
        for (index, line) in lines.iter().take(5).enumerate() {
            assert_eq!(
                *line,
                format!("request {}: allowed, {} left, retry after 0.0 s", index + 1, 4 - index)
            );
        }
        let wait = lines[5].strip_prefix("request 6: denied, 0 left, retry after ").unwrap();
        let wait: f64 = wait.strip_suffix(" s").unwrap().parse().unwrap();
        assert!((0.0..=6.0).contains(&wait), "{out}");
        assert_eq!(lines.len(), 6, "{out}");
    });
}

#[test]
fn processes_that_share_a_table_share_its_burst() {
    every_way("shared_table", |out| {
        assert_eq!(out, "4 processes asked 1000 times each: 100 admitted, 3900 denied\n");
    });
}

#[test]
fn layers_charge_all_or_none_and_a_failed_request_is_given_back() {
    every_way("layers", |out| {
        assert_eq!(
            out,
            "ann: allowed, but failed, so given back\n\
             ann: allowed, 2 left of the user's\n\
             ann: allowed, 1 left of the user's\n\
             ann: allowed, 0 left of the user's\n\
             ann: denied by the limit of the user\n\
             bob: allowed, 1 left of the tenant's\n\
             bob: allowed, 0 left of the tenant's\n\
             bob: denied by the limit of the tenant\n"
        );
    });
}

#[test]
fn a_denial_is_a_whole_http_answer() {
    every_way("http_answer", |out| {
        let (head, body) = out.split_once("\r\n\r\n").unwrap();
        let length = format!("Content-Length: {}", body.len());
        assert_eq!(
            head.split("\r\n").collect::<Vec<_>>(),
            [
                "HTTP/1.1 429 Too Many Requests",
                "RateLimit-Policy: \"orders\";q=100;w=60",
                "RateLimit: \"orders\";r=0;t=18",
                "Retry-After: 18",
                "Content-Type: application/problem+json",
                &length,
            ]
        );
        let problem: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(problem["status"], 429);
        assert_eq!(problem["violated-policies"], serde_json::json!(["orders"]));
        assert_eq!(problem["retry_after"], 18);
    });
}

#[test]
fn threads_of_a_server_share_what_redis_counts() {
    for (language, linkage, watch) in all_ways() {
        let server = Server::start(&[]);
        let url = format!("redis://127.0.0.1:{}", server.port());
        let program = compile("ffi/examples/threaded_server.c", language, linkage, watch);
        assert_eq!(
            program.run_with(&[&url]),
            "8 threads asked 100 times each: 500 served, 300 denied\n\
             without a key: 401\nfar fewer than a call for each request\n"
        );
        let again = program.run_with(&[&url]);
        assert!(again.contains("has spent tokens of this limit"), "{again}");
        drop(server);
        let alone = program.run_with(&[&url]);
        assert!(
            alone.contains("0 served, 800 denied") && alone.contains("Redis did not answer: "),
            "{alone}"
        );
        assert!(!alone.contains("than a call for each"), "{alone}");
    }
}

/// An example that no test above names is not tested at all.
#[test]
fn every_example_is_tested() {
    let mut examples: Vec<String> = std::fs::read_dir(root().join("ffi/examples"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    examples.sort();
    assert_eq!(
        examples,
        ["http_answer.c", "layers.c", "shared_table.c", "single_bucket.c", "threaded_server.c"]
    );
}
