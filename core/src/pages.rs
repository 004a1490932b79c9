//! Limits of workers that share no memory, only small byte blobs that are
//! replaced whole, by compare-and-swap: an Envoy worker sees nothing of the
//! others' memory, and has the host's shared data instead.
//!
//! A fixed number of blobs, the *pages*, hold rows: a key's fingerprint, the
//! numbers of its limit, its state. A key's page follows from its fingerprint,
//! so any number of keys takes no more memory than the pages do: a page that
//! is full drops the row that is idle first, and counts it unless it was idle.
//!
//! A decision reads one page, decides by the pure
//! [`algorithms`](crate::algorithm), and writes the page back if nobody else
//! did meanwhile, else it begins anew. All limits of one policy for one
//! subject are on one page and so charged all or none in one exchange.
//!
//! Pages are also what the machine [counts by itself](crate::local), as a table
//! is elsewhere: the denials of subjects that have a penalty, so that who is to
//! wait waits at every worker, and the limits of another store while that is
//! away. Where the host has no shared data to offer, each worker does that in
//! memory of its own, in as many pages.
//!
//! [`Workers`] puts the [`Store`] of the shared limits before the pages: each
//! worker keeps leases and denials in memory of its own, and most requests
//! read no page. A worker may hold units that others then cannot give out, at
//! most a 64th of what is left of a limit, for the lease's time; a limit that
//! has fewer than 64 units left is not leased, and admits exactly what it
//! says. Leases are for token buckets alone. Units that are spent from a lease
//! were charged up to that time earlier: a key may so be admitted up to a 64th
//! of its burst for each worker above its limit in an interval, and no more
//! over a longer time.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::cell::RefCell;

use crate::decision::Decision;
use crate::key::{Fingerprint, Fingerprinter, Seed};
use crate::limit::{Algorithm, Limit};
use crate::limiter::MAX_LAYERS;
use crate::metrics::StoreMetrics;
use crate::policy::check::NONE;
use crate::policy::{Answer, Outcome, Policy, Rules, Selection};
use crate::redis::key;
use crate::redis::link::Refused;
use crate::redis::script::{Ask, Call, Op};
use crate::redis::share::{Piece, Share};
use crate::redis::state::State;
use crate::redis::store::{Host, One, Progress, Store, StoreConfig, StoreError, Transport};
use crate::table::Hold;
use crate::time::{Nanos, step_back};
use local::Own;
use page::Page;

mod local;
mod page;

/// The largest `limit` of a sliding log or a concurrency limit, whose state
/// grows with it.
pub const MAX_ENTRIES: u64 = 1024;
/// A page of buckets and windows has at most so many bytes: about 50 keys.
pub const PAGE_SIZE: usize = 2560;
/// A page of logs and holds has at most so many.
pub const LONG_PAGE_SIZE: usize = 32 * 1024;
/// For each page of logs there are so many of the others.
const LONG: u32 = 16;
/// Tries until a page that others write all the time is given up.
const TRIES: usize = 64;
/// The part of what is left of a limit that one worker may lease is one in
/// so many.
const SHARE: u64 = 64;

/// Blobs that the workers share.
pub trait Blobs {
    /// A page's bytes.
    type Bytes: AsRef<[u8]>;

    /// A page, with a number that differs after each write; none of a page
    /// that was never written.
    ///
    /// # Errors
    /// The host does not give it.
    fn read(&mut self, page: u32) -> Result<Option<(Self::Bytes, u32)>, Unavailable>;

    /// Writes a page that still has the number it was read with, or, with
    /// none, was still never written. False if it was written meanwhile.
    ///
    /// # Errors
    /// The host does not take it.
    fn write(&mut self, page: u32, bytes: &[u8], read: Option<u32>) -> Result<bool, Unavailable>;
}

/// The host's shared data cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host's shared data is not available")]
pub struct Unavailable;

/// Why a limit cannot be counted in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("limit: {0} is above {MAX_ENTRIES}, the most of a sliding_log or concurrency limit in shared pages")]
pub struct TooLong(pub u64);

/// Can the limit be counted in pages?
///
/// # Errors
/// A log or a concurrency limit of more than [`MAX_ENTRIES`].
pub fn accepts(limit: &Limit) -> Result<(), TooLong> {
    if is_long(limit) && limit.limit() > MAX_ENTRIES { Err(TooLong(limit.limit())) } else { Ok(()) }
}

