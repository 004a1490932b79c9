//! A world in virtual time: instances, a network, a store.
//!
//! Each instance is the real [`Store`](super::store::Store) over a real table, or
//! real pages; only the network and the server are played. Nothing reads a clock, and
//! everything that is drawn comes from one seed, so that a run is the same
//! each time, on every machine, and an hour of it takes no longer than its
//! events do.
//!
//! ```
//! use tollgate_core::key::Seed;
//! use tollgate_core::policy::{Attributes, KeyRoom, Rules};
//! use tollgate_core::redis::sim::{World, WorldConfig};
//!
//! let rules = r#"{ "policies": [ { "name": "all", "key": ["global"], "store": "redis",
//!                                  "limits": [ { "rate": "10/m" } ] } ] }"#;
//! let rules = Rules::parse(rules, Seed([1, 2])).expect("legal");
//! let request = Attributes { route: b"", method: b"GET", host: b"", path: b"/", peer: None, headers: &[] };
//! let mut room = KeyRoom::new();
//! let selection = rules.select(&request, &mut room).expect("nothing is missing");
//! let mut world = World::new(&WorldConfig { instances: 3, ..WorldConfig::default() })?;
//! let mut admitted = 0;
//! for number in 0..60 {
//!     world.check(number % 3, &rules, &selection, number as u64);
//!     world.run_for(10_000_000);
//!     admitted += world.answers().filter(|told| told.answer.allowed).count();
//! }
//! assert_eq!(admitted, 10);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

pub use network::{Network, NetworkConfig, Outage, OutageKind, Random};
pub use store::{Book, SimStore};

use network::{Body, Event, Reply, Sender, Wire};

use super::script::{Ask, Call};
use super::share::Share;
use super::store::{Failure, Host, Pending, Progress, Store, StoreConfig, StoreError};
use crate::key::Seed;
use crate::limiter::MAX_LAYERS;
use crate::local::LocalStore;
use crate::metrics::{StoreMetrics, StoreSnapshot};
use crate::pages::{Blobs, Pages, Unavailable};
use crate::policy::{Answer, Rules, Selection};
use crate::table::{Config, ConfigError, Hold, OwnedTable};
use crate::time::{Nanos, SECOND};

mod network;
mod store;

/// What a world is made of.
#[derive(Clone, Copy, Debug)]
pub struct WorldConfig {
    /// How many instances there are; at least 1.
    pub instances: usize,
    /// Of each instance's store. Its number of instances is taken from here;
    /// its seed, and its number where `numbered`, differ from one to the next.
    pub store: StoreConfig,
    /// Do the instances know their numbers?
    pub numbered: bool,
    /// Of each instance's table.
    pub table: Config,
    /// Instead of a table each instance has so many [`pages`](crate::pages);
    /// 0 for none.
    pub pages: u32,
    /// How calls travel.
    pub network: NetworkConfig,
    /// When it begins.
    pub start: Nanos,
    /// The clocks of instances are ahead of the store's by up to so much.
    pub ahead: Nanos,
}

impl Default for WorldConfig {
    fn default() -> Self {
        WorldConfig {
            instances: 1,
            store: StoreConfig { pots: 64, waiting: 64, holds: 64, ..StoreConfig::default() },
            numbered: true,
            table: Config { capacity: 256, rows: 8, row_entries: 64 },
            pages: 0,
            network: NetworkConfig::default(),
            start: 1_000_000 * SECOND,
            ahead: 0,
        }
    }
}

/// Why there is no such world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// An instance's store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An instance's table.
    #[error(transparent)]
    Table(#[from] ConfigError),
}

/// An answer, and when and by whom it was given.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// By whom.
    pub instance: usize,
    /// The number that the request came with.
    pub user: u64,
    /// When, by the world's clock.
    pub at: Nanos,
    /// The answer.
    pub answer: Answer,
}

/// Instances, the network between them and the store, and the store.
#[derive(Debug)]
pub struct World {
    now: Nanos,
    network: Network,
    store: SimStore,
    instances: Vec<Instance>,
    told: Vec<Told>,
}

#[derive(Debug)]
struct Instance {
    store: Store,
    table: OwnedTable,
    pages: Option<Pages<Alone>>,
    metrics: StoreMetrics,
    ahead: Nanos,
    /// When it is woken, by the world's clock.
    timer: Option<Nanos>,
}

/// The blobs of an instance that shares none with others.
#[derive(Debug, Default)]
struct Alone(BTreeMap<u32, Vec<u8>>);

impl Blobs for Alone {
    type Bytes = Vec<u8>;

