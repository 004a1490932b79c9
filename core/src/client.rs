//! A ready-made client: limits that many machines share, for programs that
//! have threads.
//!
//! A [`Client`] brings the parts of this crate together: the [rules](crate::policy),
//! a [table](crate::table) for what counts on this machine, a
//! [store](crate::redis::store) with its leases, its memory of denials and its
//! breaker, connections of the `redis` crate, and a clock.
//!
//! ```no_run
//! use tollgate_core::client::{Client, ClientConfig};
//! use tollgate_core::policy::Attributes;
//!
//! let rules = r#"{
//!     "identity": { "api_key": { "header": "x-api-key", "required": true } },
//!     "policies": [
//!         { "name": "orders", "key": ["api_key"], "limits": [ { "rate": "100/s", "burst": 200 } ],
//!           "store": "redis", "timeout": "5ms", "on_store_error": "local",
//!           "lease": { "max": 50, "ttl": "1s" } } ] }"#;
//! let client = Client::new(rules, &ClientConfig::new("redis://127.0.0.1"))?;
//!
//! // Any thread, for each request:
//! let request = Attributes {
//!     route: b"", method: b"GET", host: b"", path: b"/orders", peer: None,
//!     headers: &[Some(b"the key")], // in the order of `client.headers()`
//! };
//! match client.check(&request) {
//!     Ok(answer) if answer.allowed => { /* serve it, then */ client.release(&answer) }
//!     Ok(answer) => println!("429, again in {:?} ns", answer.decision().map(|said| said.retry_after)),
//!     Err(missing) => println!("401: no {} header field", missing.header),
//! }
//! # Ok::<(), tollgate_core::client::ClientError>(())
//! ```
//!
//! # How long a request takes
//!
//! A request that its lease pays, that was denied a moment ago, or whose limits
//! count on this machine is answered from memory: no I/O and no allocation. Any
//! other sleeps until Redis has answered, for at most its policy's `timeout`,
//! whatever connections do meanwhile. Then, or at once while no connection is
//! up or the breaker is open, it is decided as `on_store_error` says. No
//! request connects: threads of the client do, and try again by themselves.
//!
//! # Threads and processes
//!
//! All methods take `&self` and may be called by any number of threads. A
//! process that forks makes its client after the fork.
//!
//! When a client is dropped, it gives back to Redis what its leases still hold,
//! and what was being fetched for them when that comes: for at most a second.
//! What a process that is killed held is lost until the limit has filled again.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::key::Seed;
use crate::metrics::StoreMetrics;
use crate::policy::{self, Answer, Attributes, KeyRoom, Missing, Rules, Selection};
use crate::redis::breaker::State;
use crate::redis::engine::Source;
use crate::redis::share::Share;
use crate::redis::store::{self, Progress, Store, StoreConfig};
use crate::table::{Hold, OwnedTable, Stats, Table};
use crate::time::NEVER;
use call::Collected;
use work::{Shared, lock};

mod address;
mod call;
mod config;
mod line;
mod work;

pub use config::{ClientConfig, ClientError, Tls};

/// How long the end may take: for what is given back, and then for threads.
const LAST: Duration = Duration::from_secs(1);
/// Holds of the stores have rows from here on, where no table's are: the last
/// is the first store's.
const FIRST_REMOTE_ROW: u64 = u64::MAX - 63;

/// Limits that are shared through Redis; see the [module](self).
pub struct Client {
    shared: Arc<Shared>,
    /// Replaced whole; never held while anything is waited for.
    rules: RwLock<Arc<Rules>>,
    seed: Seed,
    store: StoreConfig,
    keeper: Option<JoinHandle<()>>,
    carriers: Vec<JoinHandle<()>>,
}

/// A request that does not tell who it comes from, and must: a 401.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request has no {header:?} header field, and policy {policy:?} needs it")]
pub struct Unidentified {
    /// The policy that asks.
    pub policy: String,
    /// The header field.
    pub header: String,
}

