//! What is done without a request: unspent units go back, and a store that was
//! away is probed.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::super::key::KeyText;
use super::super::lease::{TOLD, Unspent};
use super::super::script::{Ask, Call, Op};
use super::asks;
use super::flight::{Group, Held, NOBODY, PROBE};
use super::{Host, Store};
use crate::key::Fingerprint;
use crate::limit::{Algorithm, Limit};
use crate::metrics::{StoreEvent, StoreMetrics};
use crate::table::Hold;
use crate::time::Nanos;

/// How often unspent units go back: 10 ms; and when a transport that took no
/// call is tried again: 100 ms.
const SWEEP: (Nanos, Nanos) = (10_000_000, 100_000_000);
/// How many pots' units at a time: fewer than a link has room for calls.
const BATCH: usize = 128;
/// A call that nobody waits for may take so long: 1 s.
pub(super) const PATIENCE: Nanos = 1_000_000_000;
/// What `Hold::row` says of a hold that the store counts.
const REMOTE: u64 = u64::MAX;

/// Where a pot's units came from, and what its fallback counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Origin {
    /// Whose pot: another key's may be in its place by now.
    pot: u64,
    text: KeyText,
    piece: u32,
    pieces: u32,
    /// As the rules have them, each with its place in the host's table.
    limits: [Option<(Limit, Fingerprint)>; TOLD],
}

impl Origin {
    /// Of a group of more than [`TOLD`] limits nothing is kept: its unspent
    /// units are let go.
    fn remember(&mut self, group: &Group, layers: &[Option<Held>]) {
        (self.pot, self.piece, self.pieces) = (group.pot(), group.piece, group.pieces);
        self.text = group.text;
        self.limits = [None; TOLD];
        if group.count <= TOLD {
            for (room, held) in self.limits.iter_mut().zip(group.held(layers).iter().flatten()) {
                *room = Some((held.limit, held.fingerprint));
            }
        }
    }

    /// As it would be asked.
    pub(super) fn group(&self) -> (Group, [Option<Held>; TOLD]) {
        let layers = self.limits.map(|limit| limit.map(Held::of));
        let (text, pot, piece, pieces) = (self.text, self.pot, self.piece, self.pieces);
        let count = layers.iter().flatten().count();
        (Group { text, pot, piece, pieces, count, ..Group::default() }, layers)
    }
}

