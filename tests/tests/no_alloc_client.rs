//! The native client allocates nothing for what it answers from memory: a lease, a denial that is
//! remembered, a limit of this machine.

use tollgate_core::client::{Client, ClientConfig};
use tollgate_core::policy::Attributes;
use tollgate_tests::counting::{Counting, calls};
use tollgate_tests::redis::Server;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn what_memory_answers_allocates_nothing() {
    let server = Server::start(&[]);
    let rules = r#"{ "policies": [
        { "name": "leased", "match": { "path": "/leased" }, "limits": [ { "rate": "1/d", "burst": 50000 } ],
          "store": "redis", "timeout": "5s", "lease": { "max": 200, "ttl": "60s" } },
        { "name": "denied", "match": { "path": "/denied" }, "limits": [ { "rate": "1/d" } ],
          "store": "redis", "timeout": "5s" },
        { "name": "local", "match": { "path": "/local" }, "limits": [ { "rate": "1000/s" } ] } ] }"#;
    let config = ClientConfig::new(format!("redis://127.0.0.1:{}", server.port()));
    let client = Client::new(rules, &config).unwrap();
    let mut free = [0; 3];
    for _ in 0..3000 {
        for (path, free) in ["/leased", "/denied", "/local"].iter().zip(&mut free) {
            let (route, method, host, headers) = (&b""[..], &b"GET"[..], &b""[..], &[][..]);
            let request = Attributes { route, method, host, path: path.as_bytes(), peer: None, headers };
            let (sent, before) = (client.metrics().snapshot().calls, calls());
            let answer = client.check(&request).unwrap();
            let allocated = calls() - before;
            client.release(&answer);
            if client.metrics().snapshot().calls == sent && *path != "/leased" {
                assert!(allocated == 0 || *free == 0, "{path} called the allocator"); // a thread's first time
                *free += 1;
            } else if allocated == 0 {
                *free += 1;
            }
        }
    }
    let seen = client.metrics().snapshot();
    // A pot that is low sends for more, which allocates; a lease of 200 does so now and then.
    assert!(free[0] as u64 > 2500 && free[1] > 2500 && free[2] > 2500, "{free:?} {seen:?}");
    // One that has to wait for what is being fetched allocates too: this one thread, once for each call.
    assert!(free[0] as u64 + 2 * seen.calls >= 3000, "{free:?} {seen:?}");
}
