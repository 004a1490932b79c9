//! What a request may do when its limits are counted in a store that other
//! machines share: answered from memory when it can be, asked when it must be,
//! and decided without the store when that is away.
//!
//! A request's policies that count in the store are *groups*: all limits of
//! one policy for one subject, which lie under one hash tag and are asked in
//! one call, all or none. A group is paid from its pot ([`lease`](super::lease)),
//! or denied from memory, or asked. Only a request with a group that must be
//! asked waits, in a *flight* of a fixed number; a denial by any of its limits
//! undoes what the others were charged: units go back into their pot, or to
//! the store.
//!
//! When the store fails, does not answer in time, or the breaker is open, a
//! group is decided as its policy's `on_store_error` says. `local` counts in
//! the host's table, under this instance's piece of the limit
//! ([`fallback`]). It does not begin with a fresh burst: what the store last
//! told is carried over, and what was admitted meanwhile is charged when the
//! store is back.
//!
//! Nothing here knows a socket: calls go to a [`Transport`], answers come back
//! by their ticket. Memory is taken in [`Store::new`].

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::breaker::{Breaker, BreakerConfig, State};
use super::lease::Leases;
use super::link::Refused;
use super::script::{Ask, Call};
use super::share::Share;
use crate::key::{Fingerprinter, Seed};
use crate::limit::Limit;
use crate::local::LocalStore;
use crate::metrics::{StoreEvent, StoreMetrics};
use crate::policy::{Answer, DEFAULT_TIMEOUT, Policy, Rules};
use crate::time::Nanos;
use flight::Flight;

mod asks;
mod background;
mod begin;
mod blocked;
pub mod fallback;
mod finish;
mod flight;
mod late;
mod owed;
mod refusal;
mod replies;
mod untold;
mod waits;

pub(crate) use begin::One;
pub use refusal::{Refusal, RefusalReason, Uncountable, accepts, refusal};

/// Who carries calls to the store: a link, a router of links, a pool of
/// connections, a simulated network.
pub trait Transport {
    /// Sends a call, whose answer or failure is then told under `ticket`
    /// exactly once, at the latest at `deadline`.
    ///
    /// # Errors
    /// It was not taken: nothing of it was sent, and nothing is told.
    fn send(&mut self, ticket: u64, call: &Call<'_>, deadline: Nanos, now: Nanos) -> Result<(), Refused>;

    /// Sends a small write under `key`, which tells whether the store takes
    /// calls again.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    fn probe(&mut self, ticket: u64, key: &[u8], deadline: Nanos, now: Nanos) -> Result<(), Refused>;

    /// The answer to a call that was given up at its deadline may still come:
    /// it is told under `heir` then, or that none will come, exactly once.
    /// False if nothing will be told.
    fn wait_on(&mut self, ticket: u64, heir: u64) -> bool {
        let _ = (ticket, heir);
        false
    }

    /// There is a sign that the store is well: what waits before it connects
    /// again need not.
    fn hurry(&mut self, now: Nanos) {
        let _ = now;
    }

    /// How long until all of these have room for `cost`, where that takes no
    /// call; none where it does.
    fn peek(&mut self, asks: &[Ask<'_>], cost: u64, now: Nanos) -> Option<Nanos> {
        let _ = (asks, cost, now);
        None
    }
}

/// How a store is asked.
#[derive(Clone, Copy, Debug)]
pub struct StoreConfig {
    /// Keys whose grants and denials are remembered; from 8 to 2^24.
    pub pots: usize,
    /// Requests that may wait at the same time, and calls under way that
    /// nobody waits for; those beyond are decided without the store. From 1
    /// to 65,536.
    pub waiting: usize,
    /// Requests in flight under concurrency limits that can be released before
    /// they expire; at most 2^24.
    pub holds: usize,
    /// Instances that share the limits: each falls back to its piece. From 1
    /// to 10,000.
    pub instances: u64,
    /// Which of them this one is, from 0. Without it the remainders of a
    /// division are given to nobody, so that the pieces stay below the limit.
    pub instance: Option<u64>,
    /// Workers of one instance that each have a store of their own, and share
    /// a table; at least 1.
    pub workers: u64,
    /// The part of every limit that this region has.
    pub region: Share,
    /// How long a call may take for policies that name no timeout.
    pub timeout: Nanos,
    /// When not to ask.
    pub breaker: BreakerConfig,
    /// Tells the calls of this process from those of others: from the
    /// system's random source.
    pub seed: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        StoreConfig {
            pots: 4096,
            waiting: 512,
            holds: 1024,
            instances: 1,
            instance: None,
            workers: 1,
            region: Share::WHOLE,
            timeout: DEFAULT_TIMEOUT,
            breaker: BreakerConfig::DEFAULT,
            seed: 0,
        }
    }
}

/// What a host brings along to each step.
pub struct Host<'h, 'm> {
    /// Where limits count that are not the store's, and all of them while it
    /// is away.
    pub table: &'h (dyn LocalStore + 'm),
    /// What is counted.
    pub metrics: &'h StoreMetrics,
    /// Who carries calls.
    pub transport: &'h mut dyn Transport,
    /// The host's monotonic clock.
    pub now: Nanos,
}