impl Client {
    /// Reads the rules, takes all memory, starts the threads, and waits for the
    /// first connection: for at most `connect_timeout`. A Redis that is away is
    /// no error; requests are decided without it until it is there.
    ///
    /// # Errors
    /// Rules that are wrong or ask for what cannot be, a URL that names no
    /// Redis, a number outside its range, no thread. No message repeats the URL.
    pub fn new(rules: &str, config: &ClientConfig) -> Result<Client, ClientError> {
        config.check()?;
        let target = address::Target::of(config)?;
        let seed = Seed([random(), random()]);
        let table = OwnedTable::new(config.table, Seed([random(), random()]))?;
        let processors = || thread::available_parallelism().map_or(1, usize::from).min(16);
        let count = if config.stores == 0 { processors() } else { config.stores };
        let store = StoreConfig {
            pots: config.store.pots.div_ceil(count),
            waiting: config.store.waiting.div_ceil(count),
            holds: config.store.holds.div_ceil(count),
            workers: count as u64, // at most 64
            ..config.store
        };
        let stores = (0..count).map(|_| {
            let seed = if store.seed == 0 { random() } else { store.seed };
            Ok(Mutex::new(Store::new(&StoreConfig { seed, ..store })?))
        });
        let stores: Box<[Mutex<Store>]> = stores.collect::<Result<_, ClientError>>()?;
        let compiled = compile(rules, seed, &store, table.table().as_ref())?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix = u64::try_from(unix.as_nanos()).unwrap_or(NEVER / 2);
        let shared = Arc::new(Shared::new(stores, table, target, config.connect_timeout, unix));
        let mut client = Client {
            shared,
            rules: RwLock::new(Arc::new(compiled)),
            seed,
            store,
            keeper: None,
            carriers: Vec::new(),
        };
        client.start(config.connections)?; // when it fails, those that were started end with the client
        client.shared.wait_connected(config.connect_timeout);
        Ok(client)
    }

