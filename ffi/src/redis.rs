//! Limits that many machines share through Redis, without a socket of its own.

use core::ffi::c_char;
use core::fmt;

use tollgate_core::metrics::StoreMetrics;
use tollgate_core::policy::{Answer, DEFAULT_TIMEOUT, KeyRoom};
use tollgate_core::redis::cluster::RouterConfig;
use tollgate_core::redis::engine::{Engine, Here, Source};
use tollgate_core::redis::link::LinkConfig;
use tollgate_core::redis::share::Share;
use tollgate_core::redis::store::{Pending, Progress, StoreConfig, refusal};
use tollgate_core::table::Hold;

use crate::limit::sized;
use crate::memory::{self, Marked, input, inputs, output, outputs};
use crate::rules::{
    TOLLGATE_MAX_HEADERS, answered, attributes_fit, attributes_of, bytes, nothing, number, rules_of, sum_up,
    tollgate_answer, tollgate_attributes, tollgate_bytes, tollgate_layer, tollgate_rules, unidentified,
};
use crate::status::{
    TOLLGATE_ERR_ARGUMENT, TOLLGATE_ERR_RANGE, TOLLGATE_ERR_UNSUPPORTED, run, tollgate_status,
};
use crate::store::{store_metrics_of, tollgate_store_metrics};
use crate::table::{table_of, tollgate_hold, tollgate_table};
use crate::text::Message;

/// The addresses are nodes of a Redis Cluster.
pub const TOLLGATE_REDIS_CLUSTER: u32 = 1;
/// It is not told which of the instances this one is.
pub const TOLLGATE_NO_INSTANCE: u64 = u64::MAX;

/// The circuit breaker is closed: the store is asked.
pub const TOLLGATE_BREAKER_CLOSED: u32 = 0;
/// It is open: the store is not asked.
pub const TOLLGATE_BREAKER_OPEN: u32 = 1;
/// It is on probe: one small write is under way.
pub const TOLLGATE_BREAKER_HALF_OPEN: u32 = 2;

/// The limits of policies with `"store": "redis"`, as one thread asks them. It
/// owns no socket, reads no clock and starts nothing. After any call that may
/// give it something to do, the host
///
/// 1. does what tollgate_redis_next_action says, until that is
///    TOLLGATE_ACTION_NONE;
/// 2. writes what tollgate_redis_transmit has, for each link that is open;
/// 3. takes the answers of tollgate_redis_answer, until there is none;
/// 4. sets one timer, to tollgate_redis_timeout, at which it calls
///    tollgate_redis_process.
///
/// Bytes that come go where tollgate_redis_receive says; then
/// tollgate_redis_process. It is made of memory of the library's own, given
/// back with tollgate_redis_free, and used by one thread at a time.
pub struct tollgate_redis(#[expect(dead_code, reason = "read through `memory::owned`")] Marked<Shared>);

/// How Redis is reached, and shared. Zeros stand for the defaults, but for
/// `struct_size`, the addresses and `instance`. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_redis_config {
    /// sizeof(tollgate_redis_config).
    pub struct_size: u32,
    /// 0, or TOLLGATE_REDIS_CLUSTER.
    pub flags: u32,
    /// Where it is: "host:port" or "unix:/path", of up to 255 bytes. Of
    /// several one is used at a time, the next when it cannot be reached or is
    /// a replica; of a cluster any of its nodes.
    pub addresses: *const tollgate_bytes,
    /// How many; at least 1.
    pub address_count: usize,
    /// The user of Redis's access lists; NULL for the default user.
    pub username: tollgate_bytes,
    /// The password; NULL for none.
    pub password: tollgate_bytes,
    /// The part of every limit that this region has: "60/100", or "60-100/100"
    /// for that from 60 to 100; NULL for the whole.
    pub region: tollgate_bytes,
    /// The database, by number; a cluster has 0 only.
    pub database: u32,
    /// Threads or processes that each have a tollgate_redis and share a table;
    /// 1 to 1,024. Default 1.
    pub workers: u32,
    /// Machines that share the limits: each falls back to its piece while the
    /// store is away; 1 to 10,000. Default 1.
    pub instances: u64,
    /// Which of them this one is, from 0, or TOLLGATE_NO_INSTANCE: the
    /// remainders of divisions are then given to nobody.
    pub instance: u64,
    /// How long a request waits for policies that name no timeout, in
    /// nanoseconds; 100,000 to 10,000,000,000. Default 5 ms.
    pub timeout_ns: u64,
    /// Requests that may wait at a time, and calls that nobody waits for; more
    /// are decided without the store. 1 to 65,536. Default 512.
    pub waiting: u32,
    /// Keys whose tokens and denials are remembered; 8 to 16,777,216. Default
    /// 4,096.
    pub keys: u32,
    /// Requests in flight under concurrency limits that can be released before
    /// they expire; up to 16,777,216. Default 1,024.
    pub holds: u32,
    /// 0.
    pub reserved: u32,
    /// Different for each tollgate_redis anywhere: from the system's random
    /// source.
    pub seed: u64,
}

