//! Who does the waiting: a thread for each connection, and one for the time.
//!
//! A request that has to ask puts its calls into one queue and sleeps until
//! its answer is there or its deadline is. The *carriers* each have a
//! connection: they take what is in the queue, send it in one piece, and tell
//! the store what came back. So a request never waits longer than its policy
//! says, whatever a connection, a name server or a handshake does; calls of
//! many requests share a round trip; and the store is never locked while
//! anything is waited for. A call whose time is over before it was sent is not
//! sent.
//!
//! What nobody waits for (leases fetched ahead, units given back, probes) takes
//! the same way. The *keeper* tells the stores when time has passed.
//!
//! Who tells a call's end: its reply or failure the carrier; that its time is
//! over the request that waits, and for calls that nobody waits for the
//! carrier again. What comes later than that the store knows by its ticket,
//! and leaves.
//!
//! A request may be answered by what another one's call brings, or asked again
//! because of it. So each that waits is known by its [`Pending`]: whoever
//! stepped the store hands out all answers that came of it.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portable_atomic::AtomicU64;

use super::address::Target;
use super::call::{Collected, Kept};
use super::line::{Line, Outcome};
use crate::metrics::{StoreEvent, StoreMetrics};
use crate::policy::Answer;
use crate::redis::store::{Failure, Host, Pending, Store};
use crate::table::{OwnedTable, Table};
use crate::time::{NEVER, Nanos};

/// Calls that go out in one piece.
const BATCH: usize = 128;
/// A connection that was idle for so long is asked whether it is there: 1 s.
const IDLE: Duration = Duration::from_secs(1);
/// How long a connection is waited for beyond the last deadline.
const GRACE: Duration = Duration::from_millis(5);
/// The waits between tries to connect: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(320));

/// What all threads of a client share.
pub(super) struct Shared {
    pub(super) stores: Box<[Mutex<Store>]>,
    pub(super) table: OwnedTable,
    pub(super) metrics: StoreMetrics,
    target: Target,
    connect_timeout: Duration,
    started: Instant,
    /// UNIX time when it was started.
    epoch: Nanos,
    queue: Mutex<Queue>,
    /// There is work, or the end.
    work: Condvar,
    /// A connection came up, or a carrier ended.
    news: Condvar,
    /// Connections that are up; written under the queue's lock.
    connected: AtomicUsize,
    /// When the keeper looks next.
    next: AtomicU64,
    keeper: Mutex<()>,
    keeper_wake: Condvar,
    ends: AtomicBool,
    trouble: Mutex<Option<&'static str>>,
    /// Who waits for an answer of which store; locked behind the store.
    waiters: Mutex<BTreeMap<(usize, u64), Arc<Waiter>>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Carriers go when the queue is empty.
    closing: bool,
    /// Carriers that are there.
    carriers: usize,
    /// Carriers that have tried to connect, however it went.
    tried: usize,
}

/// Calls of a store's step, in their order.
struct Job {
    store: usize,
    calls: Vec<Kept>,
}

/// A request that sleeps.
pub(super) struct Waiter {
    answer: Mutex<Option<Answer>>,
    wake: Condvar,
    pending: Pending,
    /// The tickets of what it waits for, and their deadlines, the first one first.
    due: Vec<(Nanos, u64)>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner) // nothing of ours panics while it holds one
}

impl Shared {
    pub(super) fn new(
        stores: Box<[Mutex<Store>]>,
        table: OwnedTable,
        target: Target,
        connect_timeout: Duration,
        epoch: Nanos,
    ) -> Shared {
        Shared {
            stores,
            table,
            metrics: StoreMetrics::default(),
            target,
            connect_timeout,
            started: Instant::now(),
            epoch,
            queue: Mutex::default(),
            work: Condvar::new(),
            news: Condvar::new(),
            connected: AtomicUsize::new(0),
            next: AtomicU64::new(NEVER),
            keeper: Mutex::new(()),
            keeper_wake: Condvar::new(),
            ends: AtomicBool::new(false),
            trouble: Mutex::new(None),
            waiters: Mutex::default(),
        }
    }

    /// UNIX time, as a clock that does not jump.
    pub(super) fn now(&self) -> Nanos {
        let since = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(NEVER);
        self.epoch.saturating_add(since)
    }