impl Store {
    /// When [`handle_timeout`](Self::handle_timeout) has something to do; not
    /// before there is anything.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let sweep = self.leases.next_over().map(|at| at.max(self.sweep_from));
        let wait = (self.waits > 0).then_some(self.wait_until);
        [self.breaker.poll_timeout(), sweep, wait].into_iter().flatten().min()
    }

    /// Time has passed: probes the store if that is due, and gives back what
    /// was fetched and not spent.
    pub fn handle_timeout(&mut self, host: &mut Host<'_, '_>) {
        self.probe_if_due(host);
        self.give_up_waiting(host);
        if host.now >= self.sweep_from {
            let is_taken = self.give_back_over(BATCH, host.now, host);
            self.sweep_from = host.now.saturating_add(if is_taken { SWEEP.0 } else { SWEEP.1 });
        }
    }

    /// A connection was made: a store that was away may be well again.
    pub fn connected(&mut self, host: &mut Host<'_, '_>) {
        host.metrics.count(StoreEvent::Connected);
        self.hurry(host);
    }

    /// There was no connection, and it may have lost what it knew: what it said
    /// before that it is told again where it does not know any more. A breaker
    /// that closes sees to that by itself.
    pub fn may_have_forgotten(&mut self, now: Nanos) {
        self.back_at = now;
    }

    /// There is a sign that the store is well: what waits before it is asked
    /// again need not. For a connection that several stores share, which is
    /// one connection made.
    pub fn hurry(&mut self, host: &mut Host<'_, '_>) {
        self.breaker.hurry(host.now);
        self.probe_if_due(host);
    }

    /// The breaker is open. If another worker's has closed meanwhile, the store
    /// is well for this one too: as long as some count in it and some alone,
    /// they admit twice what they should.
    pub(super) fn look_around(&mut self, host: &mut Host<'_, '_>) {
        let closed = closed(host.metrics);
        if closed > self.closed_seen {
            self.closed_seen = closed;
            host.transport.hurry(host.now);
            self.hurry(host);
        }
    }

    fn probe_if_due(&mut self, host: &mut Host<'_, '_>) {
        self.breaker.handle_timeout(host.now);
        if self.breaker.wants_probe(host.now) {
            let deadline = host.now.saturating_add(self.patience);
            self.breaker.probe_sent(host.now, deadline);
            if host.transport.probe(PROBE, self.probe_key.as_bytes(), deadline, host.now).is_err() {
                self.breaker.probe_failed(host.now);
            }
        }
        self.note_breaker(host.metrics, host.now);
    }

    /// Gives everything back that is in the pots, and tells the store what was
    /// admitted without it: this process ends. Its breaker is not counted as
    /// open any more.
    ///
    /// What was asked for before and is not answered yet may bring more: that
    /// goes back as soon as it comes. So the host goes on for a little while,
    /// until all that it sent is answered. What is not waited for is lost
    /// until its limit has filled again; it is not admitted.
    pub fn drain(&mut self, host: &mut Host<'_, '_>) {
        if self.was_open && !self.drained {
            host.metrics.uncount(StoreEvent::Open);
        }
        self.drained = true;
        self.give_back_rest(host);
    }

    /// Of a process that ends: the store is told what it has not heard of, and
    /// what is in the pots goes back, or what came into them since.
    pub(super) fn give_back_rest(&mut self, host: &mut Host<'_, '_>) {
        if self.drained {
            self.tell_rest(host);
            let _ = self.give_back_over(usize::MAX, Nanos::MAX, host); // the rest when there is room
        }
    }

    /// What is over at `at` goes back, in at most `count` calls. False if the
    /// transport took no more.
    fn give_back_over(&mut self, count: usize, at: Nanos, host: &mut Host<'_, '_>) -> bool {
        for _ in 0..count {
            let Some(unspent) = self.leases.over(at) else { break };
            if !self.return_units(&unspent, host) {
                return false;
            }
            self.leases.went_back(&unspent);
        }
        true
    }

    /// A call that was not answered in time may be carried out yet. Units that
    /// it then holds in flight would be nobody's until they expire: they go
    /// back behind it. Where it never comes they are not there, and nothing is.
    pub(super) fn release_late(&self, layers: &[Option<Held>], group: &Group, host: &mut Host<'_, '_>) {
        for (index, limit) in self.limits_of(layers, group).iter().enumerate() {
            if limit.algorithm() != Algorithm::Concurrency || group.cost == 0 {
                continue;
            }
            let late = Kept {
                generation: 0,
                key: group.text.of(group.piece_number(), index, limit.algorithm()),
                limit: *limit,
                id: group.id,
                units: group.cost,
                taken_at: group.asked_at,
                expires: 0,
            };
            if late.give_back(host) {
                host.metrics.count(StoreEvent::GiveBack);
            }
        }
    }

    /// Keeps where the units of a group's pot come from.
    pub(super) fn remember_origin(&mut self, layers: &[Option<Held>], group: &Group) {
        let room = self.leases.place(group.pot()).and_then(|at| self.origins.get_mut(at));
        if let Some(room) = room {
            room.remember(group, layers);
        }
    }

    /// Where the units of a pot come from, and what its fallback counts.
    pub(super) fn origin(&self, place: usize, pot: u64) -> Option<&Origin> {
        self.origins.get(place).filter(|origin| origin.pot == pot)
    }

    /// Units that were fetched and not spent go back; false when the transport
    /// takes no call now. While the breaker is open they are let go.
    pub(super) fn return_units(&mut self, unspent: &Unspent, host: &mut Host<'_, '_>) -> bool {
        let Some(origin) = self.origin(unspent.place, unspent.key) else { return true };
        if !self.breaker.allows(host.now) {
            return true;
        }
        let age = host.now.saturating_sub(unspent.asked_at);
        let op = Op::GiveBack { units: unspent.units, age, id: unspent.id };
        let send = |asks: &[Ask<'_>]| {
            host.transport.send(NOBODY, &Call { asks, op }, host.now.saturating_add(PATIENCE), host.now)
        };
        let counted = origin.limits.map(|limit| Some(self.counted(&limit?.0, origin.piece, origin.pieces)));
        let piece = (origin.pieces > 1).then_some(origin.piece);
        let Some(sent) = asks::with::<TOLD, _>(&origin.text, piece, counted.iter().flatten(), send) else {
            return true;
        };
        if sent.is_ok() {
            host.metrics.count(StoreEvent::Call);
            host.metrics.count(StoreEvent::GiveBack);
        }
        sent.is_ok()
    }
}