const MARK: u64 = u64::from_be_bytes(*b"tg redis");

/// An engine, and who waits for it.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    waiters: Box<[Waiter]>,
    free: usize,
    /// What `tollgate_redis_next_action` told last.
    pub(crate) address: Vec<u8>,
    pub(crate) words: Vec<u8>,
}

/// One request that may wait.
#[derive(Clone, Copy)]
struct Waiter {
    /// Tells it from those that had this place before.
    generation: u32,
    /// Is it in use? If not, `next` is the next free one.
    used: bool,
    next: usize,
    user: u64,
    rules: *const tollgate_rules,
    pending: Pending,
}

/// Makes an engine; nothing is connected yet. `message`: NULL, or room for
/// `message_size` bytes that on an error receives what is wrong, as a C
/// string. Allocates all memory that it will need, but for what a cluster's
/// nodes take when they are first met. Errors: TOLLGATE_ERR_ARGUMENT,
/// TOLLGATE_ERR_RANGE.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_create(
    config: *const tollgate_redis_config,
    redis: *mut *mut tollgate_redis,
    message: *mut c_char,
    message_size: usize,
) -> tollgate_status {
    run(|| {
        let size = if message.is_null() { 0 } else { message_size };
        // SAFETY: the caller's contract.
        let (given, room, out) =
            unsafe { (input(config)?, outputs(message.cast::<u8>(), size)?, output(redis)?) };
        let refuse = |why: &dyn fmt::Display| {
            Message::say(&room, format_args!("{why}"));
            TOLLGATE_ERR_RANGE
        };
        // SAFETY: the caller's contract.
        let store = unsafe { store_config(given) }?.map_err(|why| refuse(&why))?;
        // SAFETY: the caller's contract.
        let engine = unsafe { connect(given, &store, &refuse)? };
        let waiters = (1..=store.waiting).map(Waiter::free).collect();
        let shared = Shared { engine, waiters, free: 0, address: Vec::new(), words: Vec::new() };
        out.write(memory::give(tollgate_redis(Marked::new(MARK, shared))));
        Ok(())
    })
}

/// Gives an engine back; who waits is not told. NULL is legal, and does
/// nothing.
///
/// # Safety
/// `redis` is NULL or comes from tollgate_redis_create, and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_free(redis: *mut tollgate_redis) {
    // SAFETY: the caller's contract.
    if unsafe { redis_of(redis) }.is_ok() {
        // SAFETY: as above, and the mark is there: it was made by `give`.
        unsafe { memory::take(redis) };
    }
}

/// Can Redis count every limit that these rules have it count? Ask when rules
/// are loaded. `message` as in tollgate_redis_create. Errors:
/// TOLLGATE_ERR_UNSUPPORTED; of the configuration as there.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_accepts(
    config: *const tollgate_redis_config,
    rules: *const tollgate_rules,
    message: *mut c_char,
    message_size: usize,
) -> tollgate_status {
    run(|| {
        let size = if message.is_null() { 0 } else { message_size };
        // SAFETY: the caller's contract.
        let (given, rules, room) =
            unsafe { (input(config)?, rules_of(rules)?, outputs(message.cast::<u8>(), size)?) };
        // SAFETY: the caller's contract.
        let store = unsafe { store_config(given) }?.map_err(|why| {
            Message::say(&room, format_args!("{why}"));
            TOLLGATE_ERR_RANGE
        })?;
        match refusal(rules, &store) {
            None => Ok(()),
            Some(refusal) => {
                Message::say(&room, format_args!("{refusal}"));
                Err(TOLLGATE_ERR_UNSUPPORTED)
            }
        }
    })
}

