//! A ready-made client for programs that have threads

use core::ffi::{c_char, c_void};
use std::time::Duration;

use tollgate_core::client::{Client, ClientConfig, ClientError, Tls};
use tollgate_core::redis::breaker::State;
use tollgate_core::redis::share::Share;
use tollgate_core::redis::store::StoreConfig;
use tollgate_core::table;

use crate::limit::sized;
use crate::memory::{self, Marked, Outputs, input, inputs, output, outputs};
use crate::redis::{TOLLGATE_NO_INSTANCE, part};
use crate::rules::{
    TOLLGATE_MAX_HEADERS, answered, attributes_of, bytes, tollgate_answer, tollgate_attributes,
    tollgate_bytes, unidentified,
};
use crate::status::{
    TOLLGATE_ERR_ARGUMENT, TOLLGATE_ERR_NULL, TOLLGATE_ERR_PARSE, TOLLGATE_ERR_RANGE, TOLLGATE_ERR_SIZE,
    TOLLGATE_ERR_UNSUPPORTED, run, tollgate_status,
};
use crate::store::{store_snapshot_of, tollgate_store_snapshot};
use crate::text::Message;
use crate::{TOLLGATE_BREAKER_CLOSED, TOLLGATE_BREAKER_HALF_OPEN, TOLLGATE_BREAKER_OPEN};

/// Room for the word in a tollgate_client_stats, with its final NUL.
pub const TOLLGATE_TROUBLE_SIZE: usize = 16;

/// Limits that many machines share through Redis, with connections, threads
/// and a clock of its own: all that a threaded program needs. It is made of
/// memory of the library's own, and given back with tollgate_client_free. A
/// process that forks makes its client after the fork.
pub struct tollgate_client(#[expect(dead_code, reason = "read through `memory::kept`")] Marked<Client>);

/// How Redis is reached, and shared. Zeros stand for the defaults, but for
/// `struct_size`, `url` and `instance`. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_client_config {
    /// sizeof(tollgate_client_config).
    pub struct_size: u32,
    /// Connections, each with a thread of its own; 1 to 64. Default 2.
    pub connections: u32,
    /// Where Redis is: "redis://[user:password@]host[:port][/db]", over TLS
    /// "rediss://...", "unix:///path[?db=1&user=...&pass=...]";
    /// "redis+cluster://[user:password@]host:port[,host:port...]", any nodes
    /// of a cluster; "redis+sentinel://[user:password@]host:port[,...]/name[/db]",
    /// Sentinels and the name of the master that they watch; over TLS
    /// "rediss+cluster" and "rediss+sentinel". What is not a letter, digit or
    /// one of "-._~" in a name or password is percent-encoded.
    pub url: tollgate_bytes,
    /// The part of every limit that this region has, as in
    /// tollgate_redis_config; NULL for the whole.
    pub region: tollgate_bytes,
    /// For TLS, as PEM: the authorities that are trusted, and no others; NULL
    /// for the system's.
    pub tls_authorities: tollgate_bytes,
    /// This client's certificate, as PEM; NULL for none.
    pub tls_certificate: tollgate_bytes,
    /// The private key of that certificate, as PEM.
    pub tls_key: tollgate_bytes,
    /// How long a connection may take, in nanoseconds; no request waits for
    /// it. 1 ms to 60 s. Default 250 ms.
    pub connect_timeout_ns: u64,
    /// How long a request waits for policies that name no timeout, in
    /// nanoseconds; 100,000 to 10,000,000,000. Default 5 ms.
    pub timeout_ns: u64,
    /// Machines that share the limits: each falls back to its piece while
    /// Redis is away; 1 to 10,000. Default 1.
    pub instances: u64,
    /// Which of them this one is, from 0, or TOLLGATE_NO_INSTANCE: the
    /// remainders of divisions are then given to nobody.
    pub instance: u64,
    /// Requests that may wait at a time, and calls that nobody waits for; more
    /// are decided without Redis. 1 to 65,536. Default 1,024.
    pub waiting: u32,
    /// Keys whose tokens and denials are remembered; 8 to 16,777,216. Default
    /// 4,096.
    pub keys: u32,
    /// Requests in flight under concurrency limits that can be released before
    /// they expire; up to 16,777,216. Default 1,024.
    pub holds: u32,
    /// Parts of the memory that threads lock on their own; 1 to 64. Default:
    /// as many as there are processors, at most 16.
    pub stores: u32,
    /// Keys of the table of what counts on this machine, and of all while
    /// Redis is away; as in tollgate_table_config. Default 65,536.
    pub capacity: u64,
    /// Its rows, for concurrency limits and sliding logs. Default 1,024.
    pub rows: u64,
    /// Entries of a row. Default 128.
    pub row_entries: u64,
}

