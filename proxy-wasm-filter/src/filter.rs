//! One plugin: its rules, and how its requests are asked.

use tollgate_core::http::LIST_SIZE;
use tollgate_core::key::Seed;
use tollgate_core::metrics::StoreMetrics;
use tollgate_core::pages::{self, Pages, Workers};
use tollgate_core::policy::plugin::Counting;
use tollgate_core::policy::{Answer, KeyRoom, Rules, Selection};
use tollgate_core::redis::engine;
use tollgate_core::redis::store::{Pending, Progress};
use tollgate_core::time::Nanos;

use crate::abi::{self, Action, Level};
use crate::answer::{answered, deny_missing};
use crate::clock::Clock;
use crate::look::{Headers, Wanted};
use crate::pages::{HostPages, seed};
use crate::redis::{Redis, Told};
use crate::request::Request;
use crate::stats::Stats;

/// Leases are looked through so often, in milliseconds.
const TICK: u32 = 100;
/// So long a plugin that ends waits for answers at most: 2 s.
const PATIENCE: Nanos = 2_000_000_000;

/// A plugin's rules and counts, as one worker has them.
#[derive(Debug)]
pub(crate) struct Filter {
    context: u32,
    /// When it began to end; none while it goes on.
    ended_at: Option<Nanos>,
    rules: Rules,
    wanted: Wanted,
    counts: Counts,
    /// Where policies count that are not in Redis; and, of those that are, the
    /// penalties, and what is admitted while it is away.
    pages: Pages<HostPages>,
    metrics: Box<StoreMetrics>,
    stats: Stats,
    clock: Clock,
    /// Room for fields and bodies.
    text: Vec<u8>,
    /// Room for what limits are counted under.
    room: Box<KeyRoom>,
    /// Room for what they say.
    answer: Box<Answer>,
}

/// Where is counted; one of them at least, where there are policies.
#[derive(Debug)]
struct Counts {
    workers: Option<Box<Workers>>,
    redis: Option<Box<Redis>>,
    /// Which policies count in pages.
    is_local: Box<[bool]>,
}

/// What became of a request.
enum Asked {
    Answered,
    /// The store is asked; what the pages said, if they were.
    Waiting(Pending, Option<Box<Answer>>),
}

impl Counts {
    /// Pages first: what they deny costs Redis nothing. `answer` is room for
    /// what they say.
    fn ask(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        context: u32,
        here: &Step<'_>,
        answer: &mut Answer,
    ) -> Asked {
        match (&mut self.workers, &mut self.redis) {
            (Some(_), Some(_)) => return self.ask_both(rules, selection, context, here, answer),
            (Some(workers), None) => workers.check(rules, selection, &here.pages(), answer),
            (None, Some(redis)) => match redis.check(rules, selection, context, &here.redis()) {
                Progress::Answered(told) => *answer = told,
                Progress::Waiting(pending) => return Asked::Waiting(pending, None),
            },
            (None, None) => *answer = Answer::join(rules, selection, |_| true, None, None),
        }
        Asked::Answered
    }

    /// Apart: two selections more are room that most requests do not need.
    #[inline(never)]
    fn ask_both(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        context: u32,
        here: &Step<'_>,
        answer: &mut Answer,
    ) -> Asked {
        let is_local = |policy: usize| self.is_local.get(policy) == Some(&true);
        let (first, second) = (selection.part(is_local), selection.part(|policy| !is_local(policy)));
        let mut ours = None;
        if let Some(workers) = self.workers.as_mut().filter(|_| !first.is_empty()) {
            workers.check(rules, &first, &here.pages(), ours.get_or_insert_default());
        }
        let is_denied = ours.as_ref().is_some_and(|ours| !ours.allowed);
        let Some(redis) = self.redis.as_mut().filter(|_| !second.is_empty() && !is_denied) else {
            *answer = Answer::join(rules, selection, is_local, ours.as_ref(), None);
            return Asked::Answered;
        };
        match redis.check(rules, &second, context, &here.redis()) {
            Progress::Waiting(pending) => Asked::Waiting(pending, ours.map(Box::new)),
            Progress::Answered(theirs) => {
                *answer = self.join(rules, selection, ours.as_ref(), &theirs, here.now, here);
                Asked::Answered
            }
        }
    }