/// Can they count what one of so many instances admits by itself of a limit
/// that is another store's, as that is away?
///
/// # Errors
/// Its piece is a log or a concurrency limit of more than [`MAX_ENTRIES`].
pub fn accepts_piece(limit: &Limit, instances: u64) -> Result<(), TooLong> {
    match Share::nth(0, instances).and_then(|share| share.of_limit(limit)) {
        Ok(Piece::Some(piece)) => accepts(&piece),
        _ => Ok(()), // a piece that is none, or none that can be, is told by the store
    }
}

/// The pages, as one worker uses them.
#[derive(Debug)]
pub struct Pages<B> {
    hash: Fingerprinter,
    /// Pages of buckets and windows; those of logs are behind them.
    short: u32,
    desk: RefCell<Desk<B>>,
}

/// What a worker works on a page with.
#[derive(Debug)]
struct Desk<B> {
    blobs: B,
    page: Page,
    own: Own,
    evicted: u64,
    conflicts: u64,
}

#[derive(Debug)]
struct Reply {
    ticket: u64,
    decisions: [Decision; MAX_LAYERS],
    count: usize,
    units: u64,
}

impl<B: Blobs> Pages<B> {
    /// `pages` of them (1 to 2^20), and a sixteenth on top for logs. All
    /// workers have the same seed and the same number.
    #[must_use]
    pub fn new(blobs: B, pages: u32, seed: Seed) -> Pages<B> {
        let (page, own) = (Page::default(), Own::default());
        Pages {
            hash: Fingerprinter::new(seed),
            short: pages.clamp(1, 1 << 20),
            desk: RefCell::new(Desk { blobs, page, own, evicted: 0, conflicts: 0 }),
        }
    }

    /// Rows that this worker dropped although they were not idle.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.desk.try_borrow().map_or(0, |desk| desk.evicted)
    }

    /// Exchanges that began anew, as another worker was first.
    #[must_use]
    pub fn conflicts(&self) -> u64 {
        self.desk.try_borrow().map_or(0, |desk| desk.conflicts)
    }

    /// Does what a call asks: a decision for each of its limits, and the units
    /// that were given on top.
    ///
    /// # Errors
    /// The shared data is not there, or others write this page all the time.
    pub fn execute(
        &self,
        call: &Call<'_>,
        now: Nanos,
        decisions: &mut [Decision],
    ) -> Result<u64, Unavailable> {
        let Some(first) = call.asks.first() else { return Ok(0) };
        let is_long = call.asks.iter().any(|ask| is_long(ask.limit));
        let key = unmarked(first.key);
        if let (Op::GiveBack { .. }, true, [_], Some(base)) = (call.op, is_long, call.asks, unnumbered(key)) {
            // Units in flight go back alone: they lie where their policy's first limit does.
            if self.exchange(self.place_of(base, true), call, now, decisions)?.is_some() {
                return Ok(0);
            }
        }
        Ok(self.exchange(self.place_of(key, is_long), call, now, decisions)?.unwrap_or(0))
    }

    /// The page of a policy's first key.
    fn place_of(&self, key: &[u8], is_long: bool) -> u32 {
        self.place(self.hash.fingerprint(key), is_long)
    }

    fn place(&self, hash: Fingerprint, is_long: bool) -> u32 {
        if is_long { self.short + within(hash, self.short.div_ceil(LONG)) } else { within(hash, self.short) }
    }

    /// Reads, decides, writes; none if there is nothing to give back to.
    fn exchange(
        &self,
        place: u32,
        call: &Call<'_>,
        now: Nanos,
        decisions: &mut [Decision],
    ) -> Result<Option<u64>, Unavailable> {
        let size = if place < self.short { PAGE_SIZE } else { LONG_PAGE_SIZE };
        let mut given = None;
        self.replace(place, now, &mut |page, bytes, now| {
            let mut states: [Option<Kept>; MAX_LAYERS] = [const { None }; MAX_LAYERS];
            let (mut is_known, mut is_carried) = (false, false);
            for (ask, room) in call.asks.iter().zip(&mut states) {
                let fingerprint = self.hash.fingerprint(ask.key).0;
                let found = page::find(bytes, fingerprint, ask.limit, now);
                is_known |= found.is_some();
                let (state, carried) = found.unwrap_or_else(|| (State::new(ask.limit), false));
                is_carried |= carried;
                *room = Some(Kept { fingerprint, state });
            }
            // What goes back does not set the clock, as in a table.
            let (units, latest) = match call.op {
                Op::Check { cost, more, share, owed, id } => {
                    let request = Request { now, cost, more, share, owed, id };
                    let (units, is_changed) = check(call.asks, &mut states, &request, decisions);
                    if !is_changed && !is_carried {
                        given = Some(0);
                        return None;
                    }
                    (units, now)
                }
                Op::GiveBack { .. } if !is_known => {
                    given = None;
                    return None;
                }
                Op::GiveBack { units, age, id } => {
                    for (ask, kept) in call.asks.iter().zip(states.iter_mut().flatten()) {
                        kept.state.refund(ask.limit, now, units, now.saturating_sub(age), id);
                    }
                    (0, page::latest(bytes))
                }
            };
            let rows = call.asks.iter().zip(states.iter().flatten());
            let rows = rows.map(|(ask, kept)| (kept.fingerprint, ask.limit, &kept.state));
            given = Some(units);
            Some(page.write(bytes, &rows, (now, latest), size))
        })?;
        Ok(given)
    }

    /// Hands over what a page holds, and the time that it has there; writes
    /// what was put together in the room for pages, unless that is none, which
    /// else is how many rows had to go. Anew when somebody else was quicker.
    fn replace(&self, place: u32, now: Nanos, step: Step<'_>) -> Result<(), Unavailable> {
        let Ok(mut desk) = self.desk.try_borrow_mut() else { return Err(Unavailable) }; // it is not lent out
        let Desk { blobs, page, evicted, conflicts, .. } = &mut *desk;
        for _ in 0..TRIES {
            let read = blobs.read(place)?;
            let bytes = bytes_of(&read);
            let now = step_back(now, page::latest(bytes));
            let Some(gone) = step(page, bytes, now) else { return Ok(()) };
            let version = read.as_ref().map(|(_, version)| *version);
            if blobs.write(place, page.bytes(), version)? {
                *evicted = evicted.saturating_add(gone);
                return Ok(());
            }
            *conflicts = conflicts.saturating_add(1);
        }
        Err(Unavailable)
    }

    /// The same; where that cannot be, with a page of the worker's own.
    fn replace_anyway(&self, place: u32, now: Nanos, step: Step<'_>) {
        if self.replace(place, now, step).is_err()
            && let Ok(mut desk) = self.desk.try_borrow_mut()
        {
            let Desk { page, own, evicted, .. } = &mut *desk;
            let gone = own.replace(place, now, page, step);
            *evicted = evicted.saturating_add(gone);
        }
    }
}

