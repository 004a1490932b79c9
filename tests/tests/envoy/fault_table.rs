//! Each fault of a Redis, under load through Envoy, by the stream, behind which is tcp_proxy or
//! redis_proxy, and by POSTs: what is held against it stands in [`tollgate_tests::redis_faults`]. With `--nocapture` each tells its row: requests,
//! admitted, denied, median, p99 and longest wait, and recovery, in milliseconds.
//!
//! `Promoted` is not here: it is a gateway that knows two servers and finds the master, and which
//! server a call goes to is Envoy's to know. Nor is `Moved` behind redis_proxy, which keeps its
//! connection to a master that became a replica until that ends it, as Sentinel makes it do
//! (`faults::a_master_that_sentinel_replaces_is_followed`).

use std::time::Instant;

use serde_json::json;
use tollgate_tests::envoy::{Envoy, Setup, redis_at};
use tollgate_tests::redis_faults::{Counts, Fault, Gateway, Scene, rules, weather};

use super::support::{connected_by_post, count, statistic};

/// More than the policies' timeout: they give up sooner.
const OP_TIMEOUT: u32 = 250;
const WORKERS: u32 = 2;

struct Site(Envoy);

impl Site {
    fn before(scene: &Scene, transport: &str) -> Site {
        let port = scene.ports()[0];
        let plugin = |more: &str| {
            let connection = format!(r#"{{ "cluster": "{more}, "workers": {WORKERS}, "timeout_ms": 50 }}"#);
            format!(r#"{{ "redis": {connection}, "rules": {} }}"#, rules())
        };
        let password = scene.password();
        let by = |connection: &str| match password {
            Some(password) => Setup::new(&plugin(&format!(r#"{connection}, "password_env": "REDIS_WORD""#)))
                .environment(&[("REDIS_WORD", password)]),
            None => Setup::new(&plugin(connection)),
        };
        let setup = match transport {
            "stream" => by("tollgate_bridge\"").redis(port),
            "redis_proxy" => {
                let mut cluster = redis_at(port);
                if let Some(password) = password {
                    cluster["typed_extension_protocol_options"] = json!({ "envoy.filters.network.redis_proxy": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProtocolOptions",
                        "auth_password": { "inline_string": password },
                    } });
                }
                Setup::new(&plugin("tollgate_bridge\"")).redis_proxy(cluster, OP_TIMEOUT)
            }
            _ => by(r#"redis", "transport": "post""#).redis_by_post(port),
        };
        let envoy = setup.concurrency(WORKERS).start();
        match transport {
            "post" => connected_by_post(&envoy, WORKERS.into()),
            _ => statistic(&envoy, "tollgate_store_connected", WORKERS.into()),
        }
        Site(envoy)
    }
}

impl Gateway for Site {
    fn client(&self, path: String, key: String) -> Box<dyn FnMut() -> Option<u16> + Send + '_> {
        let mut conn = self.0.connect();
        Box::new(move || {
            conn.request("GET", &path, &[("X-Api-Key", &key)]);
            conn.response_to("GET").map(|answer| answer.status)
        })
    }

    fn counts(&self) -> Counts {
        let stats = self.0.admin("/stats?filter=wasmcustom.tollgate.store");
        let of = |name: &str| count(&stats, &format!("store.{name}"));
        Counts {
            replies: of("replies"),
            failures: of("failures"),
            timeouts: of("timeouts"),
            key_failures: of("key_failures"),
            fallbacks: ["fallback_local", "fallback_allow", "fallback_deny"].map(of),
            opened: of("breaker_opened"),
            open: of("breaker_open"),
            waiting: of("waiting"),
        }
    }
}

fn under_load(fault: Fault, transport: &str) {
    let mut scene = Scene::new(fault);
    let began = Instant::now();
    let site = Site::before(&scene, transport);
    println!("{}", weather(&format!("envoy, {transport}"), &mut scene, &site));
    // One word a second of each worker, and one that it is over.
    let seconds = began.elapsed().as_secs() as usize + 1;
    let log = site.0.log();
    let said = log.lines().filter(|line| line.contains("decided without Redis")).count();
    assert!(said <= seconds * WORKERS as usize, "{said} lines in {seconds} s: {log}");
    let again = log.lines().filter(|line| line.contains("is asked again")).count();
    assert!(again <= said, "{log}");
}

macro_rules! faults {
    ($($test:ident: $fault:ident,)+ ; not_behind_redis_proxy: $($other:ident: $rest:ident,)+) => {
        mod behind_redis_proxy {
            $(
                #[test]
                fn $test() {
                    super::under_load(super::Fault::$fault, "redis_proxy");
                }
            )+
        }

        mod by_stream {
            $(
                #[test]
                fn $test() {
                    super::under_load(super::Fault::$fault, "stream");
                }
            )+
            $(
                #[test]
                fn $other() {
                    super::under_load(super::Fault::$rest, "stream");
                }
            )+
        }

        mod by_post {
            $(
                #[test]
                fn $test() {
                    super::under_load(super::Fault::$fault, "post");
                }
            )+
            $(
                #[test]
                fn $other() {
                    super::under_load(super::Fault::$rest, "post");
                }
            )+
        }

        #[test]
        fn each_fault_is_here() {
            let ours = [$(Fault::$fault,)+ $(Fault::$rest,)+];
            assert!(Fault::ALL.iter().all(|fault| *fault == Fault::Promoted || ours.contains(fault)));
        }
    };
}

faults! {
    redis_is_killed: Killed,
    redis_comes_back_empty: RestartedEmpty,
    redis_is_stopped: Stopped,
    replies_are_cut: Cut,
    scripts_are_flushed: ScriptsFlushed,
    redis_loads: Loading,
    the_password_is_another_one: WrongPassword,
    lists_lie_where_states_were: WrongType,
    memory_is_full: NoMemory,
    replies_are_garbage: Garbage,
    replies_come_late: Late,
    ; not_behind_redis_proxy:
    the_address_leads_to_a_new_master: Moved,
}
