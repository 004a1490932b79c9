//! What happens to a Redis, and what no limiter in front of it may show of it.
//!
//! A [`Scene`] is a server with a fault that it will have. [`weather`] puts a load on a gateway,
//! whatever that is, lets the fault happen in the middle of it, and holds what clients saw against
//! the laws:
//!
//! - every request has an answer, which is 200 or 429, or 503 of the policy `deny`; 200 where the policy allows what cannot be
//!   counted;
//! - no answer comes later than the policy's timeout, but for what a busy machine adds;
//! - within a second of the fault's end Redis is asked again;
//! - each key was admitted what its limit gives, and one burst more at most: a Redis that lost its
//!   memory, or a gateway that counts on its own meanwhile, does not start full each time.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, cmd};

use crate::over::Over;
use crate::redis::Server;
use crate::redis_proxy::{Proxy, Weather};

/// What each policy names.
pub const TIMEOUT: Duration = Duration::from_millis(50);
/// What other programs on this machine may add to one wait: other tests, and compilers.
const BUSY: Duration = Duration::from_millis(1000);
/// As [`BUSY`], for all but one in a hundred of the waits.
const OFTEN_BUSY: Duration = Duration::from_millis(250);
/// From the end of a fault to calls that are answered, and what is allowed for on top as above.
const RECOVERY: Duration = Duration::from_millis(1000);

/// A gateway tells what it counted so often at least, and then some.
const TELLING: Duration = Duration::from_millis(300);

/// The policies: each is asked under the path of its name.
const POLICIES: [Policy; 4] = [
    Policy { name: "local", choice: "local", rate: 200, burst: 50, lease: "" },
    Policy { name: "leased", choice: "local", rate: 300, burst: 60, lease: LEASE },
    Policy { name: "deny", choice: "deny", rate: 200, burst: 50, lease: "" },
    Policy { name: "allow", choice: "allow", rate: 1_000_000, burst: 1_000_000, lease: "" },
];
const LEASE: &str = r#", "lease": { "max": 20, "ttl": "1s" }"#;
/// Connections, or threads, for each policy; they share its one key.
const EACH: usize = 2;

struct Policy {
    name: &'static str,
    choice: &'static str,
    rate: u64,
    burst: u64,
    lease: &'static str,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL; another one takes its place after a while, empty.
    Killed,
    /// The same at once.
    RestartedEmpty,
    /// SIGSTOP, and SIGCONT after a while.
    Stopped,
    /// Each reply is cut, and its connection with it.
    Cut,
    /// SCRIPT FLUSH, again and again.
    ScriptsFlushed,
    /// The replica becomes the master, and the master a replica; the gateway knows both.
    Promoted,
    /// The same; the gateway knows one address, which leads to the new master from then on.
    Moved,
    /// It is killed, and has much to load when it comes again.
    Loading,
    /// It has another password, and its clients are gone.
    WrongPassword,
    /// Lists lie where the state of all policies but "allow" was.
    WrongType,
    /// It takes no writes: its memory is full.
    NoMemory,
    /// What comes is no reply.
    Garbage,
    /// Each reply comes 100 ms later: twice the policies' timeout.
    Late,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 13] = [
        Fault::Killed,
        Fault::RestartedEmpty,
        Fault::Stopped,
        Fault::Cut,
        Fault::ScriptsFlushed,
        Fault::Promoted,
        Fault::Moved,
        Fault::Loading,
        Fault::WrongPassword,
        Fault::WrongType,
        Fault::NoMemory,
        Fault::Garbage,
        Fault::Late,
    ];

    /// Is Redis away for as long as the fault lasts, so that the breaker is sure to open?
    fn is_outage(self) -> bool {
        match self {
            Fault::Killed | Fault::Stopped | Fault::Cut | Fault::Loading | Fault::WrongPassword => true,
            Fault::NoMemory | Fault::Garbage | Fault::Late => true,
            Fault::RestartedEmpty | Fault::ScriptsFlushed | Fault::Promoted | Fault::Moved => false,
            Fault::WrongType => false,
        }
    }
}

/// A server and the fault it will have.
pub struct Scene {
    fault: Fault,
    redis: Server,
    replica: Option<Server>,
    proxy: Option<Proxy>,
    admin: Connection,
}