/// What is made of a page.
type Step<'s> = &'s mut dyn FnMut(&mut Page, &[u8], Nanos) -> Option<u64>;

/// What a page that was read holds; one that is not there, nothing.
fn bytes_of<T: AsRef<[u8]>>(read: &Option<(T, u32)>) -> &[u8] {
    read.as_ref().map_or(&[], |(bytes, _)| bytes.as_ref())
}

struct Kept {
    fingerprint: u64,
    state: State,
}

struct Request {
    now: Nanos,
    cost: u64,
    more: u64,
    share: u64,
    owed: u64,
    id: u64,
}

/// All limits, or none: the units that were given on top, and whether any
/// state is another now.
fn check(
    asks: &[Ask<'_>],
    states: &mut [Option<Kept>],
    request: &Request,
    decisions: &mut [Decision],
) -> (u64, bool) {
    let Request { now, cost, more, share, owed, id } = *request;
    let mut fits = true;
    for ((ask, kept), decision) in asks.iter().zip(states.iter_mut().flatten()).zip(&mut *decisions) {
        if owed > 0 {
            kept.state.charge(ask.limit, now, owed, id);
        }
        *decision = kept.state.clone().decide(ask.limit, now, cost, id);
        fits &= decision.allowed;
    }
    if !fits {
        for ((ask, kept), decision) in asks.iter().zip(states.iter_mut().flatten()).zip(decisions) {
            if decision.allowed {
                *decision = kept.state.decide(ask.limit, now, 0, id);
            }
        }
        return (0, owed > 0);
    }
    let mut units = more;
    for (ask, kept) in asks.iter().zip(states.iter_mut().flatten()) {
        let _ = kept.state.decide(ask.limit, now, cost, id); // it fits
        if units > 0 {
            units = units.min(kept.state.decide(ask.limit, now, 0, id).remaining / share.max(1));
        }
    }
    for ((ask, kept), decision) in asks.iter().zip(states.iter_mut().flatten()).zip(decisions) {
        let _ = kept.state.decide(ask.limit, now, units, id); // no more than what remains
        let (allowed, delay) = (decision.allowed, decision.delay);
        *decision = Decision { allowed, delay, ..kept.state.decide(ask.limit, now, 0, id) };
    }
    (units, owed > 0 || cost > 0 || units > 0)
}

/// Of so many places, the one of a hash.
fn within(hash: Fingerprint, count: u32) -> u32 {
    ((u128::from(hash.0) * u128::from(count)) >> 64) as u32 // below count
}

/// Does its state grow with the limit?
fn is_long(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency)
}