/// What a client has done, and how it is. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_client_stats {
    /// TOLLGATE_BREAKER_CLOSED to TOLLGATE_BREAKER_HALF_OPEN.
    pub breaker: u32,
    /// Connections that are up.
    pub connections: u32,
    /// The last thing that went wrong with Redis, in a word such as "timeout",
    /// "disconnected" or "auth"; a C string, empty if nothing ever did.
    pub trouble: [c_char; TOLLGATE_TROUBLE_SIZE],
    /// What was asked, and how it went.
    pub store: tollgate_store_snapshot,
}

const MARK: u64 = u64::from_be_bytes(*b"tgclient");

/// Makes a client of a rules document: takes all memory, starts threads, and
/// waits for a first connection, for at most `connect_timeout_ns`. A Redis
/// that is away is no error: requests are decided as their policies'
/// `on_store_error` says until it is there.
///
/// `message`: NULL, or room for `message_size` bytes that on an error receives
/// what is wrong, as in tollgate_rules_parse; it never repeats the URL.
/// Errors: TOLLGATE_ERR_PARSE for the document, TOLLGATE_ERR_UNSUPPORTED for a
/// limit in it that cannot be counted where it should be, or threads that the
/// system does not give, TOLLGATE_ERR_ARGUMENT for the URL or certificates,
/// TOLLGATE_ERR_RANGE for a number.
///
/// # Safety
/// The pointers lead to what their types say; `rules` to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_client_create(
    config: *const tollgate_client_config,
    rules: *const c_char,
    len: usize,
    client: *mut *mut tollgate_client,
    message: *mut c_char,
    message_size: usize,
) -> tollgate_status {
    run(|| {
        let size = if message.is_null() { 0 } else { message_size };
        // SAFETY: the caller's contract.
        let (given, text, room) =
            unsafe { (input(config)?, document(rules, len)?, outputs(message.cast::<u8>(), size)?) };
        // SAFETY: the caller's contract.
        let out = unsafe { output(client)? };
        // SAFETY: the caller's contract.
        let config = unsafe { config_of(given, &room)? };
        let made = utf8(text, &room)
            .and_then(|text| Client::new(text, &config).map_err(|error| refuse(&error, &room)))?;
        out.write(memory::give(tollgate_client(Marked::new(MARK, made))));
        Ok(())
    })
}

/// Gives a client back: what its leases still hold goes back to Redis, for
/// which this waits, for at most about a second. NULL is legal, and does
/// nothing. Nobody else may use it any more.
///
/// # Safety
/// `client` is NULL or comes from tollgate_client_create, and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_client_free(client: *mut tollgate_client) {
    // SAFETY: the caller's contract.
    if unsafe { client_of(client.cast_const()) }.is_ok() {
        // SAFETY: as above, and the mark is there: it was made by `give`.
        unsafe { memory::take(client) };
    }
}

/// How many header fields requests must bring along, by the rules as they are
/// now. Concurrent calls are fine.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_client_header_count(
    client: *const tollgate_client,
    count: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (client, out) = unsafe { (client_of(client)?, output(count)?) };
        out.write(client.header_count());
        Ok(())
    })
}

/// Copies the name of such a header field, in lower case; no NUL follows.
/// TOLLGATE_NAME_SIZE is always enough. Allocates. Concurrent calls are fine.
/// Errors: TOLLGATE_ERR_RANGE past the last one, TOLLGATE_ERR_SIZE for a
/// buffer that is too small.
///
/// # Safety
/// The pointers lead to what their types say, `buffer` to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_client_header(
    client: *const tollgate_client,
    index: usize,
    buffer: *mut c_char,
    size: usize,
    len: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (client, room, len) =
            unsafe { (client_of(client)?, outputs(buffer.cast::<u8>(), size)?, output(len)?) };
        let headers = client.headers();
        let name = headers.get(index).ok_or(TOLLGATE_ERR_RANGE)?;
        if !room.copy(name.as_bytes()) {
            return Err(if buffer.is_null() { TOLLGATE_ERR_NULL } else { TOLLGATE_ERR_SIZE });
        }
        len.write(name.len());
        Ok(())
    })
}

