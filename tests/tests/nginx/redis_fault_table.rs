//! Each fault of a Redis, under load through NGINX: what is held against it stands in
//! [`tollgate_tests::redis_faults`]. With `--nocapture` each tells its row.
//!
//! Cases 3, 15 and 16: nobody waits longer than the timeout, each policy's choice is obeyed, a log
//! says it once a second at most.

use std::time::Instant;

use tollgate_tests::nginx::{Conn, Nginx};
use tollgate_tests::redis_faults::{Counts, Fault, Gateway, Scene, rules, weather};

use crate::redis_support::store;
use crate::rules_support::RulesFile;

struct Site {
    nginx: Nginx,
    _rules: RulesFile,
}

impl Site {
    fn before(scene: &Scene) -> Site {
        let addresses: Vec<String> = scene.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let password = scene.password().map_or_else(String::new, |password| format!("password={password}"));
        let rules = RulesFile::new(&rules());
        let http = format!(
            "tollgate_redis {} {password}; keepalive_requests 1000000; {}",
            addresses.join(" "),
            rules.http("reload=1s", "")
        );
        Site { nginx: Nginx::start_with(2, &http), _rules: rules }
    }
}

impl Gateway for Site {
    fn client(&self, path: String, key: String) -> Box<dyn FnMut() -> Option<u16> + Send + '_> {
        let mut conn = Conn::open(self.nginx.port(1));
        Box::new(move || {
            conn.request("GET", &path, &[("X-Api-Key", &key)]);
            conn.response_to("GET").map(|answer| answer.status)
        })
    }

    fn counts(&self) -> Counts {
        let page = self.nginx.metrics();
        let of = |name: &str| page["store"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {page}"));
        Counts {
            replies: of("replies"),
            failures: of("failures"),
            timeouts: of("timeouts"),
            key_failures: of("key_failures"),
            fallbacks: ["fallback_local", "fallback_allow", "fallback_deny"].map(of),
            opened: of("breaker_opened"),
            open: of("breakers_open"),
            waiting: of("waiting"),
        }
    }
}

fn under_load(fault: Fault) {
    let mut scene = Scene::new(fault);
    let began = Instant::now();
    let site = Site::before(&scene);
    println!("{}", weather("nginx", &mut scene, &site));
    assert_eq!(store(&site.nginx, "waiting"), 0);
    // One word about a fault in each second, and one that it is over.
    let seconds = began.elapsed().as_secs() as usize + 1;
    let log = site.nginx.error_log();
    let said = log.lines().filter(|line| line.contains("Redis") && line.contains("[error]")).count();
    assert!(said <= seconds + 1, "{said} lines in {seconds} s: {log}");
    let again = log.lines().filter(|line| line.contains("connected again")).count();
    assert!(again <= said, "{log}");
}

macro_rules! faults {
    ($($test:ident: $fault:ident,)+) => {
        $(
            #[test]
            fn $test() {
                under_load(Fault::$fault);
            }
        )+

        #[test]
        fn each_fault_is_here() {
            assert_eq!(Fault::ALL, [$(Fault::$fault),+]);
        }
    };
}

faults! {
    redis_is_killed: Killed,
    redis_comes_back_empty: RestartedEmpty,
    redis_is_stopped: Stopped,
    replies_are_cut: Cut,
    scripts_are_flushed: ScriptsFlushed,
    a_replica_is_promoted: Promoted,
    the_address_leads_to_a_new_master: Moved,
    redis_loads: Loading,
    the_password_is_another_one: WrongPassword,
    lists_lie_where_states_were: WrongType,
    memory_is_full: NoMemory,
    replies_are_garbage: Garbage,
    replies_come_late: Late,
}
