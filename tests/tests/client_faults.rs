//! Each fault of a Redis, under load through the native client: what is held against it stands in
//! [`tollgate_tests::redis_faults`]. With `--nocapture` each tells its row.

use tollgate_core::client::{Client, ClientConfig};
use tollgate_core::policy::Attributes;
use tollgate_tests::redis_faults::{Counts, Fault, Gateway, Scene, rules, weather};

struct Program(Client);

impl Program {
    fn before(scene: &Scene) -> Program {
        let password = scene.password().map_or_else(String::new, |password| format!(":{password}@"));
        let config = ClientConfig::new(format!("redis://{password}127.0.0.1:{}", scene.ports()[0]));
        Program(Client::new(&rules(), &config).unwrap())
    }
}

impl Gateway for Program {
    fn client(&self, path: String, key: String) -> Box<dyn FnMut() -> Option<u16> + Send + '_> {
        assert_eq!(self.0.headers(), ["x-api-key"]);
        Box::new(move || {
            let headers = [Some(key.as_bytes())];
            let (route, method, host) = (&b""[..], &b"GET"[..], &b""[..]);
            let request =
                Attributes { route, method, host, path: path.as_bytes(), peer: None, headers: &headers };
            let answer = self.0.check(&request).ok()?;
            Some(if answer.allowed { 200 } else { 429 })
        })
    }

    fn counts(&self) -> Counts {
        let seen = self.0.metrics().snapshot();
        Counts {
            replies: seen.replies,
            failures: seen.failures,
            timeouts: seen.timeouts,
            key_failures: seen.key_failures,
            fallbacks: [seen.fallback_local, seen.fallback_allow, seen.fallback_deny],
            opened: seen.opened,
            open: seen.open,
            waiting: seen.waiting,
        }
    }
}

fn under_load(fault: Fault) {
    let mut scene = Scene::new(fault);
    let program = Program::before(&scene);
    println!("{}", weather("client", &mut scene, &program));
}

macro_rules! faults {
    ($($test:ident: $fault:ident,)+) => {
        $(
            #[test]
            fn $test() {
                under_load(Fault::$fault);
            }
        )+

        /// All but a second address: a client has one, behind which another server may stand.
        #[test]
        fn each_fault_is_here() {
            let all: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| *fault != Fault::Promoted).collect();
            assert_eq!(all, [$(Fault::$fault),+]);
        }
    };
}

faults! {
    redis_is_killed: Killed,
    redis_comes_back_empty: RestartedEmpty,
    redis_is_stopped: Stopped,
    replies_are_cut: Cut,
    scripts_are_flushed: ScriptsFlushed,
    the_address_leads_to_a_new_master: Moved,
    redis_loads: Loading,
    the_password_is_another_one: WrongPassword,
    lists_lie_where_states_were: WrongType,
    memory_is_full: NoMemory,
    replies_are_garbage: Garbage,
    replies_come_late: Late,
}