/// Asks all limits of a request, all or none. Sleeps while Redis is asked, for
/// at most the longest timeout of the policies that apply; any other answer
/// comes at once. Any number of threads may call it. Errors:
/// TOLLGATE_ERR_ARGUMENT for a wrong struct_size or header_count.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_client_check(
    client: *const tollgate_client,
    attributes: *const tollgate_attributes,
    answer: *mut tollgate_answer,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (client, given, out) = unsafe { (client_of(client)?, input(attributes)?, output(answer)?) };
        sized::<tollgate_attributes>(given.struct_size)?;
        if given.reserved != 0 || given.header_count != client.header_count() {
            return Err(TOLLGATE_ERR_ARGUMENT);
        }
        let mut values = [None; TOLLGATE_MAX_HEADERS];
        // SAFETY: the caller's contract.
        let attributes = unsafe { attributes_of(given, &mut values)? };
        out.write(client.check_with(&attributes, |rules, selection, said| match said {
            Err(missing) => unidentified(&missing),
            Ok((answer, source)) => {
                tollgate_answer { source: source as u8, ..answered(rules, selection, answer) }
            }
        }));
        Ok(())
    })
}

/// The request is over: gives back its units in flight. Needed only under
/// concurrency limits; of no effect a second time. Any number of threads may
/// call it.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_client_release(
    client: *const tollgate_client,
    answer: *const tollgate_answer,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (client, answer) = unsafe { (client_of(client)?, input(answer)?) };
        for layer in answer.layers.iter().take(answer.count as usize) {
            client.release_hold(&(&layer.hold).into());
        }
        Ok(())
    })
}

/// Other rules from the next request on; when they are refused, the old ones
/// stay. What was counted stays counted where the limits are the same.
/// Allocates; concurrent calls are fine. `message` and errors as in
/// tollgate_client_create.
///
/// # Safety
/// The pointers lead to what their types say; `rules` to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_client_reload(
    client: *const tollgate_client,
    rules: *const c_char,
    len: usize,
    message: *mut c_char,
    message_size: usize,
) -> tollgate_status {
    run(|| {
        let size = if message.is_null() { 0 } else { message_size };
        // SAFETY: the caller's contract.
        let (client, text, room) =
            unsafe { (client_of(client)?, document(rules, len)?, outputs(message.cast::<u8>(), size)?) };
        client.reload(utf8(text, &room)?).map_err(|error| refuse(&error, &room))
    })
}

/// Reads all counters, one after the other. Concurrent calls are fine.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_client_read(
    client: *const tollgate_client,
    stats: *mut tollgate_client_stats,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (client, out) = unsafe { (client_of(client)?, output(stats)?) };
        let mut trouble = [0; TOLLGATE_TROUBLE_SIZE];
        let word = client.trouble().unwrap_or_default();
        for (room, byte) in trouble.iter_mut().take(TOLLGATE_TROUBLE_SIZE - 1).zip(word.bytes()) {
            *room = byte as c_char;
        }
        out.write(tollgate_client_stats {
            breaker: match client.state() {
                State::Closed => TOLLGATE_BREAKER_CLOSED,
                State::Open => TOLLGATE_BREAKER_OPEN,
                State::HalfOpen => TOLLGATE_BREAKER_HALF_OPEN,
            },
            connections: client.connected() as u32, // at most 64
            trouble,
            store: store_snapshot_of(client.metrics()),
        });
        Ok(())
    })
}

/// # Safety
/// `client` is NULL or leads to a client.
unsafe fn client_of<'a>(client: *const tollgate_client) -> Result<&'a Client, tollgate_status> {
    // SAFETY: the caller's contract; a `tollgate_client` is a marked client.
    unsafe { memory::kept::<tollgate_client, Client>(client, MARK) }
}