    /// Both have answered: what the pages charged goes back when Redis denied.
    fn join(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        ours: Option<&Answer>,
        theirs: &Answer,
        asked_at: Nanos,
        here: &Step<'_>,
    ) -> Answer {
        if let Some(ours) = ours.filter(|_| !theirs.allowed) {
            self.give_back(rules, selection, ours, asked_at, here);
        }
        let is_local = |policy: usize| self.is_local.get(policy) == Some(&true);
        Answer::join(rules, selection, is_local, ours, Some(theirs))
    }

    fn give_back(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        ours: &Answer,
        asked_at: Nanos,
        here: &Step<'_>,
    ) {
        let Some(workers) = &mut self.workers else { return };
        let first = selection.part(|policy| self.is_local.get(policy) == Some(&true));
        workers.give_back(rules, &first, ours, asked_at, &here.pages());
    }
}

impl Filter {
    pub(crate) fn new(context: u32, rules: Rules, counting: Counting) -> Result<Filter, String> {
        let refused =
            |status: abi::Status| format!("the host's shared data or random source: status {}", status.0);
        let Counting { embedded, redis, is_local } = counting;
        let random = abi::random().map_err(refused)?;
        let [own, _] = random;
        let (shared, is_shared) = match seed(&embedded.zone) {
            Ok(shared) => (shared, true),
            Err(status) if is_local.contains(&true) => return Err(refused(status)),
            Err(status) => {
                abi::log(
                    Level::Warn,
                    &format!(
                        "tollgate: the host's shared data: status {}; each worker counts penalties, and what is \
                         admitted without Redis, by itself",
                        status.0
                    ),
                );
                (Seed(random), false)
            }
        };
        let pages = Pages::new(HostPages::new(&embedded, is_shared), embedded.pages, shared);
        let workers = || {
            let workers = Workers::new(embedded.remembered, embedded.holds, own);
            Ok::<_, String>(Box::new(workers.map_err(|error| format!("embedded: {error}"))?))
        };
        let workers = is_local.contains(&true).then(workers).transpose()?;
        let redis =
            redis.as_ref().map(|redis| Redis::new(redis, own, is_shared).map(Box::new)).transpose()?;
        let counts = Counts { workers, redis, is_local };
        let (wanted, stats, text) = (Wanted::new(&rules), Stats::new(&rules), vec![0; LIST_SIZE]);
        Ok(Filter {
            context,
            ended_at: None,
            wanted,
            counts,
            pages,
            metrics: Box::default(),
            stats,
            clock: Clock::new(),
            text,
            room: Box::default(),
            answer: Box::default(),
            rules,
        })
    }

    /// When it wants to be called first, in milliseconds, and then as often
    /// unless it says otherwise.
    pub(crate) fn tick(&self) -> u32 {
        if self.counts.redis.is_some() { 1 } else { TICK } // at once, to connect
    }

    pub(crate) fn tick_passed(&mut self) {
        self.clock.follow();
        self.step(|counts, here| {
            if let Some(workers) = &mut counts.workers {
                workers.handle_timeout(&here.pages());
            }
            if let Some(redis) = &mut counts.redis {
                redis.tick_passed(&here.redis());
            }
        });
        self.tell();
    }

    fn tell(&mut self) {
        let (counts, now) = (self.metrics.snapshot(), self.clock.latest());
        if let Some(redis) = &mut self.counts.redis {
            redis.tell(&self.rules, &counts, now);
        }
        self.stats.tell(&counts, [self.pages.evicted(), self.pages.conflicts()], now);
    }

    /// A message came on the stream.
    pub(crate) fn message(&mut self, token: u32, bytes: Option<&[u8]>) {
        self.step(|counts, here| {
            if let Some(redis) = &mut counts.redis {
                redis.message(token, bytes, &here.redis());
            }
        });
    }