/// Asks all that the rules ask of one request, as tollgate_rules_check does:
/// limits of the store's policies are paid from what was fetched ahead, denied
/// by a denial that still holds, asked, or decided without the store when that
/// is away; all others are counted in `table`.
///
/// `*pending` is 0 when the answer is there. Else nothing is written to
/// `answer`; it comes by tollgate_redis_answer, together with `user`, and
/// `*pending` is its number: until then it may be cancelled with it, and
/// `rules` stay. Of the attributes nothing is kept. Allocates nothing. Errors:
/// as tollgate_rules_check.
///
/// # Safety
/// As tollgate_rules_check; `metrics` leads to memory as
/// tollgate_store_metrics_layout says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_check(
    redis: *mut tollgate_redis,
    rules: *const tollgate_rules,
    table: *const tollgate_table,
    metrics: *const tollgate_store_metrics,
    attributes: *const tollgate_attributes,
    now_ns: u64,
    user: u64,
    answer: *mut tollgate_answer,
    pending: *mut u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (shared, compiled, here) =
            unsafe { (redis_of(redis)?, rules_of(rules)?, here_of(table, metrics, now_ns)?) };
        // SAFETY: the caller's contract.
        let (given, out, number) = unsafe { (input(attributes)?, output(answer)?, output(pending)?) };
        attributes_fit(given, compiled)?;
        let mut values = [None; TOLLGATE_MAX_HEADERS];
        // SAFETY: the caller's contract.
        let attributes = unsafe { attributes_of(given, &mut values)? };
        let mut room = KeyRoom::new();
        let selection = match compiled.select(&attributes, &mut room) {
            Ok(selection) => selection,
            Err(missing) => {
                out.write(unidentified(&missing));
                number.write(0);
                return Ok(());
            }
        };
        match shared.engine.check(compiled, &selection, shared.free as u64, &here) {
            Progress::Answered(said) => {
                let mut written = answered(compiled, &selection, &said);
                written.source = Source::at_once(compiled, &selection, &said) as u8;
                out.write(written);
                number.write(0);
            }
            Progress::Waiting(pending) => number.write(shared.wait(pending, user, rules)),
        }
        Ok(())
    })
}

/// The next request that waited and is answered: `*pending` is the number that
/// tollgate_redis_check gave, `*user` what came with it. 0 when there is none;
/// then nothing else is written. Allocates nothing.
///
/// # Safety
/// As tollgate_redis_check, whose rules are still there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_answer(
    redis: *mut tollgate_redis,
    table: *const tollgate_table,
    metrics: *const tollgate_store_metrics,
    now_ns: u64,
    pending: *mut u64,
    user: *mut u64,
    answer: *mut tollgate_answer,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (shared, here) = unsafe { (redis_of(redis)?, here_of(table, metrics, now_ns)?) };
        // SAFETY: the caller's contract.
        let (number, user, out) = unsafe { (output(pending)?, output(user)?, output(answer)?) };
        let Some((place, pending)) = shared.engine.poll_answer(&here) else {
            number.write(0);
            return Ok(());
        };
        let said = shared.engine.answer(pending).ok_or(TOLLGATE_ERR_ARGUMENT)?; // it was told just now
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        let waiter = shared.waiters.get(place).copied().ok_or(TOLLGATE_ERR_ARGUMENT)?;
        // SAFETY: the caller's contract.
        let rules = unsafe { rules_of(waiter.rules)? };
        let mut written = nothing();
        shared.write_layers(pending, said, &mut written);
        let tightest = said.tightest.and_then(|at| shared.engine.layer_of(pending, at));
        sum_up(&mut written, rules, said, tightest.map(|layer| (layer.policy, layer.limit)));
        written.source = Source::waited(said) as u8;
        number.write(shared.number(place));
        user.write(waiter.user);
        out.write(written);
        shared.let_go(place);
        Ok(())
    })
}

/// The client of a request that waits is gone: its answer is not told, and
/// what it was charged goes back. A number that is not waiting any more is
/// legal, and does nothing.
///
/// # Safety
/// As tollgate_redis_answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_cancel(
    redis: *mut tollgate_redis,
    table: *const tollgate_table,
    metrics: *const tollgate_store_metrics,
    now_ns: u64,
    pending: u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (shared, here) = unsafe { (redis_of(redis)?, here_of(table, metrics, now_ns)?) };
        let place = usize::try_from(pending & 0xFFFF_FFFF).unwrap_or(usize::MAX);
        if pending != 0
            && shared.number(place) == pending
            && let Some(waiter) = shared.waiters.get(place).copied().filter(|waiter| waiter.used)
        {
            shared.engine.cancel(waiter.pending, &here);
            shared.let_go(place);
        }
        Ok(())
    })
}