/// # Safety
/// `text` is NULL or leads to `len` bytes.
unsafe fn document<'a>(text: *const c_char, len: usize) -> Result<&'a [u8], tollgate_status> {
    if text.is_null() {
        return Err(TOLLGATE_ERR_NULL);
    }
    // SAFETY: the caller's contract.
    unsafe { inputs(text.cast::<c_void>().cast::<u8>(), len) }
}

fn utf8<'t>(text: &'t [u8], room: &Outputs<u8>) -> Result<&'t str, tollgate_status> {
    core::str::from_utf8(text).map_err(|error| {
        Message::say(room, format_args!("byte {}: not UTF-8", error.valid_up_to()));
        TOLLGATE_ERR_PARSE
    })
}

fn refuse(error: &ClientError, room: &Outputs<u8>) -> tollgate_status {
    Message::say(room, format_args!("{error}"));
    match error {
        ClientError::Rules(_) => TOLLGATE_ERR_PARSE,
        ClientError::Limit { .. } | ClientError::Thread(_) => TOLLGATE_ERR_UNSUPPORTED,
        ClientError::Url(_) | ClientError::Tls(_) => TOLLGATE_ERR_ARGUMENT,
        _ => TOLLGATE_ERR_RANGE,
    }
}

/// # Safety
/// The pointers in `given` lead to what their types say.
unsafe fn config_of(
    given: &tollgate_client_config,
    room: &Outputs<u8>,
) -> Result<ClientConfig, tollgate_status> {
    sized::<tollgate_client_config>(given.struct_size)?;
    // SAFETY: the caller's contract.
    let read = |value: &tollgate_bytes| unsafe { bytes(value) };
    let url = core::str::from_utf8(read(&given.url)?.ok_or(TOLLGATE_ERR_NULL)?);
    let standard = ClientConfig::new(url.map_err(|_| TOLLGATE_ERR_ARGUMENT)?);
    let or = |number: u64, standard: u64| if number == 0 { standard } else { number };
    let many = |number: u32, standard: usize| if number == 0 { standard } else { number as usize };
    let region = match read(&given.region)? {
        None => Share::WHOLE,
        Some(text) => part(text).ok_or_else(|| {
            Message::say(room, format_args!("region: a part of the whole, such as 60/100 or 60-100/100"));
            TOLLGATE_ERR_RANGE
        })?,
    };
    let owned = |value: &tollgate_bytes| read(value).map(|bytes| bytes.map(<[u8]>::to_vec));
    let (authorities, certificate, key) =
        (owned(&given.tls_authorities)?, owned(&given.tls_certificate)?, owned(&given.tls_key)?);
    if certificate.is_some() != key.is_some() {
        Message::say(room, format_args!("tls: a certificate needs its key, and a key its certificate"));
        return Err(TOLLGATE_ERR_ARGUMENT);
    }
    let has_tls = authorities.is_some() || certificate.is_some();
    let tls = has_tls.then(|| Tls { authorities, identity: certificate.zip(key) });
    if given.timeout_ns != 0 && !(100_000..=10_000_000_000).contains(&given.timeout_ns) {
        Message::say(room, format_args!("timeout_ns: {} is outside 100000 to 10000000000", given.timeout_ns));
        return Err(TOLLGATE_ERR_RANGE);
    }
    let connect_timeout = match given.connect_timeout_ns {
        0 => standard.connect_timeout,
        span => Duration::from_nanos(span),
    };
    Ok(ClientConfig {
        connections: many(given.connections, standard.connections),
        connect_timeout,
        tls,
        store: StoreConfig {
            pots: many(given.keys, standard.store.pots),
            waiting: many(given.waiting, standard.store.waiting),
            holds: many(given.holds, standard.store.holds),
            instances: given.instances.max(1),
            instance: Some(given.instance).filter(|instance| *instance != TOLLGATE_NO_INSTANCE),
            region,
            timeout: or(given.timeout_ns, standard.store.timeout),
            ..standard.store
        },
        stores: given.stores as usize,
        table: table::Config {
            capacity: or(given.capacity, standard.table.capacity),
            rows: or(given.rows, standard.table.rows),
            row_entries: or(given.row_entries, standard.table.row_entries),
        },
        ..standard
    })
}