/// How often breakers have closed, of all workers: how many are open says
/// nothing, as one may open while another closes.
pub(super) fn closed(metrics: &StoreMetrics) -> u64 {
    let opened = metrics.read(StoreEvent::Opened); // first: what opens then is not taken for closed
    opened.saturating_sub(metrics.read(StoreEvent::Open))
}

/// Units in flight that the store counts: what is needed to release them.
#[derive(Debug)]
pub(super) struct Holds {
    kept: Box<[Option<Kept>]>,
    /// Places of none; as long as there are places, so it never grows.
    free: Vec<usize>,
    /// Where the next look for one that has expired begins.
    hand: usize,
    generation: u64,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    generation: u64,
    key: KeyText,
    limit: Limit,
    id: u64,
    units: u64,
    taken_at: Nanos,
    expires: Nanos,
}

impl Holds {
    pub(super) fn new(count: usize) -> Holds {
        let mut kept = Vec::new();
        kept.resize(count, None);
        Holds { kept: kept.into_boxed_slice(), free: (0..count).rev().collect(), hand: 0, generation: 0 }
    }

    /// A hold for the host; none when there is no room, and it then lasts
    /// until it expires.
    pub(super) fn keep(
        &mut self,
        key: KeyText,
        limit: &Limit,
        group: &Group,
        expires: Nanos,
        now: Nanos,
    ) -> Option<Hold> {
        let place = self.free.pop().or_else(|| self.expired(now))?;
        let room = self.kept.get_mut(place)?;
        self.generation += 1;
        let (id, units, generation) = (group.id, group.cost, self.generation);
        *room = Some(Kept { generation, key, limit: *limit, id, units, taken_at: group.asked_at, expires });
        let fingerprint = generation << 24 | place as u64; // a place is below 2^24
        Some(Hold { row: REMOTE, fingerprint, expires, units })
    }

    /// The place of a hold that was not released and is over; of a few that are
    /// looked at, others the next time.
    fn expired(&mut self, now: Nanos) -> Option<usize> {
        for _ in 0..self.kept.len().min(64) {
            let place = self.hand;
            self.hand = if place + 1 < self.kept.len() { place + 1 } else { 0 };
            if self.kept.get(place)?.is_some_and(|kept| kept.expires <= now) {
                return Some(place);
            }
        }
        None
    }

    /// Takes out what a hold stands for; none for a hold of the table's, or
    /// one that is gone.
    pub(super) fn take(&mut self, hold: &Hold) -> Option<Kept> {
        let place = (hold.fingerprint & 0xFF_FFFF) as usize;
        let room = self.kept.get_mut(place).filter(|_| hold.row == REMOTE)?;
        let kept = room.take_if(|kept| kept.generation == hold.fingerprint >> 24)?;
        self.free.push(place); // it was in use, so there is room for it
        Some(kept)
    }

    pub(super) fn forget(&mut self, hold: &Hold) {
        let _ = self.take(hold); // what it stands for is given back another way
    }
}

impl Kept {
    pub(super) fn give_back(&self, host: &mut Host<'_, '_>) -> bool {
        let asks = [Ask { key: self.key.as_bytes(), limit: &self.limit }];
        let age = host.now.saturating_sub(self.taken_at);
        let op = Op::GiveBack { units: self.units, age, id: self.id };
        let deadline = host.now.saturating_add(PATIENCE);
        let is_sent = host.transport.send(NOBODY, &Call { asks: &asks, op }, deadline, host.now).is_ok();
        if is_sent {
            host.metrics.count(StoreEvent::Call);
        }
        is_sent
    }
}