    fn read(&mut self, page: u32) -> Result<Option<(Vec<u8>, u32)>, Unavailable> {
        Ok(self.0.get(&page).map(|bytes| (bytes.clone(), 1)))
    }

    fn write(&mut self, page: u32, bytes: &[u8], _: Option<u32>) -> Result<bool, Unavailable> {
        self.0.insert(page, bytes.to_vec());
        Ok(true)
    }
}

impl World {
    /// A world in which nothing has happened.
    ///
    /// # Errors
    /// A number of a store or table outside its range.
    pub fn new(config: &WorldConfig) -> Result<World, WorldError> {
        let count = config.instances.max(1);
        let mut random = Random::new(config.network.seed ^ 0x5EED);
        let mut instances = Vec::with_capacity(count);
        for number in 0..count {
            let instance = config.numbered.then_some(number as u64);
            let seed = random.draw();
            let store = StoreConfig { instances: count as u64, instance, seed, ..config.store };
            let seed = Seed([random.draw(), random.draw()]);
            let pages = || Pages::new(Alone::default(), config.pages, seed);
            instances.push(Instance {
                store: Store::new(&store)?,
                table: OwnedTable::new(config.table, seed)?,
                pages: (config.pages > 0).then(pages),
                metrics: StoreMetrics::default(),
                ahead: random.below(config.ahead.saturating_add(1)),
                timer: None,
            });
        }
        Ok(World {
            now: config.start,
            network: Network::new(config.network),
            store: SimStore::new(),
            instances,
            told: Vec::new(),
        })
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// How many instances there are.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.instances.len()
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &SimStore {
        &self.store
    }

    /// The network.
    pub fn network(&mut self) -> &mut Network {
        &mut self.network
    }

    /// The store as one instance sees it.
    #[must_use]
    pub fn instance(&self, instance: usize) -> Option<&Store> {
        self.instances.get(instance).map(|instance| &instance.store)
    }

    /// The counters of one instance.
    #[must_use]
    pub fn metrics(&self, instance: usize) -> Option<StoreSnapshot> {
        self.instances.get(instance).map(|instance| instance.metrics.snapshot())
    }

    /// Units that are fetched ahead by all instances and may still be spent.
    #[must_use]
    pub fn held(&self) -> u64 {
        let held = |instance: &Instance| instance.store.held(self.now.saturating_add(instance.ahead));
        self.instances.iter().map(held).sum()
    }

    /// Requests that wait, in all instances.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.instances.iter().map(|instance| instance.store.waiting()).sum()
    }

    /// A request comes to an instance. Its answer is among the
    /// [`answers`](Self::answers), now or later; until then it may be
    /// cancelled by what is given here.
    pub fn check(
        &mut self,
        instance: usize,
        rules: &Rules,
        selection: &Selection<'_>,
        user: u64,
    ) -> Option<Pending> {
        match self.with(instance, |store, host| store.check(rules, selection, user, host))? {
            Progress::Answered(answer) => {
                self.told.push(Told { instance, user, at: self.now, answer });
                None
            }
            Progress::Waiting(pending) => Some(pending),
        }
    }

    /// The client of a request that waits is gone.
    pub fn cancel(&mut self, instance: usize, pending: Pending) {
        self.with(instance, |store, host| store.cancel(pending, host));
        self.collect(instance);
    }

    /// A request that held units in flight is over.
    pub fn release(&mut self, instance: usize, hold: &Hold) {
        self.with(instance, |store, host| store.release(hold, host));
    }

    /// An instance ends: it gives back what it has not spent.
    pub fn drain(&mut self, instance: usize) {
        self.with(instance, |store, host| store.drain(host));
    }

    /// An instance learns another share of its region.
    pub fn set_region(&mut self, instance: usize, region: Share) {
        self.with(instance, |store, _| store.set_region(region));
    }

    /// The store is started anew at that time, without its state: instances
    /// connect again.
    pub fn flush_at(&mut self, at: Nanos) {
        self.network.schedule(at, Event::Flush);
    }

    /// The answers since this was asked last, in the order of time.
    pub fn answers(&mut self) -> impl Iterator<Item = Told> {
        core::mem::take(&mut self.told).into_iter()
    }

    /// Lets time pass: as [`run_to`](Self::run_to).
    pub fn run_for(&mut self, span: Nanos) {
        self.run_to(self.now.saturating_add(span));
    }