/// A request's answer, or that it has to wait for it.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "an answer is what it is there for; boxing would allocate")]
pub enum Progress {
    /// It is decided.
    Answered(Answer),
    /// It is told by [`Store::poll_answer`], under the number that the request
    /// came with; until then it may be cancelled.
    Waiting(Pending),
}

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending(pub u64);

impl Pending {
    /// Whose calls have this ticket, if they are a request's, or fetch ahead.
    #[must_use]
    pub fn of(ticket: u64) -> Option<Pending> {
        let (place, generation, _) = flight::of_ticket(ticket)?;
        Some(Pending(flight::ticket(place, generation, 0)))
    }
}

/// What a layer of an answer is about.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredLayer<'s> {
    /// The policy's place among the rules' policies.
    pub policy: usize,
    /// Which of its limits.
    pub index: usize,
    /// Do its limits come from an override?
    pub overridden: bool,
    /// The limit, as the rules have it.
    pub limit: &'s Limit,
}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was not answered in time. It may have been carried out.
    Timeout,
    /// The store or the connection failed; counts for the breaker.
    Store,
    /// What lies under its key is not what the call expects, or the script
    /// failed: the store is well.
    Key,
}

/// Why a store cannot be made, with the legal range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Too few or too many may wait.
    #[error("waiting: {0} is outside 1 to 65536 requests")]
    Waiting(usize),
    /// Too many holds.
    #[error("holds: {0} is above 16777216")]
    Holds(usize),
    /// Too few or too many instances.
    #[error("instances: {0} is outside 1 to 10000")]
    Instances(u64),
    /// There is no such instance.
    #[error("instance: {instance} is outside 0 to {}, for {instances} instances", .instances - 1)]
    Instance {
        /// The one that was asked for.
        instance: u64,
        /// How many there are.
        instances: u64,
    },
    /// Too few or too many workers.
    #[error("workers: {0} is outside 1 to 1024")]
    Workers(u64),
}

/// The limits of one store, as one worker or process sees them. It is owned by
/// one thread at a time.
#[derive(Debug)]
pub struct Store {
    /// Of the keys of pots: what memory knows needs nothing of the host's.
    hash: Fingerprinter,
    leases: Leases,
    breaker: Breaker,
    flights: Box<[Option<Box<Flight>>]>,
    /// The first free flight, and in each the next; `flights.len()` is the end.
    free: usize,
    /// Finished ones that were not told yet: the first, and the last.
    ready: usize,
    last_ready: usize,
    waiting: usize,
    /// Those that wait for what others' calls bring, and when the first of them
    /// has to give up, or sooner.
    waits: usize,
    wait_until: Nanos,
    instances: u64,
    instance: Option<u64>,
    workers: u64,
    region: Share,
    timeout: Nanos,
    /// The number of the next call.
    next_id: u64,
    /// Which piece of a divided key is asked first.
    turn: u32,
    /// Unspent units go back no sooner than then.
    sweep_from: Nanos,
    /// Where the pots' units came from.
    origins: Box<[background::Origin]>,
    holds: background::Holds,
    /// Under the last key that failed.
    probe_key: super::key::KeyText,
    /// How long a probe may take: as the call that failed.
    patience: Nanos,
    was_open: bool,
    /// How often breakers had closed, those of other workers included, when this
    /// store looked last while its own was open.
    closed_seen: u64,
    /// When the store was back last: it may have lost what it knew before.
    back_at: Nanos,
    /// This process ends: nothing is fetched ahead any more, and what comes of
    /// it yet goes back.
    drained: bool,
    /// The pots up to this one have told then what the store has not heard of.
    told_to: usize,
}