    /// The stream is closed.
    pub(crate) fn closed(&mut self, token: u32) {
        self.step(|counts, here| {
            if let Some(redis) = &mut counts.redis {
                redis.closed(token, &here.redis());
            }
        });
    }

    /// An HTTP call was answered, or failed.
    pub(crate) fn posted(&mut self, token: u32, body: Option<Vec<u8>>) {
        self.step(|counts, here| {
            if let Some(redis) = &mut counts.redis {
                redis.posted(token, body, &here.redis());
            }
        });
    }

    /// Sends what is to be sent. The plugin's context must be set.
    pub(crate) fn flush(&mut self) {
        if let Some(redis) = &mut self.counts.redis
            && redis.is_pending()
        {
            self.step(|counts, here| {
                if let Some(redis) = &mut counts.redis {
                    redis.process(&here.redis());
                }
            });
        }
    }

    /// The next request that waited.
    pub(crate) fn poll(&mut self) -> Option<Told> {
        let redis = self.counts.redis.as_mut()?;
        redis.poll(&Step { pages: &self.pages, metrics: &self.metrics, now: self.clock.latest() }.redis())
    }

    /// A request that waited is answered.
    pub(crate) fn told(&mut self, told: Told, request: &mut Request) -> Action {
        request.pending = None;
        self.stats.waited(self.clock.latest().saturating_sub(request.asked_at));
        if let Some(ours) = request.ours.take() {
            return self.told_both(told, &ours, request);
        }
        let Some(redis) = &self.counts.redis else {
            return Action::Continue; // it was asked
        };
        let mut selection = Selection::default();
        let Some(answer) = redis.told(told, &mut selection) else {
            return Action::Continue; // it was told just now
        };
        self.stats.answered(&self.rules, &self.pages, &selection, answer);
        let is_local = &self.counts.is_local;
        answered(&self.rules, &selection, answer, is_local, &mut request.reply, &mut self.text)
    }

    /// One that the pages admitted before. What these were charged may have to
    /// go back, so it is looked at again.
    #[inline(never)]
    fn told_both(&mut self, told: Told, ours: &Answer, request: &mut Request) -> Action {
        let mut headers = Headers::default();
        let attributes = self.wanted.attributes(&request.look, &mut headers);
        match self.rules.select(&attributes, &mut self.room) {
            Ok(selection) => {
                let here = Step { pages: &self.pages, metrics: &self.metrics, now: self.clock.latest() };
                let Some(theirs) = self.counts.redis.as_ref().and_then(|redis| redis.answer(told)).copied()
                else {
                    return Action::Continue; // it was told just now
                };
                let asked_at = request.asked_at;
                let answer = self.counts.join(&self.rules, &selection, Some(ours), &theirs, asked_at, &here);
                self.stats.answered(&self.rules, &self.pages, &selection, &answer);
                let is_local = &self.counts.is_local;
                answered(&self.rules, &selection, &answer, is_local, &mut request.reply, &mut self.text)
            }
            Err(_) => Action::Continue, // it told who it comes from before
        }
    }

    /// An [open](Request::is_open) request is over, answered or not: its units
    /// in flight go back.
    pub(crate) fn over(&mut self, context: u32, request: &Request) {
        if let (Some(_), Some(ours)) = (request.pending, &request.ours) {
            self.forget(request, ours);
        }
        self.step(|counts, here| {
            if let (Some(redis), Some(pending)) = (&mut counts.redis, request.pending) {
                redis.cancel(pending, &here.redis());
            }
            for (is_local, hold) in &request.reply.holds {
                match (is_local, &mut counts.workers, &mut counts.redis) {
                    (true, Some(workers), _) => workers.release(hold, &here.pages()),
                    (false, _, Some(redis)) => redis.release(hold, &here.redis()),
                    _ => {}
                }
            }
        });
        self.flush_from(context);
    }