/// Gives back units in flight of an answer, the store's or the table's, when
/// the request is over: what tollgate_table_release is to an answer of
/// tollgate_rules_check. A hold that was given back, or that has expired, is
/// legal, and does nothing.
///
/// # Safety
/// As tollgate_redis_check.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_release(
    redis: *mut tollgate_redis,
    table: *const tollgate_table,
    metrics: *const tollgate_store_metrics,
    now_ns: u64,
    hold: *const tollgate_hold,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (shared, here, hold) =
            unsafe { (redis_of(redis)?, here_of(table, metrics, now_ns)?, input(hold)?) };
        shared.engine.release(&Hold::from(hold), &here);
        Ok(())
    })
}

/// Reads what came, and gives up what is late: after bytes came, when a
/// connection is there or gone, and at tollgate_redis_timeout.
///
/// # Safety
/// As tollgate_redis_check.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_process(
    redis: *mut tollgate_redis,
    table: *const tollgate_table,
    metrics: *const tollgate_store_metrics,
    now_ns: u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (shared, here) = unsafe { (redis_of(redis)?, here_of(table, metrics, now_ns)?) };
        shared.engine.process(&here);
        Ok(())
    })
}

/// Gives back to the store what was fetched ahead and not spent, and cancels
/// all that wait: the host ends. It moves bytes as before until `in_flight` of
/// tollgate_redis_read_state is 0, for as long as it can wait, and closes then:
/// what was asked for before may bring units yet, which go back when they come.
/// Nothing is fetched ahead any more.
///
/// # Safety
/// As tollgate_redis_check.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_drain(
    redis: *mut tollgate_redis,
    table: *const tollgate_table,
    metrics: *const tollgate_store_metrics,
    now_ns: u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (shared, here) = unsafe { (redis_of(redis)?, here_of(table, metrics, now_ns)?) };
        for place in 0..shared.waiters.len() {
            if let Some(waiter) = shared.waiters.get(place).copied().filter(|waiter| waiter.used) {
                shared.engine.cancel(waiter.pending, &here);
                shared.let_go(place);
            }
        }
        while shared.engine.poll_answer(&here).is_some() {} // all are cancelled: nobody is told
        shared.engine.drain(&here);
        Ok(())
    })
}

impl Waiter {
    fn free(next: usize) -> Waiter {
        Waiter { generation: 1, used: false, next, user: 0, rules: core::ptr::null(), pending: Pending(0) }
    }
}

impl Shared {
    /// Keeps what a request that waits came with, in the free place that the
    /// engine was told as its number: as many may wait here as there.
    fn wait(&mut self, pending: Pending, user: u64, rules: *const tollgate_rules) -> u64 {
        let place = self.free;
        if let Some(waiter) = self.waiters.get_mut(place) {
            self.free = waiter.next;
            (waiter.used, waiter.user, waiter.rules, waiter.pending) = (true, user, rules, pending);
        }
        self.number(place)
    }

    /// Never 0: a generation is not.
    fn number(&self, place: usize) -> u64 {
        let generation = self.waiters.get(place).map_or(0, |waiter| waiter.generation);
        u64::from(generation) << 32 | place as u64 // a place is below 2^16
    }

    fn let_go(&mut self, place: usize) {
        if let Some(waiter) = self.waiters.get_mut(place) {
            waiter.generation = waiter.generation.wrapping_add(1).max(1);
            waiter.used = false;
            waiter.next = self.free;
            self.free = place;
        }
    }

    fn write_layers(&self, pending: Pending, said: &Answer, written: &mut tollgate_answer) {
        let decided = said.decisions().iter().zip(said.outcomes()).zip(said.holds());
        for ((at, ((decision, outcome), hold)), room) in decided.enumerate().zip(&mut written.layers) {
            let Some(layer) = self.engine.layer_of(pending, at) else { continue };
            *room = tollgate_layer {
                policy: layer.policy as u32, // as in `answered`
                limit: layer.index as u32,
                outcome: number(*outcome),
                overridden: u32::from(layer.overridden),
                decision: (*decision).into(),
                hold: (*hold).into(),
            };
        }
    }
}