impl Store {
    /// Takes all memory that it will need.
    ///
    /// # Errors
    /// A number outside its range.
    pub fn new(config: &StoreConfig) -> Result<Store, StoreError> {
        if !(1..=65_536).contains(&config.waiting) {
            return Err(StoreError::Waiting(config.waiting));
        }
        if !(1..=10_000).contains(&config.instances) {
            return Err(StoreError::Instances(config.instances));
        }
        if !(1..=1024).contains(&config.workers) {
            return Err(StoreError::Workers(config.workers));
        }
        if let Some(instance) = config.instance.filter(|instance| *instance >= config.instances) {
            return Err(StoreError::Instance { instance, instances: config.instances });
        }
        if config.holds > 1 << 24 {
            return Err(StoreError::Holds(config.holds));
        }
        let leases = Leases::new(config.pots);
        let mut origins = Vec::new();
        origins.resize_with(leases.len(), background::Origin::default);
        Ok(Store {
            hash: Fingerprinter::new(Seed([config.seed, !config.seed])),
            leases,
            breaker: Breaker::new(config.breaker),
            free: 0,
            ready: config.waiting,
            last_ready: config.waiting,
            waiting: 0,
            waits: 0,
            wait_until: Nanos::MAX,
            flights: Flight::fleet(config.waiting),
            instances: config.instances,
            instance: config.instance,
            workers: config.workers,
            region: config.region,
            timeout: config.timeout,
            next_id: config.seed | 1,
            turn: config.seed as u32, // any number will do
            sweep_from: 0,
            origins: origins.into_boxed_slice(),
            holds: background::Holds::new(config.holds),
            probe_key: super::key::KeyText::default(),
            patience: 5_000_000,
            was_open: false,
            closed_seen: 0,
            back_at: 0,
            drained: false,
            told_to: 0,
        })
    }

    /// Another part of every limit for this region, from the next call on.
    /// What was fetched ahead is still spent.
    pub fn set_region(&mut self, region: Share) {
        self.region = region;
        self.leases.forget_denials();
    }

    /// What the breaker does with calls.
    #[must_use]
    pub fn state(&self) -> State {
        self.breaker.state()
    }

    /// Requests that wait for an answer.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Units fetched ahead that may still be spent.
    #[must_use]
    pub fn held(&self, now: Nanos) -> u64 {
        self.leases.held(now)
    }

    fn id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(2); // stays odd: never 0
        id
    }

    /// How much of what the store has left one instance may fetch ahead.
    fn reserve(&self) -> u64 {
        self.instances.saturating_mul(self.workers).saturating_mul(2)
    }

    /// Keeps the gauge of open breakers.
    fn note_breaker(&mut self, metrics: &StoreMetrics, now: Nanos) {
        if self.drained {
            return;
        }
        let open = self.breaker.state() != State::Closed;
        match (self.was_open, open) {
            (false, true) => {
                metrics.count(StoreEvent::Open);
                metrics.count(StoreEvent::Opened);
                self.closed_seen = background::closed(metrics);
            }
            (true, false) => {
                metrics.uncount(StoreEvent::Open);
                self.back_at = now;
            }
            _ => {}
        }
        self.was_open = open;
    }
}

/// Does a policy count in the store?
pub(super) fn is_remote(policy: &Policy) -> bool {
    policy.store() == crate::policy::Store::Redis
}

/// Do any of the rules count in the store?
#[must_use]
pub fn is_asked_by(rules: &Rules) -> bool {
    rules.policies().iter().any(is_remote)
}