    /// All that happens up to and with `at`; nothing if that is past.
    pub fn run_to(&mut self, at: Nanos) {
        while self.network.next_at().is_some_and(|next| next <= at) {
            let Some((when, event)) = self.network.next() else { break };
            self.now = self.now.max(when);
            self.happen(event);
        }
        self.now = self.now.max(at);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Flush => {
                self.store.flush();
                for instance in 0..self.instances.len() {
                    self.with(instance, |store, host| {
                        store.may_have_forgotten(host.now);
                        store.connected(host);
                    });
                }
            }
            Event::Timer { instance } => {
                let due = self.instances.get_mut(instance).filter(|it| it.timer == Some(self.now));
                if let Some(instance) = due {
                    instance.timer = None;
                } else {
                    return;
                }
                self.with(instance, |store, host| store.handle_timeout(host));
                self.collect(instance);
            }
            Event::Arrive { call, body } => self.arrive(call, body),
            Event::Reply { call, reply } => {
                let sender = self.network.finish(call);
                self.conclude(sender, reply);
            }
            Event::Deadline { call } => {
                let sender = self.network.expire(call, self.now);
                self.conclude(sender, Reply::Failed(Failure::Timeout));
            }
        }
    }

    /// A call comes to the store. One that timed out is carried out all the
    /// same: its sender cannot know.
    fn arrive(&mut self, call: u64, body: Body) {
        let instance = self.network.sender(call).map_or(usize::MAX, |sender| sender.instance);
        if let Some(outage) = self.network.outage(self.now, instance) {
            match outage.kind {
                OutageKind::Lost | OutageKind::Refused => {}
                OutageKind::Failing => self.reply(call, Reply::Failed(Failure::Store)),
                OutageKind::Stopped => self.network.schedule(outage.to, Event::Arrive { call, body }),
            }
            return;
        }
        let reply = match body {
            Body::Probe => Reply::Decisions(Vec::new(), 0),
            Body::Call { asks, op } => {
                let Some((_, first)) = asks.first() else { return };
                let mut all = [Ask { key: &[], limit: first }; MAX_LAYERS];
                for (room, (key, limit)) in all.iter_mut().zip(&asks) {
                    *room = Ask { key, limit };
                }
                let all = all.get(..asks.len()).unwrap_or(&[]); // at most MAX_LAYERS
                let mut decisions = Vec::new();
                decisions.resize(all.len(), store::UNDECIDED);
                let units = self.store.execute(&Call { asks: all, op }, self.now, &mut decisions);
                Reply::Decisions(decisions, units)
            }
        };
        self.reply(call, reply);
    }

    fn reply(&mut self, call: u64, reply: Reply) {
        if let Some(at) = self.network.travel(self.now) {
            self.network.schedule(at, Event::Reply { call, reply });
        }
    }

    /// A call is answered, or will never be.
    fn conclude(&mut self, sender: Option<Sender>, reply: Reply) {
        let Some(sender) = sender else { return };
        self.with(sender.instance, |store, host| match reply {
            Reply::Decisions(mut decisions, units) => {
                store.answered(sender.ticket, &mut decisions, units, host);
            }
            Reply::Failed(failure) => store.failed(sender.ticket, failure, host),
        });
        self.collect(sender.instance);
    }

    /// Takes the answers of those who waited.
    fn collect(&mut self, instance: usize) {
        let next = |store: &mut Store, host: &mut Host<'_, '_>| {
            let (user, pending) = store.poll_answer(host)?;
            Some((user, *store.answer(pending)?))
        };
        while let Some(Some((user, answer))) = self.with(instance, next) {
            self.told.push(Told { instance, user, at: self.now, answer });
        }
    }

    /// One step of an instance, after which it is woken when it wants to be.
    fn with<R>(&mut self, index: usize, step: impl FnOnce(&mut Store, &mut Host<'_, '_>) -> R) -> Option<R> {
        let instance = self.instances.get_mut(index)?;
        let table = instance.table.table()?;
        let ahead = instance.ahead;
        let mut wire = Wire { network: &mut self.network, instance: index, ahead };
        let now = self.now.saturating_add(ahead);
        let local: &dyn LocalStore = instance.pages.as_ref().map_or(&table, |pages| pages);
        let mut host = Host { table: local, metrics: &instance.metrics, transport: &mut wire, now };
        let result = step(&mut instance.store, &mut host);
        if let Some(due) = instance.store.poll_timeout() {
            let due = due.saturating_sub(ahead).max(self.now + 1);
            if instance.timer.is_none_or(|timer| due < timer) {
                instance.timer = Some(due);
                self.network.schedule(due, Event::Timer { instance: index });
            }
        }
        Some(result)
    }
}