    /// A request that is gone was admitted by the pages, and waited for Redis.
    fn forget(&mut self, request: &Request, ours: &Answer) {
        let mut headers = Headers::default();
        let attributes = self.wanted.attributes(&request.look, &mut headers);
        let selection = self.rules.select(&attributes, &mut self.room);
        let Ok(selection) = selection else { return };
        let here = Step { pages: &self.pages, metrics: &self.metrics, now: self.clock.latest() };
        self.counts.give_back(&self.rules, &selection, ours, request.asked_at, &here);
    }

    /// The plugin ends: what it fetched ahead goes back, and what is under way
    /// may bring more. When that is, is told.
    pub(crate) fn end(&mut self) -> Nanos {
        self.step(|counts, here| {
            if let Some(workers) = &mut counts.workers {
                workers.drain(&here.pages());
            }
            if let Some(redis) = &mut counts.redis {
                redis.drain(&here.redis());
            }
        });
        self.flush();
        self.ended_at = Some(self.clock.latest());
        self.tell();
        self.stats.end();
        self.clock.latest()
    }

    /// It ends, and waits for nothing more.
    pub(crate) fn has_ended(&self) -> bool {
        let is_settled = || self.counts.redis.as_ref().is_none_or(|redis| redis.is_settled());
        self.ended_at.is_some() && (is_settled() || self.is_over(PATIENCE, self.clock.latest()))
    }

    /// It ends, and was not called since.
    pub(crate) fn is_lost(&self, now: Nanos) -> bool {
        self.is_over(2 * PATIENCE, now)
    }

    fn is_over(&self, after: Nanos, now: Nanos) -> bool {
        self.ended_at.is_some_and(|at| now.saturating_sub(at) >= after)
    }

    /// As [`flush`](Self::flush), from the context of a request.
    fn flush_from(&mut self, context: u32) {
        let Some(redis) = &mut self.counts.redis else { return };
        if redis.is_urgent() && abi::set_context(self.context).is_ok() {
            self.flush();
            let _ = abi::set_context(context); // a request that is over is left alone
        }
    }

    fn step(&mut self, step: impl FnOnce(&mut Counts, &Step<'_>)) {
        let now = self.now();
        step(&mut self.counts, &Step { pages: &self.pages, metrics: &self.metrics, now });
    }

    fn now(&mut self) -> Nanos {
        self.clock.now()
    }

    /// Asks all limits of a request, which has so many header fields; answers it
    /// when one denies.
    pub(crate) fn request(&mut self, context: u32, count: usize, request: &mut Request) -> Action {
        let now = self.now();
        self.wanted.look(count, &mut request.look);
        let mut headers = Headers::default();
        let attributes = self.wanted.attributes(&request.look, &mut headers);
        let mut selection = Selection::default();
        let action = match self.rules.select_into(&attributes, &mut self.room, &mut selection) {
            Err(missing) => {
                self.stats.unidentified();
                deny_missing(missing.header, &mut request.reply, &mut self.text)
            }
            Ok(()) if selection.is_empty() => return Action::Continue,
            Ok(()) => {
                let here = Step { pages: &self.pages, metrics: &self.metrics, now };
                let asked = self.counts.ask(&self.rules, &selection, context, &here, &mut self.answer);
                if let Asked::Waiting(pending, ours) = asked {
                    (request.pending, request.asked_at) = (Some(pending), now);
                    request.ours = ours;
                    self.flush_from(context);
                    return Action::Pause;
                }
                self.stats.answered(&self.rules, &self.pages, &selection, &self.answer);
                answered(
                    &self.rules,
                    &selection,
                    &self.answer,
                    &self.counts.is_local,
                    &mut request.reply,
                    &mut self.text,
                )
            }
        };
        self.flush_from(context); // a pot that is low asks for more
        action
    }
}

/// What the counts are asked with.
struct Step<'s> {
    pages: &'s Pages<HostPages>,
    metrics: &'s StoreMetrics,
    now: Nanos,
}

impl Step<'_> {
    fn pages(&self) -> pages::Here<'_, HostPages> {
        pages::Here { pages: self.pages, metrics: self.metrics, now: self.now }
    }

    fn redis(&self) -> engine::Here<'_, '_> {
        engine::Here { table: self.pages, metrics: self.metrics, now: self.now }
    }
}