/// What of a configuration is out of range, for people.
enum Wrong {
    Flags(u32),
    Timeout(u64),
    Database(u32),
    Region,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Flags(flags) => write!(f, "flags: {flags} are unknown"),
            Wrong::Timeout(timeout) => {
                write!(f, "timeout: {timeout} ns is outside 100 microseconds to 10 seconds")
            }
            Wrong::Database(database) => {
                write!(f, "database: {database} is none of a cluster, which has 0 only")
            }
            Wrong::Region => f.write_str(
                "region: a part of the whole, such as 60/100 or 60-100/100, of at most 1000000000",
            ),
        }
    }
}

/// # Safety
/// The pointers in `given` lead to what their types say.
unsafe fn store_config(given: &tollgate_redis_config) -> Result<Result<StoreConfig, Wrong>, tollgate_status> {
    sized::<tollgate_redis_config>(given.struct_size)?;
    if given.reserved != 0 {
        return Err(TOLLGATE_ERR_ARGUMENT);
    }
    // SAFETY: the caller's contract.
    let region = unsafe { bytes(&given.region)? };
    let standard = StoreConfig::default();
    let or = |number: u32, standard: usize| if number == 0 { standard } else { number as usize };
    let config = || {
        if given.flags & !TOLLGATE_REDIS_CLUSTER != 0 {
            return Err(Wrong::Flags(given.flags));
        }
        if given.flags & TOLLGATE_REDIS_CLUSTER != 0 && given.database != 0 {
            return Err(Wrong::Database(given.database));
        }
        let timeout = if given.timeout_ns == 0 { DEFAULT_TIMEOUT } else { given.timeout_ns };
        if !(100_000..=10_000_000_000).contains(&timeout) {
            return Err(Wrong::Timeout(timeout));
        }
        Ok(StoreConfig {
            pots: or(given.keys, standard.pots),
            waiting: or(given.waiting, standard.waiting),
            holds: or(given.holds, standard.holds),
            instances: given.instances.max(1),
            instance: Some(given.instance).filter(|instance| *instance != TOLLGATE_NO_INSTANCE),
            workers: u64::from(given.workers.max(1)),
            region: region.map_or(Some(Share::WHOLE), part).ok_or(Wrong::Region)?,
            timeout,
            seed: given.seed,
            ..standard
        })
    };
    Ok(config())
}

/// "60/100", or "60-100/100".
pub(crate) fn part(text: &[u8]) -> Option<Share> {
    let (part, of) = core::str::from_utf8(text).ok()?.split_once('/')?;
    let (from, to) = part.split_once('-').unwrap_or(("0", part));
    Share::new(from.parse().ok()?, to.parse().ok()?, of.parse().ok()?).ok()
}

/// # Safety
/// The pointers in `given` lead to what their types say.
unsafe fn connect(
    given: &tollgate_redis_config,
    store: &StoreConfig,
    refuse: &dyn Fn(&dyn fmt::Display) -> tollgate_status,
) -> Result<Engine, tollgate_status> {
    // SAFETY: the caller's contract.
    let (listed, username, password) = unsafe {
        (inputs(given.addresses, given.address_count)?, bytes(&given.username)?, bytes(&given.password)?)
    };
    let mut addresses = Vec::with_capacity(listed.len());
    for address in listed {
        // SAFETY: the caller's contract.
        addresses.push(unsafe { bytes(address)? }.unwrap_or(b""));
    }
    let link = LinkConfig {
        username,
        password,
        database: given.database,
        seed: given.seed,
        in_flight: store.waiting.saturating_mul(2).clamp(1024, 65_536),
        ..LinkConfig::default()
    };
    let cluster = given.flags & TOLLGATE_REDIS_CLUSTER != 0;
    let router = RouterConfig { link, addresses: &addresses, cluster };
    Engine::new(store, &router).map_err(|error| refuse(&error))
}

/// # Safety
/// `redis` is NULL or leads to an engine that nobody else uses.
pub(crate) unsafe fn redis_of<'a>(redis: *mut tollgate_redis) -> Result<&'a mut Shared, tollgate_status> {
    // SAFETY: the caller's contract; a `tollgate_redis` is a marked engine.
    unsafe { memory::owned::<tollgate_redis, Shared>(redis, MARK) }
}

/// # Safety
/// The pointers lead to what their types say.
unsafe fn here_of<'a>(
    table: *const tollgate_table,
    metrics: *const tollgate_store_metrics,
    now: u64,
) -> Result<Here<'a, 'a>, tollgate_status> {
    // SAFETY: the caller's contract.
    let (table, metrics): (_, &'a StoreMetrics) = unsafe { (table_of(table)?, store_metrics_of(metrics)?) };
    Ok(Here { table, metrics, now })
}
