//! Another plugin under the same `vm_id`, whose shared data are the same: what it writes over our
//! pages is no page, and no more than that.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_tests::envoy::{Setup, router, wasm};
use tollgate_tests::nginx::Conn;
use tollgate_tests::over::Over;

use super::support::{admitted, by_user};

#[test]
fn pages_that_another_plugin_spoils_are_begun_anew() {
    let module = Module::assembled();
    let held = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = held.local_addr().expect("an address").port();
    drop(held);
    let plugin = |rate: &str| {
        by_user(&format!(r#"{{ "rate": "{rate}" }}, {{ "algorithm": "sliding_log", "rate": "{rate}" }}"#))
            .replacen('{', r#"{ "embedded": { "pages": 8 }, "#, 1)
    };
    let mut setup = Setup::new(&plugin("10/d")).concurrency(2);
    setup.watched = true;
    setup.listeners.push(listener(port, &module));
    let envoy = setup.start();
    let spoil = || {
        let mut conn = Conn::open(port);
        conn.request("GET", "/", &[("connection", "close")]);
        assert_eq!(conn.response_to("GET").expect("an answer").status, 200);
    };

    // What was counted is gone with its page, and counting goes on.
    assert_eq!(admitted(&envoy, 20, 1, &[("x-user", "a")]), 10);
    spoil();
    assert_eq!(admitted(&envoy, 20, 1, &[("x-user", "b")]), 10);

    // All the time, under load: everybody is answered.
    let is_over = AtomicBool::new(false);
    let spoilt = thread::scope(|scope| {
        let spoiler = scope.spawn(|| {
            let mut times = 0;
            while !is_over.load(Ordering::Relaxed) {
                spoil();
                times += 1;
            }
            times
        });
        let over = Over(&is_over);
        let end = Instant::now() + Duration::from_secs(2);
        for round in 0.. {
            let user = format!("c-{round}");
            assert!(admitted(&envoy, 4, 10, &[("x-user", &user)]) > 0, "{user}");
            if Instant::now() > end {
                break;
            }
        }
        drop(over);
        spoiler.join().expect("no panic")
    });
    println!("the pages were spoilt {spoilt} times");
    for user in ["d", "e", "f"] {
        assert_eq!(admitted(&envoy, 20, 2, &[("x-user", user)]), 10, "the limit is the limit again");
    }

    // The seed was spoilt, too: whoever is given new rules draws another.
    envoy.update(&plugin("15/d"));
    let end = Instant::now() + Duration::from_secs(20);
    while envoy.get("/", &[("x-user", "probe")]).number("x-ratelimit-limit") != 15 {
        assert!(Instant::now() < end, "the new rules do not come: {}", envoy.log());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(admitted(&envoy, 20, 2, &[("x-user", "g")]), 15);
}

fn listener(port: u16, module: &Module) -> Value {
    let mut filter = wasm("spoiler", "front", "");
    filter["typed_config"]["config"]["vm_config"]["code"]["local"]["filename"] = json!(module.0);
    let ok = json!([ { "match": { "prefix": "/" }, "direct_response": { "status": 200 } } ]);
    json!({
        "name": "other",
        "address": { "socket_address": { "address": "127.0.0.1", "port_value": port } },
        "filter_chains": [ { "filters": [ {
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": "other",
                "route_config": { "virtual_hosts": [ { "name": "all", "domains": ["*"], "routes": ok } ] },
                "http_filters": [ filter, router() ],
            },
        } ] } ],
    })
}

/// `tests/wat/spoiler.wat`, assembled.
struct Module(PathBuf);

impl Module {
    fn assembled() -> Module {
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("wat/spoiler.wat");
        let module = std::env::temp_dir().join(format!("tollgate-spoiler-{}.wasm", std::process::id()));
        let status = Command::new("wasm-as").arg(source).arg("-o").arg(&module).status();
        assert!(status.expect("wasm-as runs (Debian: binaryen)").success());
        Module(module)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