    pub(super) fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    pub(super) fn trouble(&self) -> Option<&'static str> {
        *lock(&self.trouble)
    }

    /// Runs a step of a store; what it sends is collected, none of it is sent.
    pub(super) fn with_store<R>(
        &self,
        store: usize,
        table: &Table<'_>,
        calls: &mut Collected,
        step: impl FnOnce(&mut Store, &mut Host<'_, '_>) -> R,
    ) -> Option<R> {
        let (result, due) = self.step(store, table, calls, step)?;
        if let Some(due) = due.filter(|due| *due < self.next.load(Ordering::Relaxed)) {
            self.next.fetch_min(due, Ordering::Relaxed);
            drop(lock(&self.keeper)); // the keeper has read it, or waits already
            self.keeper_wake.notify_one();
        }
        Some(result)
    }

    /// As above; and when the store wants to know the time.
    fn step<R>(
        &self,
        place: usize,
        table: &Table<'_>,
        calls: &mut Collected,
        step: impl FnOnce(&mut Store, &mut Host<'_, '_>) -> R,
    ) -> Option<(R, Option<Nanos>)> {
        let mut store = lock(self.stores.get(place)?);
        let mut host = Host { table, metrics: &self.metrics, transport: calls, now: self.now() };
        let result = step(&mut store, &mut host);
        while let Some((_, pending)) = store.poll_answer(&mut host) {
            let waiter = lock(&self.waiters).remove(&(place, pending.0));
            if let Some((waiter, answer)) = waiter.zip(store.answer(pending)) {
                *lock(&waiter.answer) = Some(*answer);
                waiter.wake.notify_one();
            }
        }
        Some((result, store.poll_timeout()))
    }

    /// A request of this store has to wait. From within a step of the store:
    /// its answer may come with the next one.
    pub(super) fn expect(&self, place: usize, store: &Store, pending: Pending) -> Arc<Waiter> {
        let mut due: Vec<(Nanos, u64)> = store.due(pending).collect();
        due.sort_unstable();
        let (answer, wake) = (Mutex::default(), Condvar::new());
        let waiter = Arc::new(Waiter { answer, wake, pending, due });
        lock(&self.waiters).insert((place, pending.0), Arc::clone(&waiter));
        waiter
    }

    /// Sleeps until the request is answered: by replies, or at the deadline of
    /// each that it waits for without them.
    pub(super) fn wait(&self, store: usize, table: &Table<'_>, waiter: &Waiter) -> Option<Answer> {
        let mut due = waiter.due.iter().copied().peekable();
        while let Some((deadline, _)) = due.peek().copied() {
            let mut answer = lock(&waiter.answer);
            loop {
                if let Some(answer) = answer.take() {
                    return Some(answer);
                }
                let now = self.now();
                if now >= deadline {
                    break;
                }
                let left = Duration::from_nanos(deadline - now);
                answer = waiter.wake.wait_timeout(answer, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            drop(answer);
            while let Some((_, ticket)) = due.next_if(|(then, _)| *then <= deadline) {
                let mut calls = Collected::new(self.connected() > 0);
                self.with_store(store, table, &mut calls, |store, host| {
                    store.handle_timeout(host); // it may wait for another one's call
                    if store.awaits(ticket) {
                        store.failed(ticket, Failure::Timeout, host);
                    }
                });
                self.send(store, calls.take(), table);
            }
        }
        let answer = lock(&waiter.answer).take();
        if answer.is_none() {
            // All was told; nothing can be left.
            let mut calls = Collected::new(false);
            self.with_store(store, table, &mut calls, |store, host| store.cancel(waiter.pending, host));
            lock(&self.waiters).remove(&(store, waiter.pending.0));
        }
        answer
    }

    /// Calls that a step of a store has made.
    pub(super) fn send(&self, store: usize, calls: Vec<Kept>, table: &Table<'_>) {
        if let Some(job) = self.job(store, calls) {
            self.put(job, table);
        }
    }

    /// Whoever waits for a call tells when its time is over.
    fn job(&self, store: usize, mut calls: Vec<Kept>) -> Option<Job> {
        if calls.is_empty() {
            return None;
        }
        let waiters = lock(&self.waiters);
        for call in &mut calls {
            let pending = Pending::of(call.ticket);
            call.is_waited_for = pending.is_some_and(|pending| waiters.contains_key(&(store, pending.0)));
        }
        Some(Job { store, calls })
    }

    /// Tells a store what became of calls of one job; gives what is to be sent
    /// now.
    fn tell(&self, store: usize, table: &Table<'_>, outcomes: &[(u64, Outcome)]) -> Option<Job> {
        let mut calls = Collected::new(self.connected() > 0);
        self.with_store(store, table, &mut calls, |store, host| {
            for (ticket, outcome) in outcomes {
                match outcome {
                    Ok(integers) => store.replied(*ticket, integers, host),
                    Err(failure) => store.failed(*ticket, *failure, host),
                }
            }
        });
        self.job(store, calls.take())
    }

    /// Into the queue; without a connection it has failed.
    fn put(&self, job: Job, table: &Table<'_>) {
        let mut queue = lock(&self.queue);
        if self.connected() > 0 {
            queue.jobs.push_back(job);
            drop(queue);
            self.work.notify_one();
        } else {
            drop(queue);
            self.fail(job, table, Failure::Store);
        }
    }

    /// Tells that a job will not be done, and those that come of it.
    fn fail(&self, job: Job, table: &Table<'_>, failure: Failure) {
        let mut jobs = Vec::from([job]);
        while let Some(Job { store, calls }) = jobs.pop() {
            let outcomes: Vec<_> = calls.iter().map(|call| (call.ticket, Err(failure))).collect();
            jobs.extend(self.tell(store, table, &outcomes));
        }
    }

    /// Waits until a connection is up, all tries have failed, or `timeout`.
    pub(super) fn wait_connected(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        let mut queue = lock(&self.queue);
        while self.connected() == 0 && queue.tried < queue.carriers {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue = self.news.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the keeper; the carriers end when nothing is left to do.
    pub(super) fn end_keeper(&self) {
        self.ends.store(true, Ordering::Relaxed);
        drop(lock(&self.keeper));
        self.keeper_wake.notify_all();
    }

    /// Lets the carriers go, and waits until they are gone, or `timeout`.
    pub(super) fn end_carriers(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        let mut queue = lock(&self.queue);
        queue.closing = true;
        self.work.notify_all();
        while queue.carriers > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue = self.news.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A carrier will be there; or will not, after all.
    pub(super) fn expect_carrier(&self, is_there: bool) {
        let mut queue = lock(&self.queue);
        queue.carriers = if is_there { queue.carriers + 1 } else { queue.carriers.saturating_sub(1) };
    }

    /// Carriers that are there.
    pub(super) fn carriers(&self) -> usize {
        lock(&self.queue).carriers
    }

    /// One carrier's life.
    pub(super) fn carry(&self) {
        if let Some(table) = self.table.table() {
            let mut wait = RETRY.0;
            while let Some(line) = self.connect(&mut wait) {
                self.connection_made(&table);
                self.drive(line, &table);
            }
        }
        lock(&self.queue).carriers -= 1; // it was counted before it began
        self.news.notify_all();
    }

    /// Tries until there is a connection; none when the client ends.
    fn connect(&self, wait: &mut Duration) -> Option<Line> {
        loop {
            if lock(&self.queue).closing {
                return None;
            }
            let line = Line::open(&self.target, self.connect_timeout);
            let mut queue = lock(&self.queue);
            queue.tried += 1;
            match line {
                Ok(line) => {
                    self.connected.fetch_add(1, Ordering::Relaxed);
                    self.news.notify_all();
                    *wait = RETRY.0;
                    return Some(line);
                }
                Err(why) => {
                    *lock(&self.trouble) = Some(why);
                    self.news.notify_all();
                    let end = Instant::now() + *wait;
                    while !queue.closing {
                        let left = end.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            break;
                        }
                        queue = self.work.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
                    }
                    *wait = (*wait * 2).min(RETRY.1);
                }
            }
        }
    }

    /// A server has greeted us: stores whose breakers are open try it at once,
    /// and not when that would be due.
    fn connection_made(&self, table: &Table<'_>) {
        self.metrics.count(StoreEvent::Connected);
        for store in 0..self.stores.len() {
            let mut calls = Collected::new(true);
            self.with_store(store, table, &mut calls, Store::hurry);
            self.send(store, calls.take(), table);
        }
    }

    /// Does what is in the queue, as long as the connection is of use.
    fn drive(&self, mut line: Line, table: &Table<'_>) {
        let mut is_well = true;
        while is_well {
            let (jobs, closing) = self.next_jobs();
            if jobs.is_empty() {
                if closing {
                    break;
                }
                is_well = line.is_well(self.connect_timeout);
                if !is_well {
                    *lock(&self.trouble) = Some("disconnected");
                }
            } else {
                is_well = self.run(&mut line, jobs, table);
            }
        }
        let mut queue = lock(&self.queue);
        let is_last = self.connected.fetch_sub(1, Ordering::Relaxed) == 1;
        let orphans = if is_last { core::mem::take(&mut queue.jobs) } else { VecDeque::new() };
        drop(queue);
        for job in orphans {
            self.fail(job, table, Failure::Store);
        }
    }

    /// What is to be done; nothing after a while without.
    fn next_jobs(&self) -> (Vec<Job>, bool) {
        let end = Instant::now() + IDLE;
        let mut queue = lock(&self.queue);
        while queue.jobs.is_empty() && !queue.closing {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            queue = self.work.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut jobs = Vec::new();
        let mut calls = 0;
        while let Some(job) = queue.jobs.pop_front_if(|job| calls == 0 || calls + job.calls.len() <= BATCH) {
            calls += job.calls.len();
            jobs.push(job);
        }
        (jobs, queue.closing)
    }

    /// Sends jobs and tells what became of them. False if the connection is
    /// of no use any more.
    fn run(&self, line: &mut Line, jobs: Vec<Job>, table: &Table<'_>) -> bool {
        let now = self.now();
        let mut jobs = jobs;
        for job in &mut jobs {
            // Whoever waited has told that it is over; what it owed is sent all the same.
            job.calls.retain(|call| !call.is_waited_for || call.deadline > now);
        }
        let is_late = |job: &Job| job.calls.iter().all(|call| !call.is_waited_for && call.deadline <= now);
        let (late, jobs): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(is_late);
        late.into_iter().for_each(|job| self.fail(job, table, Failure::Timeout));
        let calls: Vec<&Kept> = jobs.iter().flat_map(|job| &job.calls).collect();
        let Some(deadline) = calls.iter().map(|call| call.deadline).max() else { return true };
        // A little longer than whoever waits: a reply that is only just late saves the connection.
        let timeout = Duration::from_nanos(deadline.saturating_sub(now)) + GRACE;
        let answers = line.run(&calls, timeout);
        if let Some(trouble) = answers.broken.or(answers.trouble) {
            *lock(&self.trouble) = Some(trouble);
        }
        let mut outcomes = answers.outcomes.into_iter();
        for job in &jobs {
            let mut told = Vec::new();
            for call in &job.calls {
                let outcome = outcomes.next().unwrap_or(Err(Failure::Store));
                if !(call.is_waited_for && outcome == Err(Failure::Timeout)) {
                    told.push((call.ticket, outcome));
                }
            }
            let more = self.tell(job.store, table, &told);
            if let Some(more) = more {
                self.put(more, table);
            }
        }
        if answers.is_stale
            && answers.broken.is_none()
            && let Ok(fresh) = Line::open(&self.target, self.connect_timeout)
        {
            *line = fresh;
            self.connection_made(table);
        }
        answers.broken.is_none()
    }

    /// The keeper's life.
    pub(super) fn keep(&self) {
        let Some(table) = self.table.table() else { return };
        while !self.ends.load(Ordering::Relaxed) {
            self.next.store(NEVER, Ordering::Relaxed);
            let mut next = NEVER;
            for store in 0..self.stores.len() {
                next = next.min(self.tick(store, &table));
            }
            let before = self.next.fetch_min(next, Ordering::Relaxed);
            let mut guard = lock(&self.keeper);
            let mut at = next.min(before);
            while !self.ends.load(Ordering::Relaxed) {
                at = at.min(self.next.load(Ordering::Relaxed));
                let now = self.now();
                if at <= now {
                    break;
                }
                let left = Duration::from_nanos(at - now).min(Duration::from_secs(60));
                guard = self.keeper_wake.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Tells one store the time; when it wants to know it next.
    fn tick(&self, place: usize, table: &Table<'_>) -> Nanos {
        let mut calls = Collected::new(self.connected() > 0);
        let step = self.step(place, table, &mut calls, |store, host| {
            if store.poll_timeout().is_some_and(|due| due <= host.now) {
                store.handle_timeout(host);
            }
            host.now.saturating_add(1_000_000) // a store that is not content yet must not keep us awake
        });
        self.send(place, calls.take(), table);
        step.map_or(NEVER, |(soonest, due)| due.map_or(NEVER, |due| due.max(soonest)))
    }
}
