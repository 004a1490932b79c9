//! The network of a simulation: a queue of what happens when, drawn from a
//! seed. Calls take their time, are lost, are refused; a store that is stopped
//! carries out what waited when it goes on.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec::Vec;
use core::cmp::Ordering;

use crate::decision::Decision;
use crate::limit::Limit;
use crate::redis::link::Refused;
use crate::redis::script::{Call, Op};
use crate::redis::store::{Failure, Transport};
use crate::time::{Nanos, SECOND};

/// How calls travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Of everything that is drawn.
    pub seed: u64,
    /// Nanoseconds one way, at least.
    pub latency: Nanos,
    /// Nanoseconds on top, one way, evenly drawn from 0 to this.
    pub jitter: Nanos,
    /// Of a million calls or replies so many are lost, and time out.
    pub loss: u32,
}

impl Default for NetworkConfig {
    /// 0.2 ms one way, up to 0.1 ms on top, no loss.
    fn default() -> Self {
        NetworkConfig { seed: 1, latency: 200_000, jitter: 100_000, loss: 0 }
    }
}

/// A time in which the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When it begins.
    pub from: Nanos,
    /// The first instant after it.
    pub to: Nanos,
    /// What becomes of calls.
    pub kind: OutageKind,
    /// For one instance only; else for all.
    pub instance: Option<usize>,
}

/// What becomes of calls while the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutageKind {
    /// They cannot be sent: nobody listens.
    Refused,
    /// They are sent, and fail when the store would have had them.
    Failing,
    /// They are lost: the network is cut.
    Lost,
    /// They wait, and are carried out when it is over: the store was stopped.
    Stopped,
}

/// Random numbers of a seed; the generator is SplitMix64 (Steele, Lea and
/// Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// Of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number, any of 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 when that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64 // below end
    }
}

/// What happens.
#[derive(Debug)]
pub(super) enum Event {
    /// A call comes to the store.
    Arrive { call: u64, body: Body },
    /// A call is answered.
    Reply { call: u64, reply: Reply },
    /// A call was not answered in time.
    Deadline { call: u64 },
    /// An instance wanted to be woken.
    Timer { instance: usize },
    /// The store loses its state.
    Flush,
}

/// What is sent.
#[derive(Debug)]
pub(super) enum Body {
    Call { asks: Vec<(Box<[u8]>, Limit)>, op: Op },
    Probe,
}

/// What comes back.
#[derive(Debug)]
pub(super) enum Reply {
    Decisions(Vec<Decision>, u64),
    Failed(Failure),
}

/// Whose call it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) instance: usize,
    pub(super) ticket: u64,
}

/// Calls under way, and all else that will happen.
#[derive(Debug)]
pub struct Network {
    config: NetworkConfig,
    random: Random,
    queue: BinaryHeap<Scheduled>,
    outages: Vec<Outage>,
    calls: BTreeMap<u64, Sender>,
    /// The call that is over right now, at its deadline.
    expired: Option<(u64, Sender, Nanos)>,
    next_call: u64,
    order: u64,
    sent: u64,
    probes: u64,
}

impl Network {
    /// A network on which nothing is under way.
    #[must_use]
    pub fn new(config: NetworkConfig) -> Network {
        Network {
            config,
            random: Random::new(config.seed),
            queue: BinaryHeap::new(),
            outages: Vec::new(),
            calls: BTreeMap::new(),
            expired: None,
            next_call: 0,
            order: 0,
            sent: 0,
            probes: 0,
        }
    }

    /// Other latency, jitter and loss from now on; the seed stays.
    pub fn set(&mut self, config: NetworkConfig) {
        self.config = NetworkConfig { seed: self.config.seed, ..config };
    }

    /// Plans an outage. Of several at one time the first that was planned
    /// counts.
    pub fn plan(&mut self, outage: Outage) {
        self.outages.push(outage);
    }

    /// Ends every outage at `now`, those planned for later too; a stopped
    /// store goes on with what waited.
    pub fn heal(&mut self, now: Nanos) {
        let ends: Vec<Nanos> = self.outages.drain(..).map(|outage| outage.to).collect();
        let waits =
            |event: &Scheduled| matches!(event.event, Event::Arrive { .. }) && ends.contains(&event.at);
        let mut queue = core::mem::take(&mut self.queue).into_vec();
        for event in queue.iter_mut().filter(|event| event.at > now && waits(event)) {
            event.at = now;
        }
        self.queue = queue.into();
    }

    /// Is the store away at that time, for all?
    #[must_use]
    pub fn is_out(&self, at: Nanos) -> bool {
        self.outages.iter().any(|outage| outage.instance.is_none() && outage.from <= at && at < outage.to)
    }