impl Scene {
    /// Starts what is needed.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn new(fault: Fault) -> Scene {
        let redis = Server::start(match fault {
            Fault::WrongPassword => &["--requirepass", "right"],
            Fault::Loading => &[
                "--key-load-delay",
                "2000",
                "--loading-process-events-interval-bytes",
                "1024",
                "--dbfilename",
                "all.rdb",
            ],
            _ => &[],
        });
        let mut admin = redis.connection();
        if fault == Fault::WrongPassword {
            tell(&mut admin, &["AUTH", "right"]);
        }
        if fault == Fault::Loading {
            let fill = "for i = 1, 500 do redis.call('SET', 'k' .. i, string.rep('x', 900)) end";
            tell(&mut admin, &["EVAL", fill, "0"]);
            tell(&mut admin, &["SAVE"]);
        }
        let replica = matches!(fault, Fault::Promoted | Fault::Moved).then(|| replica_of(&redis));
        let is_far = matches!(fault, Fault::Cut | Fault::Garbage | Fault::Late | Fault::Moved);
        let proxy = is_far.then(|| Proxy::start(redis.port()));
        Scene { fault, redis, replica, proxy, admin }
    }

    /// The ports of 127.0.0.1 that the gateway is to know.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        let first = self.proxy.as_ref().map_or(self.redis.port(), Proxy::port);
        let second = self.replica.as_ref().filter(|_| self.fault == Fault::Promoted);
        [first].into_iter().chain(second.map(Server::port)).collect()
    }

    /// The password, where there is one.
    #[must_use]
    pub fn password(&self) -> Option<&'static str> {
        (self.fault == Fault::WrongPassword).then_some("right")
    }

    /// The fault happens, and is over when this returns.
    fn happens(&mut self) {
        let lasts = Duration::from_millis(700);
        match self.fault {
            Fault::Killed => {
                self.redis.kill();
                thread::sleep(lasts);
                self.redis.restart();
            }
            Fault::RestartedEmpty | Fault::Loading => self.redis.restart(),
            Fault::Stopped => {
                self.redis.stop();
                thread::sleep(lasts);
                self.redis.cont();
            }
            Fault::Cut => self.proxy_is(Weather::Cut, lasts),
            Fault::Garbage => self.proxy_is(Weather::Garbage, lasts),
            Fault::Late => self.proxy_is(Weather::Late(Duration::from_millis(100)), lasts),
            Fault::ScriptsFlushed => {
                again_and_again(lasts, || tell(&mut self.admin, &["SCRIPT", "FLUSH"]));
            }
            Fault::Promoted | Fault::Moved => {
                let replica = self.replica.as_ref().expect("it has one");
                let port = replica.port().to_string();
                tell(&mut replica.connection(), &["REPLICAOF", "NO", "ONE"]);
                tell(&mut self.admin, &["REPLICAOF", "127.0.0.1", &port]);
                if let Some(proxy) = &self.proxy {
                    proxy.lead_to(replica.port());
                }
            }
            Fault::WrongPassword => {
                tell(&mut self.admin, &["CONFIG", "SET", "requirepass", "other"]);
                tell(&mut self.admin, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                thread::sleep(lasts);
                tell(&mut self.admin, &["CONFIG", "SET", "requirepass", "right"]);
            }
            Fault::WrongType => {
                let spoil = "for _, key in ipairs(redis.call('KEYS', 'tg:*')) do
                                 if not key:find('allow') and redis.call('TYPE', key).ok ~= 'list' then
                                     redis.call('DEL', key) redis.call('LPUSH', key, 'x')
                                 end
                             end";
                let clean = "for _, key in ipairs(redis.call('KEYS', 'tg:*')) do
                                 if redis.call('TYPE', key).ok == 'list' then redis.call('DEL', key) end
                             end";
                again_and_again(lasts, || tell(&mut self.admin, &["EVAL", spoil, "0"]));
                tell(&mut self.admin, &["EVAL", clean, "0"]);
            }
            Fault::NoMemory => {
                tell(&mut self.admin, &["CONFIG", "SET", "maxmemory", "1"]);
                thread::sleep(lasts);
                tell(&mut self.admin, &["CONFIG", "SET", "maxmemory", "0"]);
            }
        }
    }

    fn proxy_is(&self, weather: Weather, lasts: Duration) {
        let proxy = self.proxy.as_ref().expect("it has one");
        proxy.set(weather);
        thread::sleep(lasts);
        proxy.set(Weather::Clear);
    }
}

