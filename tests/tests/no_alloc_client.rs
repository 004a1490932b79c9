//! The native client allocates nothing for what it answers from memory: a lease, a denial that is
//! remembered, a limit of this machine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tollgate_core::client::{Client, ClientConfig};
use tollgate_core::policy::Attributes;
use tollgate_tests::redis::Server;

struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    CALLS.set(CALLS.get() + 1);
}

// SAFETY: the system's allocator, unchanged; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

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
            let (sent, before) = (client.metrics().snapshot().calls, CALLS.get());
            let answer = client.check(&request).unwrap();
            let allocated = CALLS.get() - before;
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
    assert!(free[0] as u64 + seen.calls >= 3000, "{free:?} {seen:?}");
}