/// A key without the mark of its kind.
fn unmarked(key: &[u8]) -> &[u8] {
    let without = key.strip_suffix(b"#log").or_else(|| key.strip_suffix(b"#hold"));
    without.unwrap_or(key)
}

/// A key without the number of its limit, if it may have one.
fn unnumbered(key: &[u8]) -> Option<&[u8]> {
    let colon = key.iter().rposition(|byte| *byte == b':')?;
    let (base, number) = key.split_at_checked(colon)?;
    let digits = number.get(1..).filter(|digits| matches!(digits.len(), 1 | 2))?;
    digits.iter().all(u8::is_ascii_digit).then_some(base)
}

/// Calls that are answered at once.
struct Near<'n, B> {
    pages: &'n Pages<B>,
    replies: &'n mut VecDeque<Reply>,
}

impl<B: Blobs> Transport for Near<'_, B> {
    fn send(&mut self, ticket: u64, call: &Call<'_>, _: Nanos, now: Nanos) -> Result<(), Refused> {
        let mut decisions = [NONE; MAX_LAYERS];
        let count = call.asks.len().min(MAX_LAYERS);
        let room = decisions.get_mut(..count).unwrap_or(&mut []);
        let units = self.pages.execute(call, now, room).map_err(|Unavailable| Refused::NotConnected)?;
        self.replies.push_back(Reply { ticket, decisions, count, units });
        Ok(())
    }

    fn probe(&mut self, ticket: u64, _: &[u8], _: Nanos, _: Nanos) -> Result<(), Refused> {
        self.replies.push_back(Reply { ticket, decisions: [NONE; MAX_LAYERS], count: 0, units: 0 });
        Ok(()) // the next call tells
    }

    fn peek(&mut self, asks: &[Ask<'_>], cost: u64, now: Nanos) -> Option<Nanos> {
        let first = asks.first()?;
        let is_long = asks.iter().any(|ask| is_long(ask.limit));
        let mut longest = None;
        let place = self.pages.place_of(unmarked(first.key), is_long);
        let read = self.pages.replace(place, now, &mut |_, bytes, now| {
            let wait = |ask: &Ask<'_>| {
                let found = page::find(bytes, self.pages.hash.fingerprint(ask.key).0, ask.limit, now);
                found.map_or(0, |(mut state, _)| state.decide(ask.limit, now, cost, 0).retry_after)
            };
            longest = asks.iter().map(wait).max();
            None
        });
        read.ok().and(longest)
    }
}

/// One worker: what it remembers, before the pages that all share.
#[derive(Debug)]
pub struct Workers {
    store: Box<Store>,
    replies: VecDeque<Reply>,
}

/// What a host brings along to each step.
#[derive(Debug)]
pub struct Here<'h, B> {
    /// The pages: the store, and where is counted what that should not take.
    pub pages: &'h Pages<B>,
    /// What is counted.
    pub metrics: &'h StoreMetrics,
    /// A clock that is the same for all workers.
    pub now: Nanos,
}

impl Workers {
    /// Takes the memory of `pots` keys, about 1.1 KiB each, and of `holds`
    /// requests in flight under concurrency limits, about 0.5 KiB each; `seed`
    /// is drawn by each worker for itself, and tells its calls from others'.
    ///
    /// # Errors
    /// Too many holds.
    pub fn new(pots: usize, holds: usize, seed: u64) -> Result<Workers, StoreError> {
        let config =
            StoreConfig { pots, waiting: 4, holds, workers: SHARE / 2, seed, ..StoreConfig::default() };
        let replies = VecDeque::with_capacity(MAX_LAYERS);
        Ok(Workers { store: Box::new(Store::new(&config)?), replies })
    }

    /// Asks all limits of a selection of rules that
    /// [count in a store](Rules::count_in_store), all or none. `answer` is
    /// room, which a host keeps for all its requests.
    pub fn check<B: Blobs>(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        here: &Here<'_, B>,
        answer: &mut Answer,
    ) {
        let Workers { store, replies } = &mut *self;
        let one = with(replies, here, |host| store.one(rules, selection, 0, host));
        let progress = match one {
            Some(One::Known(decision, outcome)) => {
                answer.set_only(&decision, outcome);
                if !replies.is_empty() {
                    deliver(store, replies, here); // of what was fetched ahead
                }
                return;
            }
            Some(One::Asked(progress)) => progress,
            None => with(replies, here, |host| store.check(rules, selection, 0, host)),
        };
        *answer = self.answered(&progress, rules, selection, here);
    }