fn tell(connection: &mut Connection, words: &[&str]) {
    let said = cmd(words[0]).arg(&words[1..]).query::<redis::Value>(connection);
    said.unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

fn again_and_again(lasts: Duration, mut what: impl FnMut()) {
    let end = Instant::now() + lasts;
    while Instant::now() < end {
        what();
        thread::sleep(Duration::from_millis(2));
    }
}

/// A replica of this server that has all it has.
fn replica_of(master: &Server) -> Server {
    let port = master.port().to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]);
    let end = Instant::now() + Duration::from_secs(20);
    while replica.info("replication", "master_link_status") != "up" {
        assert!(Instant::now() < end, "a replica that is in step");
        thread::sleep(Duration::from_millis(10));
    }
    replica
}

/// What is put between clients and Redis.
pub trait Gateway: Sync {
    /// A connection of a client's: asks as this key under this path, and gives the status.
    fn client(&self, path: String, key: String) -> Box<dyn FnMut() -> Option<u16> + Send + '_>;
    /// What it says of Redis.
    fn counts(&self) -> Counts;
}

/// What a gateway says of Redis.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Calls that were answered.
    pub replies: u64,
    /// Calls that failed because of Redis or the connection.
    pub failures: u64,
    /// Calls that were not answered in time.
    pub timeouts: u64,
    /// Calls that failed because of what lies under their key.
    pub key_failures: u64,
    /// Answers of policies without Redis, of each choice.
    pub fallbacks: [u64; 3],
    /// How often breakers opened.
    pub opened: u64,
    /// Breakers that are open.
    pub open: u64,
    /// Requests that wait.
    pub waiting: u64,
}

/// The rules that the gateway is to have.
#[must_use]
pub fn rules() -> String {
    let policies = POLICIES.map(|Policy { name, choice, rate, burst, lease }| {
        format!(
            r#"{{ "name": "{name}", "match": {{ "path": "/{name}" }}, "key": ["api_key"], "store": "redis",
                 "timeout": "{}ms", "on_store_error": "{choice}",
                 "limits": [ {{ "rate": "{rate}/s", "burst": {burst} }} ] {lease} }}"#,
            TIMEOUT.as_millis()
        )
    });
    format!(
        r#"{{ "identity": {{ "api_key": {{ "header": "x-api-key" }} }}, "policies": [ {} ] }}"#,
        policies.join(",\n")
    )
}

/// What one client saw.
#[derive(Default)]
struct Seen {
    policy: usize,
    admitted: u64,
    denied: u64,
    /// Anything but 200, 429, and of the policy `deny` 503.
    others: Vec<Option<u16>>,
    /// When each request was made, and how long it took.
    waits: Vec<(Instant, Duration)>,
}