    /// Calls that were sent, probes among them.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Probes that were sent.
    #[must_use]
    pub fn probes(&self) -> u64 {
        self.probes
    }

    /// Calls that are not answered and not timed out.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn next_at(&self) -> Option<Nanos> {
        self.queue.peek().map(|next| next.at)
    }

    pub(super) fn next(&mut self) -> Option<(Nanos, Event)> {
        self.queue.pop().map(|next| (next.at, next.event))
    }

    pub(super) fn schedule(&mut self, at: Nanos, event: Event) {
        self.order += 1;
        self.queue.push(Scheduled { at, order: self.order, event });
    }

    /// The call is over; whose it was, if it was not over before.
    pub(super) fn finish(&mut self, call: u64) -> Option<Sender> {
        self.calls.remove(&call)
    }

    /// The call is over at its deadline; as [`finish`](Self::finish).
    pub(super) fn expire(&mut self, call: u64, now: Nanos) -> Option<Sender> {
        let sender = self.finish(call)?;
        self.expired = Some((call, sender, now));
        Some(sender)
    }

    pub(super) fn sender(&self, call: u64) -> Option<Sender> {
        self.calls.get(&call).copied()
    }

    pub(super) fn outage(&self, at: Nanos, instance: usize) -> Option<Outage> {
        let is_now = |outage: &&Outage| outage.from <= at && at < outage.to;
        let is_its = |outage: &&Outage| outage.instance.is_none_or(|only| only == instance);
        self.outages.iter().filter(is_now).find(is_its).copied()
    }

    /// When something that leaves now is there; none if it is lost.
    pub(super) fn travel(&mut self, now: Nanos) -> Option<Nanos> {
        let jitter = self.random.below(self.config.jitter.saturating_add(1));
        let is_lost = self.random.below(1_000_000) < u64::from(self.config.loss);
        (!is_lost).then_some(now.saturating_add(self.config.latency).saturating_add(jitter))
    }

    fn send(&mut self, sender: Sender, body: Body, deadline: Nanos, now: Nanos) -> Result<(), Refused> {
        let outage = self.outage(now, sender.instance).map(|outage| outage.kind);
        if outage == Some(OutageKind::Refused) {
            return Err(Refused::NotConnected);
        }
        self.next_call += 1;
        self.sent += 1;
        self.probes += u64::from(matches!(body, Body::Probe));
        let call = self.next_call;
        self.calls.insert(call, sender);
        self.schedule(deadline.max(now), Event::Deadline { call });
        if let Some(at) = self.travel(now) {
            self.schedule(at, Event::Arrive { call, body });
        }
        Ok(())
    }
}

/// The network as one instance has it: its clock may be ahead of the world's.
#[derive(Debug)]
pub(super) struct Wire<'n> {
    pub(super) network: &'n mut Network,
    pub(super) instance: usize,
    pub(super) ahead: Nanos,
}

impl Transport for Wire<'_> {
    fn send(&mut self, ticket: u64, call: &Call<'_>, deadline: Nanos, now: Nanos) -> Result<(), Refused> {
        let asks = call.asks.iter().map(|ask| (ask.key.into(), *ask.limit)).collect();
        self.pass(ticket, Body::Call { asks, op: call.op }, deadline, now)
    }

    fn probe(&mut self, ticket: u64, _key: &[u8], deadline: Nanos, now: Nanos) -> Result<(), Refused> {
        self.pass(ticket, Body::Probe, deadline, now)
    }

    /// A connection on which nothing is answered is closed in the end.
    fn wait_on(&mut self, ticket: u64, heir: u64) -> bool {
        let expired = self.network.expired.take();
        let expired = expired.filter(|(_, sender, _)| sender.ticket == ticket);
        let Some((call, sender, now)) = expired else { return false };
        self.network.calls.insert(call, Sender { ticket: heir, ..sender });
        self.network.schedule(now.saturating_add(SECOND), Event::Deadline { call });
        true
    }
}

impl Wire<'_> {
    fn pass(&mut self, ticket: u64, body: Body, deadline: Nanos, now: Nanos) -> Result<(), Refused> {
        let sender = Sender { instance: self.instance, ticket };
        let world = |at: Nanos| at.saturating_sub(self.ahead);
        self.network.send(sender, body, world(deadline), world(now))
    }
}

#[derive(Debug)]
struct Scheduled {
    at: Nanos,
    /// Of what happens at one time, what was planned first is first.
    order: u64,
    event: Event,
}

impl Ord for Scheduled {
    /// The largest is what happens first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Scheduled {}