    fn start(&mut self, connections: usize) -> Result<(), ClientError> {
        let spawn = |name: &str, run: fn(&Shared)| {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name(name.to_string()).stack_size(512 << 10);
            thread.spawn(move || run(&shared)).map_err(|error| ClientError::Thread(error.kind()))
        };
        self.keeper = Some(spawn("tollgate-time", Shared::keep)?);
        for _ in 0..connections {
            self.shared.expect_carrier(true);
            match spawn("tollgate-redis", Shared::carry) {
                Ok(carrier) => self.carriers.push(carrier),
                Err(error) => {
                    self.shared.expect_carrier(false);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The header fields whose values [`Attributes`] must bring along, in this
    /// order; of the rules as they are now.
    #[must_use]
    pub fn headers(&self) -> Vec<String> {
        self.rules().headers().to_vec()
    }

    /// How many header fields that are; allocates nothing.
    #[must_use]
    pub fn header_count(&self) -> usize {
        self.rules().headers().len()
    }

    /// Asks all limits of a request, all or none.
    ///
    /// # Errors
    /// A policy needs an identity that the request does not tell.
    pub fn check(&self, attributes: &Attributes<'_>) -> Result<Answer, Unidentified> {
        let rules = self.rules();
        let mut room = KeyRoom::new();
        let selection = rules.select(attributes, &mut room).map_err(|missing| {
            let (policy, header) = (missing.policy.to_string(), missing.header.to_string());
            Unidentified { policy, header }
        })?;
        let mut answer = policy::check::empty(0);
        self.ask(&rules, &selection, &mut answer);
        Ok(answer)
    }

    /// As [`check`](Self::check), and gives `say` what is needed to tell the
    /// answer: the rules it was made with, the limits in the order of its layers,
    /// and what it rests on. Rules that are reloaded meanwhile do not change them.
    pub fn check_with<R>(
        &self,
        attributes: &Attributes<'_>,
        say: impl FnOnce(&Rules, &Selection<'_>, Result<(&Answer, Source), Missing<'_>>) -> R,
    ) -> R {
        let rules = self.rules();
        let mut room = KeyRoom::new();
        match rules.select(attributes, &mut room) {
            Err(missing) => say(&rules, &Selection::default(), Err(missing)),
            Ok(selection) => {
                let mut answer = policy::check::empty(0);
                let source = self.ask(&rules, &selection, &mut answer);
                say(&rules, &selection, Ok((&answer, source)))
            }
        }
    }

    /// The request is over: gives back its units in flight. Needed only under
    /// concurrency limits, and of no effect a second time.
    pub fn release(&self, answer: &Answer) {
        answer.holds().iter().for_each(|hold| self.release_hold(hold));
    }

    /// As [`release`](Self::release), of one hold.
    pub fn release_hold(&self, hold: &Hold) {
        let Some(table) = self.shared.table.table().filter(|_| hold.units > 0) else { return };
        if hold.row < FIRST_REMOTE_ROW {
            return table.release(hold);
        }
        let store = (u64::MAX - hold.row) as usize; // below 64
        let hold = Hold { row: u64::MAX, ..*hold };
        let mut calls = Collected::new(self.shared.connected() > 0);
        self.shared.with_store(store, &table, &mut calls, |store, host| store.release(&hold, host));
        self.shared.send(store, calls.take(), &table);
    }

    /// Other rules from the next request on; what was counted stays counted
    /// where the limits are the same.
    ///
    /// # Errors
    /// As [`new`](Self::new); then the old rules stay.
    pub fn reload(&self, rules: &str) -> Result<(), ClientError> {
        let compiled = compile(rules, self.seed, &self.store, self.shared.table.table().as_ref())?;
        let old = core::mem::replace(
            &mut *self.rules.write().unwrap_or_else(PoisonError::into_inner),
            Arc::new(compiled),
        );
        drop(old); // with the lock let go
        Ok(())
    }

    /// Another part of every limit for this region, from the next call on.
    pub fn set_region(&self, region: Share) {
        self.shared.stores.iter().for_each(|store| lock(store).set_region(region));
    }

    /// What was asked of Redis, and how it went.
    #[must_use]
    pub fn metrics(&self) -> &StoreMetrics {
        &self.shared.metrics
    }

    /// The table's counters.
    #[must_use]
    pub fn table_stats(&self) -> Stats {
        self.shared.table.table().map_or_else(Stats::default, |table| table.stats())
    }

    /// What the breaker does with calls; of several that do not agree, the one
    /// that is open.
    #[must_use]
    pub fn state(&self) -> State {
        let states = self.shared.stores.iter().map(|store| lock(store).state());
        states
            .max_by_key(|state| match state {
                State::Closed => 0,
                State::HalfOpen => 1,
                State::Open => 2,
            })
            .unwrap_or(State::Closed)
    }

    /// Connections that are up.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.shared.connected()
    }

    /// The last thing that went wrong with Redis, in a word for logs, such as
    /// `timeout`, `disconnected`, `auth` or `out_of_memory`; see
    /// [`Why::name`](crate::redis::link::Why::name).
    #[must_use]
    pub fn trouble(&self) -> Option<&'static str> {
        self.shared.trouble()
    }

    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner)) // nothing panics under it
    }

    /// What the answer rests on.
    fn ask(&self, rules: &Rules, selection: &Selection<'_>, answer: &mut Answer) -> Source {
        let shared = &*self.shared;
        let Some(table) = shared.table.table() else { return Source::Local }; // it was made with the client
        let is_remote = |place: usize| {
            rules.policies().get(place).is_some_and(|policy| policy.store() == policy::Store::Redis)
        };
        let Some(first) = selection.layers().find(|layer| is_remote(layer.policy)) else {
            *answer = policy::check(rules, &table, selection, shared.now());
            return Source::Local;
        };
        // Requests of one subject meet in one store, where their lease is.
        let store = (table.fingerprint(first.key()).0 >> 32) as usize % shared.stores.len().max(1);
        let mut calls = Collected::new(shared.connected() > 0);
        let mut waits = None;
        shared.with_store(store, &table, &mut calls, |asked, host| {
            match asked.check(rules, selection, 0, host) {
                Progress::Answered(answered) => *answer = answered,
                Progress::Waiting(pending) => waits = Some(shared.expect(store, asked, pending)),
            }
        });
        shared.send(store, calls.take(), &table);
        let source = match waits {
            None => Source::at_once(rules, selection, answer),
            Some(waiter) => {
                let told = shared.wait(store, &table, &waiter);
                // All that it waits for is told something, so there is an answer.
                *answer = told.unwrap_or_else(|| policy::check(rules, &table, selection, shared.now()));
                Source::waited(answer)
            }
        };
        for hold in answer.holds.iter_mut().filter(|hold| hold.row == u64::MAX) {
            hold.row -= store as u64; // tells in which store it is kept
        }
        source
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let shared = &*self.shared;
        shared.end_keeper();
        if let Some(table) = shared.table.table() {
            for store in 0..shared.stores.len() {
                let mut calls = Collected::new(shared.connected() > 0);
                shared.with_store(store, &table, &mut calls, |store, host| store.drain(host));
                shared.send(store, calls.take(), &table);
            }
        }
        shared.end_carriers(LAST);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join(); // it does not panic, and waits for nothing
        }
        // A carrier that hangs in a connection is left to itself; it has nothing to do any more.
        let are_gone = shared.carriers() == 0;
        for carrier in self.carriers.drain(..).filter(|carrier| are_gone || carrier.is_finished()) {
            let _ = carrier.join();
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("connected", &self.connected())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Rules that this table, and Redis, can count.
fn compile(
    text: &str,
    seed: Seed,
    store: &StoreConfig,
    table: Option<&Table<'_>>,
) -> Result<Rules, ClientError> {
    let rules = Rules::parse_at(text, seed, 0).map_err(ClientError::Rules)?;
    for policy in rules.policies() {
        for limit in policy.all_limits() {
            if let Some(Err(error)) = table.map(|table| table.accepts(limit)) {
                let (policy, reason) = (policy.name().to_string(), error.to_string());
                return Err(ClientError::Limit { policy, limit: Box::new(*limit), reason });
            }
        }
    }
    if let Some(refusal) = store::refusal(&rules, store) {
        let (policy, reason) = (refusal.policy.to_string(), refusal.why.to_string());
        return Err(ClientError::Limit { policy, limit: Box::new(*refusal.limit), reason });
    }
    Ok(rules)
}

/// From the system's random source, by way of the hash tables' keys.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