/// Puts the load on it while the fault happens, and sees to the laws; a row of a table says how it
/// went.
///
/// # Panics
/// When a law does not hold.
pub fn weather(name: &str, scene: &mut Scene, gateway: &impl Gateway) -> String {
    let fault = scene.fault;
    let (over, began) = (AtomicBool::new(false), Instant::now());
    let (seen, fault_began, recovered, before, ended, last) = thread::scope(|scope| {
        // Ends the load also when something here fails.
        let stop = Over(&over);
        let clients: Vec<_> = (0..POLICIES.len() * EACH)
            .map(|number| {
                let over = &over;
                scope.spawn(move || load(gateway, number % POLICIES.len(), over))
            })
            .collect();
        thread::sleep(Duration::from_millis(300));
        let (before, fault_began) = all_is_well(gateway, began);
        scene.happens();
        let (ended, fault_ended) = (gateway.counts(), Instant::now());
        let recovered = loop {
            let now = gateway.counts();
            if now.open == 0 && now.replies >= ended.replies + 20 {
                break fault_ended.elapsed();
            }
            assert!(
                fault_ended.elapsed() < RECOVERY + BUSY,
                "{name}, {fault:?}: not asked again: {ended:?}, {now:?}"
            );
            thread::sleep(Duration::from_millis(5));
        };
        thread::sleep(Duration::from_millis(300));
        let last = gateway.counts();
        drop(stop);
        let seen: Vec<Seen> = clients.into_iter().map(|client| client.join().expect("a client")).collect();
        (seen, fault_began, recovered, before, ended, last)
    });
    let took = began.elapsed();
    thread::sleep(TELLING);
    let fallbacks = gateway.counts().fallbacks;
    let mut said = format!("{name}, {fault:?}: {before:?}, {ended:?}, {last:?}");

    for (place, policy) in POLICIES.iter().enumerate() {
        let of = || seen.iter().filter(|seen| seen.policy == place);
        let (admitted, denied): (u64, u64) =
            (of().map(|seen| seen.admitted).sum(), of().map(|seen| seen.denied).sum());
        let others: Vec<_> = of().flat_map(|seen| &seen.others).collect();
        let _ = write!(said, "; {}: {admitted} admitted, {denied} denied", policy.name); // a String
        assert!(others.is_empty(), "{said}: and {others:?}");
        assert!(policy.choice != "allow" || denied == 0, "{said}");
        let time = policy.rate * u64::try_from(took.as_millis()).expect("a short time") / 1000 + 1;
        assert!(admitted <= policy.burst + time + policy.burst, "{said}: in {took:?}");
        // Nobody is denied while there is room, but for the fault, or by a worker's piece of the limit.
        // On a busy machine fewer may have come than there was room for.
        let (came, room) = (admitted + denied, policy.burst.min(100));
        let least = match policy.choice {
            "deny" => room.min(came).saturating_sub(fallbacks[2]),
            _ => room.min(came / 2),
        };
        assert!(admitted >= least, "{said}");
    }

    let all: Vec<Duration> = seen.iter().flat_map(|seen| &seen.waits).map(|(_, wait)| *wait).collect();
    let longest = all.iter().max().copied().unwrap_or_default();
    let mut during: Vec<Duration> = seen
        .iter()
        .flat_map(|seen| &seen.waits)
        .filter(|(at, _)| *at >= fault_began)
        .map(|(_, wait)| *wait)
        .collect();
    during.sort_unstable();
    let part = |hundredths: usize| during[(during.len() - 1) * hundredths / 100];
    let waits = format!("{said}: median {:?}, p99 {:?}, longest {longest:?}", part(50), part(99));
    assert!(longest <= TIMEOUT + BUSY && part(99) <= TIMEOUT + OFTEN_BUSY, "{waits}");
    assert!(part(50) < TIMEOUT, "{waits}: most are answered at once");

    if fault.is_outage() {
        assert!(ended.opened > before.opened, "{said}: no breaker opened");
        assert!((0..3).all(|choice| ended.fallbacks[choice] > before.fallbacks[choice]), "{said}");
    }
    if fault == Fault::ScriptsFlushed {
        assert_eq!((last.failures, last.key_failures), (before.failures, before.key_failures), "{said}");
    }
    if fault == Fault::WrongType {
        assert!(last.key_failures > before.key_failures, "{said}");
        // A machine so busy that calls are late may lose a connection as well.
        let is_late = last.timeouts > before.timeouts;
        assert!(is_late || last.failures == before.failures, "{said}: the keys of others are well");
    }

    let end = Instant::now() + Duration::from_secs(5);
    while gateway.counts().waiting > 0 {
        assert!(Instant::now() < end, "{name}, {fault:?}: requests wait that nobody made");
        thread::sleep(Duration::from_millis(5));
    }
    let ms = |wait: Duration| wait.as_secs_f64() * 1000.0;
    let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>();
    format!(
        "| {name} | {fault:?} | {} | {} | {} | {:.1} | {:.1} | {:.1} | {:.0} |",
        all.len(),
        sum(|seen| seen.admitted),
        sum(|seen| seen.denied),
        ms(part(50)),
        ms(part(99)),
        ms(longest),
        ms(recovered)
    )
}

/// Redis is in use: on a busy machine it may have been away for a moment before anything happened.
fn all_is_well(gateway: &impl Gateway, began: Instant) -> (Counts, Instant) {
    loop {
        let now = gateway.counts();
        if now.open == 0 && now.replies > 0 {
            return (now, Instant::now());
        }
        assert!(began.elapsed() < Duration::from_secs(10), "Redis is not used: {now:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn load(gateway: &impl Gateway, policy: usize, over: &AtomicBool) -> Seen {
    let name = POLICIES[policy].name;
    let mut ask = gateway.client(format!("/{name}"), format!("key-of-{name}"));
    let mut seen = Seen { policy, ..Seen::default() };
    while !over.load(Ordering::Relaxed) {
        let at = Instant::now();
        match ask() {
            Some(200) => seen.admitted += 1,
            Some(429) => seen.denied += 1,
            Some(503) if name == "deny" => seen.denied += 1,
            other => seen.others.push(other),
        }
        seen.waits.push((at, at.elapsed()));
        thread::sleep(Duration::from_micros(500));
    }
    seen
}