    #[inline(never)]
    fn answered<B: Blobs>(
        &mut self,
        progress: &Progress,
        rules: &Rules,
        selection: &Selection<'_>,
        here: &Here<'_, B>,
    ) -> Answer {
        let Workers { store, replies } = self;
        deliver(store, replies, here);
        match progress {
            Progress::Answered(answer) => *answer,
            Progress::Waiting(pending) => {
                while let Some((_, told)) = with(replies, here, |host| store.poll_answer(host)) {
                    if let Some(answer) = store.answer(told).filter(|_| told == *pending) {
                        return *answer;
                    }
                }
                // Every call is answered at once, so this is not reached; it would be let through.
                with(replies, here, |host| store.cancel(*pending, host));
                Answer::join(rules, selection, |_| true, None, None)
            }
        }
    }

    /// The request is over: gives back its units in flight.
    pub fn release<B: Blobs>(&mut self, hold: &Hold, here: &Here<'_, B>) {
        self.step(here, |store, host| store.release(hold, host));
    }

    /// Takes back what an admitted request was charged at that time, as it was
    /// denied elsewhere.
    pub fn give_back<B: Blobs>(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        answer: &Answer,
        charged_at: Nanos,
        here: &Here<'_, B>,
    ) {
        let dry = rules.layers_of(selection, Policy::dry_run);
        let mut layers = selection.layers().enumerate().peekable();
        while let Some((first, layer)) = layers.next() {
            let mut keys = [key::write(rules, layer, None); MAX_LAYERS];
            let mut asks = [Ask { key: &[], limit: layer.limit }; MAX_LAYERS];
            let mut count = 1;
            while let Some((_, next)) = layers.next_if(|(_, next)| next.policy == layer.policy) {
                if let (Some(room), Some(ask)) = (keys.get_mut(count), asks.get_mut(count)) {
                    (*room, ask.limit) = (key::write(rules, next, None), next.limit);
                    count += 1;
                }
            }
            let was_charged = answer.outcomes().get(first) == Some(&Outcome::Admitted);
            if !was_charged || dry >> first & 1 == 1 || layer.cost == 0 {
                continue;
            }
            for (ask, key) in asks.iter_mut().zip(&keys) {
                ask.key = key.as_bytes();
            }
            // No call has the number 0: units in flight go back by their holds.
            let age = here.now.saturating_sub(charged_at);
            let op = Op::GiveBack { units: layer.cost, age, id: 0 };
            let call = Call { asks: asks.get(..count).unwrap_or(&[]), op };
            let _ = here.pages.execute(&call, here.now, &mut []); // without shared data there is nothing to take back
        }
        answer.holds().iter().for_each(|hold| self.release(hold, here));
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.store.poll_timeout()
    }

    /// Gives back what was leased and not spent in time.
    pub fn handle_timeout<B: Blobs>(&mut self, here: &Here<'_, B>) {
        if self.poll_timeout().is_some_and(|at| at <= here.now) {
            self.step(here, Store::handle_timeout);
        }
    }

    /// Gives everything back: the worker ends.
    pub fn drain<B: Blobs>(&mut self, here: &Here<'_, B>) {
        self.step(here, Store::drain);
    }

    fn step<B: Blobs>(&mut self, here: &Here<'_, B>, step: impl FnOnce(&mut Store, &mut Host<'_, '_>)) {
        let Workers { store, replies } = self;
        with(replies, here, |host| step(store, host));
        deliver(store, replies, here);
    }
}

/// What the store is asked with.
#[inline]
fn with<B: Blobs, R>(
    replies: &mut VecDeque<Reply>,
    here: &Here<'_, B>,
    step: impl FnOnce(&mut Host<'_, '_>) -> R,
) -> R {
    let mut near = Near { pages: here.pages, replies };
    step(&mut Host { table: here.pages, metrics: here.metrics, transport: &mut near, now: here.now })
}

/// Hands over what was answered; answers may lead to calls.
fn deliver<B: Blobs>(store: &mut Store, replies: &mut VecDeque<Reply>, here: &Here<'_, B>) {
    while let Some(mut reply) = replies.pop_front() {
        let decisions = reply.decisions.get_mut(..reply.count).unwrap_or(&mut []);
        with(replies, here, |host| store.answered(reply.ticket, decisions, reply.units, host));
    }
}

#[cfg(test)]
mod tests;
