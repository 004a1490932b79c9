//! The host's functions, each as a call that gives a value or an error and
//! never panics, whatever the host answers.
//!
//! The names and numbers are those of the proxy-wasm ABI 0.2.1. Bytes that the
//! host hands over lie in memory that it asked for by
//! `proxy_on_memory_allocate`, and belong to us from then on.

use std::ptr::null_mut;

/// The host said no: its status, as the ABI numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u32);

const OK: u32 = 0;
const NOT_FOUND: u32 = 1;
pub(crate) const CAS_MISMATCH: u32 = 8;

/// How loud a line of the log is.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Level {
    /// All is well again.
    Info = 2,
    /// Something does not work as it should, and goes on.
    Warn = 3,
    /// Something does not work.
    Error = 4,
}

/// Which header fields.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Map {
    /// The request's.
    Request = 0,
    /// The response's.
    Response = 2,
    /// Of the answer to an HTTP call.
    PostResponse = 6,
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum MetricKind {
    /// It only grows.
    Counter = 0,
    /// It comes and goes.
    Gauge = 1,
    /// Values, by how large they are.
    Histogram = 2,
}

/// Which bytes.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Buffer {
    /// That have just come on a connection.
    Downstream = 2,
    /// That are about to be sent on it.
    Upstream = 3,
    /// The answer's to an HTTP call.
    PostResponseBody = 4,
    /// The message that came on a stream.
    Message = 5,
    /// The plugin's configuration.
    Configuration = 7,
}

/// What a filter says to the host when it was shown header fields.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Action {
    /// Go on.
    Continue = 0,
    /// Wait, or it is answered.
    Pause = 1,
}

/// Declares imports; where there is no host, as in a native build, each of
/// them answers "unimplemented".
macro_rules! imports {
    ($module:literal: $(fn $name:ident($($argument:ident: $type:ty),*);)*) => {
        #[cfg(target_arch = "wasm32")]
        #[link(wasm_import_module = $module)]
        unsafe extern "C" {
            $(fn $name($($argument: $type),*) -> u32;)*
        }
        $(
            #[cfg(not(target_arch = "wasm32"))]
            #[allow(clippy::too_many_arguments, reason = "as the ABI has it")]
            unsafe fn $name($($argument: $type),*) -> u32 {
                $(let _ = $argument;)*
                12
            }
        )*
    };
}

imports! { "env":
    fn proxy_log(level: u32, message: *const u8, len: usize);
    fn proxy_get_current_time_nanoseconds(now: *mut u64);
    fn proxy_set_tick_period_milliseconds(period: u32);
    fn proxy_get_buffer_bytes(kind: u32, start: usize, max: usize, data: *mut *mut u8, len: *mut usize);
    fn proxy_get_header_map_value(map: u32, key: *const u8, key_len: usize, data: *mut *mut u8, len: *mut usize);
    fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, len: *mut usize);
    fn proxy_replace_header_map_value(map: u32, key: *const u8, key_len: usize, value: *const u8, len: usize);
    fn proxy_get_property(path: *const u8, path_len: usize, data: *mut *mut u8, len: *mut usize);
    fn proxy_get_shared_data(key: *const u8, key_len: usize, data: *mut *mut u8, len: *mut usize, cas: *mut u32);
    fn proxy_set_shared_data(key: *const u8, key_len: usize, value: *const u8, len: usize, cas: u32);
    fn proxy_define_metric(kind: u32, name: *const u8, name_len: usize, id: *mut u32);
    fn proxy_increment_metric(id: u32, by: i64);
    fn proxy_record_metric(id: u32, value: u64);
    fn proxy_set_buffer_bytes(kind: u32, start: usize, size: usize, data: *const u8, len: usize);
    fn proxy_continue_stream(stream: u32);
    fn proxy_set_effective_context(context: u32);
    fn proxy_done();
    fn proxy_grpc_stream(
        service: *const u8, service_len: usize, name: *const u8, name_len: usize, method: *const u8,
        method_len: usize, metadata: *const u8, metadata_len: usize, token: *mut u32
    );
    fn proxy_grpc_send(token: u32, message: *const u8, len: usize, is_last: u32);
    fn proxy_grpc_cancel(token: u32);
    fn proxy_http_call(
        upstream: *const u8, upstream_len: usize, headers: *const u8, headers_len: usize, body: *const u8,
        body_len: usize, trailers: *const u8, trailers_len: usize, timeout: u32, token: *mut u32
    );
    fn proxy_send_local_response(
        status: u32, details: *const u8, details_len: usize, body: *const u8, body_len: usize,
        headers: *const u8, headers_len: usize, grpc_status: i32
    );
}

imports! { "wasi_snapshot_preview1":
    fn clock_time_get(clock: u32, precision: u64, time: *mut u64);
    fn random_get(data: *mut u8, len: usize);
    fn environ_sizes_get(count: *mut usize, size: *mut usize);
    fn environ_get(places: *mut *mut u8, data: *mut u8);
}

/// Memory for the host to write into, which is given back by [`owned`]; none
/// when there is not so much.
#[cfg(target_arch = "wasm32")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    match std::alloc::Layout::array::<u8>(size) {
        // SAFETY: the layout is not empty.
        Ok(layout) if size > 0 => unsafe { std::alloc::alloc(layout) },
        _ => null_mut(),
    }
}

/// Writes a line into the host's log.
pub(crate) fn log(level: Level, message: &str) {
    // SAFETY: the host reads `len` bytes of a string.
    let _ = unsafe { proxy_log(level as u32, message.as_ptr(), message.len()) };
}

/// The host's clock of the day, in nanoseconds since 1970.
pub(crate) fn now() -> Result<u64, Status> {
    let mut now = 0;
    // SAFETY: the host writes one integer.
    done(unsafe { proxy_get_current_time_nanoseconds(&mut now) })?;
    Ok(now)
}

/// The host's steady clock, in nanoseconds since some moment that is the same
/// for all workers.
pub(crate) fn steady() -> Result<u64, Status> {
    const MONOTONIC: u32 = 1;
    let mut now = 0;
    // SAFETY: the host writes one integer.
    done(unsafe { clock_time_get(MONOTONIC, 1, &mut now) })?;
    Ok(now)
}

/// Asks to be called so often; 0 is never.
pub(crate) fn set_tick(milliseconds: u32) -> Result<(), Status> {
    // SAFETY: no memory is passed.
    done(unsafe { proxy_set_tick_period_milliseconds(milliseconds) })
}

/// The number of a metric, which is made if there is none of this name.
pub(crate) fn define_metric(kind: MetricKind, name: &str) -> Result<u32, Status> {
    let mut id = 0;
    // SAFETY: the host reads a name, and writes one integer.
    done(unsafe { proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &mut id) })?;
    Ok(id)
}

/// Adds to a counter or a gauge.
pub(crate) fn increment_metric(id: u32, by: i64) -> Result<(), Status> {
    // SAFETY: no memory is passed.
    done(unsafe { proxy_increment_metric(id, by) })
}

/// Adds a value to a histogram.
pub(crate) fn record_metric(id: u32, value: u64) -> Result<(), Status> {
    // SAFETY: no memory is passed.
    done(unsafe { proxy_record_metric(id, value) })
}

/// Bytes that the host holds.
pub(crate) fn buffer(which: Buffer) -> Result<Vec<u8>, Status> {
    start_of_buffer(which, usize::MAX)
}

/// The first of the bytes that the host holds, so many at most.
pub(crate) fn start_of_buffer(which: Buffer, most: usize) -> Result<Vec<u8>, Status> {
    let bytes = handed(|data, len| {
        // SAFETY: the host writes a pointer and a length.
        unsafe { proxy_get_buffer_bytes(which as u32, 0, most, data, len) }
    })?;
    Ok(bytes.unwrap_or_default())
}

/// Puts bytes in place of the first `old` that the host holds.
pub(crate) fn set_buffer(which: Buffer, old: usize, bytes: &[u8]) -> Result<(), Status> {
    // SAFETY: the host reads the bytes.
    done(unsafe { proxy_set_buffer_bytes(which as u32, 0, old, bytes.as_ptr(), bytes.len()) })
}

/// The calls that follow are about this context, until the next one says
/// otherwise.
///
/// # Errors
/// It is gone.
pub(crate) fn set_context(context: u32) -> Result<(), Status> {
    // SAFETY: no memory is passed.
    done(unsafe { proxy_set_effective_context(context) })
}

/// The plugin whose context is set needs no more time.
///
/// # Errors
/// It had asked for none.
pub(crate) fn end_plugin() -> Result<(), Status> {
    // SAFETY: no memory is passed.
    done(unsafe { proxy_done() })
}

/// Lets a request go on that was made to wait.
pub(crate) fn go_on() -> Result<(), Status> {
    const REQUEST: u32 = 0;
    // SAFETY: no memory is passed.
    done(unsafe { proxy_continue_stream(REQUEST) })
}

/// Opens a gRPC stream to a cluster, of the context that is set: its number.
pub(crate) fn open_stream(cluster: &str) -> Result<u32, Status> {
    const SERVICE: &str = "tollgate.Bridge";
    const METHOD: &str = "Stream";
    let target = grpc_service(cluster);
    let no_metadata = pairs(&[]);
    let mut token = 0;
    // SAFETY: the host reads four byte strings, and writes one integer.
    done(unsafe {
        proxy_grpc_stream(
            target.as_ptr(),
            target.len(),
            SERVICE.as_ptr(),
            SERVICE.len(),
            METHOD.as_ptr(),
            METHOD.len(),
            no_metadata.as_ptr(),
            no_metadata.len(),
            &mut token,
        )
    })?;
    Ok(token)
}

/// Sends a message on a stream.
pub(crate) fn send(token: u32, message: &[u8]) -> Result<(), Status> {
    // SAFETY: the host reads the message.
    done(unsafe { proxy_grpc_send(token, message.as_ptr(), message.len(), 0) })
}

/// Ends a stream at once.
pub(crate) fn cancel_stream(token: u32) -> Result<(), Status> {
    // SAFETY: no memory is passed.
    done(unsafe { proxy_grpc_cancel(token) })
}

/// Makes an HTTP call to a cluster, of the context that is set: a POST with
/// this body, to be answered within so many milliseconds. Its number.
pub(crate) fn post(cluster: &str, body: &[u8], timeout: u32) -> Result<u32, Status> {
    let headers = pairs(&[(":method", b"POST".as_slice()), (":path", b"/"), (":authority", b"tollgate")]);
    let no_trailers = pairs(&[]);
    let mut token = 0;
    // SAFETY: the host reads four byte strings, and writes one integer.
    done(unsafe {
        proxy_http_call(
            cluster.as_ptr(),
            cluster.len(),
            headers.as_ptr(),
            headers.len(),
            body.as_ptr(),
            body.len(),
            no_trailers.as_ptr(),
            no_trailers.len(),
            timeout,
            &mut token,
        )
    })?;
    Ok(token)
}

/// A variable of the VM's environment.
pub(crate) fn environment(name: &str) -> Option<Vec<u8>> {
    const LARGEST: usize = 1 << 20;
    let (mut count, mut size) = (0, 0);
    // SAFETY: the host writes two integers.
    done(unsafe { environ_sizes_get(&mut count, &mut size) }).ok()?;
    if count > LARGEST || size > LARGEST {
        return None;
    }
    let (mut places, mut text) = (vec![null_mut(); count], vec![0; size]);
    // SAFETY: the host writes as many pointers and bytes as it has just said.
    done(unsafe { environ_get(places.as_mut_ptr(), text.as_mut_ptr()) }).ok()?;
    let mut variables = text.split(|byte| *byte == 0);
    let value = variables.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(value.to_vec())
}

/// Envoy's GrpcService message with the cluster's name in it: field 1 of
/// field 1.
fn grpc_service(cluster: &str) -> Vec<u8> {
    const FIELD_1: u8 = 1 << 3 | 2;
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap_or(127); // names are shorter: one byte of length
    let mut inner = vec![FIELD_1, length(cluster.as_bytes())];
    inner.extend_from_slice(cluster.as_bytes());
    let mut service = vec![FIELD_1, length(&inner)];
    service.extend(inner);
    service
}

/// A header field's value, of several with commas between; none if it is not
/// there.
pub(crate) fn header(map: Map, name: &str) -> Result<Option<Vec<u8>>, Status> {
    handed(|data, len| {
        // SAFETY: the host reads a name, and writes a pointer and a length.
        unsafe { proxy_get_header_map_value(map as u32, name.as_ptr(), name.len(), data, len) }
    })
}

/// All header fields, as [`pairs`] has them; none where the host has them not
/// all at once.
pub(crate) fn headers(map: Map) -> Option<Vec<u8>> {
    let bytes = handed(|data, len| {
        // SAFETY: the host writes a pointer and a length.
        unsafe { proxy_get_header_map_pairs(map as u32, data, len) }
    });
    bytes.ok().flatten()
}

/// Each name in what [`headers`] gave, and from where to where its value is,
/// until that is enough; as far as the host's numbers are right.
pub(crate) fn each_pair(bytes: &[u8], mut is_enough: impl FnMut(&[u8], (usize, usize)) -> bool) {
    let number = |four: &[u8; 4]| u32::from_le_bytes(*four) as usize; // no wider, in a VM of 32 bits
    let Some((count, rest)) = bytes.split_first_chunk() else { return };
    let Some((lengths, mut rest)) = rest.split_at_checked(number(count).saturating_mul(8)) else { return };
    for [name, value] in lengths.as_chunks().0.as_chunks().0 {
        let (name, value) = (number(name), number(value));
        let Some((name, [_, behind @ ..])) = rest.split_at_checked(name) else { return }; // a NUL
        let start = bytes.len().wrapping_sub(behind.len()); // a part of it
        let Some((_, [_, behind @ ..])) = behind.split_at_checked(value) else { return };
        if is_enough(name, (start, start.wrapping_add(value))) {
            return;
        }
        rest = behind;
    }
}

/// Sets a header field, in place of those of its name.
pub(crate) fn set_header(map: Map, name: &str, value: &[u8]) -> Result<(), Status> {
    // SAFETY: the host reads a name and a value.
    done(unsafe {
        proxy_replace_header_map_value(map as u32, name.as_ptr(), name.len(), value.as_ptr(), value.len())
    })
}

/// A property of the request or the host; `path` has a NUL between its parts.
pub(crate) fn property(path: &str) -> Result<Option<Vec<u8>>, Status> {
    handed(|data, len| {
        // SAFETY: the host reads a path, and writes a pointer and a length.
        unsafe { proxy_get_property(path.as_ptr(), path.len(), data, len) }
    })
}

/// A value that the VMs share, and the number of its last write.
pub(crate) fn shared(key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, Status> {
    let mut version = 0;
    let bytes = handed(|data, len| {
        // SAFETY: the host reads a key, and writes a pointer, a length and a number.
        unsafe { proxy_get_shared_data(key.as_ptr(), key.len(), data, len, &mut version) }
    })?;
    Ok(bytes.map(|bytes| (bytes, version)))
}

/// Sets a value that the VMs share, if it was not written since `read`; with
/// none, if it was never written. False if it was.
pub(crate) fn set_shared(key: &[u8], value: &[u8], read: Option<u32>) -> Result<bool, Status> {
    // A value that was never written is not compared, one that was is: no write has this number.
    let version = read.unwrap_or(u32::MAX);
    // SAFETY: the host reads a key and a value.
    match unsafe { proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), version) } {
        OK => Ok(true),
        CAS_MISMATCH => Ok(false),
        status => Err(Status(status)),
    }
}

/// Answers the request. `headers` are pairs as the ABI writes them; to a gRPC
/// client the host says `grpc_status`, and `body` as its message.
pub(crate) fn respond(status: u16, body: &[u8], headers: &[u8], grpc_status: i32) -> Result<(), Status> {
    const DETAILS: &str = "tollgate";
    // SAFETY: the host reads three byte strings.
    done(unsafe {
        proxy_send_local_response(
            u32::from(status),
            DETAILS.as_ptr(),
            DETAILS.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            grpc_status,
        )
    })
}

/// Header fields as the ABI writes them: their number, the lengths of each
/// name and value, then names and values, each with a NUL behind it.
pub(crate) fn pairs(headers: &[(&str, &[u8])]) -> Vec<u8> {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = Vec::new();
    bytes.extend(number(headers.len()));
    for (name, value) in headers {
        bytes.extend(number(name.len()));
        bytes.extend(number(value.len()));
    }
    for (name, value) in headers {
        for part in [name.as_bytes(), value] {
            bytes.extend_from_slice(part);
            bytes.push(0);
        }
    }
    bytes
}

/// Two numbers from the host's random source.
pub(crate) fn random() -> Result<[u64; 2], Status> {
    let mut bytes = [0; 16];
    // SAFETY: the host writes as many bytes as there are.
    done(unsafe { random_get(bytes.as_mut_ptr(), bytes.len()) })?;
    let number = u128::from_le_bytes(bytes);
    Ok([number as u64, (number >> 64) as u64])
}

fn done(status: u32) -> Result<(), Status> {
    if status == OK { Ok(()) } else { Err(Status(status)) }
}

/// Bytes that the host hands over; none of what it does not find.
fn handed(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Result<Option<Vec<u8>>, Status> {
    let (mut data, mut len) = (null_mut(), 0);
    match call(&mut data, &mut len) {
        OK => Ok(Some(owned(data, len))),
        NOT_FOUND => Ok(None),
        status => Err(Status(status)),
    }
}

/// Takes over what the host wrote into memory of
/// [`proxy_on_memory_allocate`].
fn owned(data: *mut u8, len: usize) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: the host asked for `len` bytes, which were a vector's, wrote all of them and forgot them.
    unsafe { Vec::from_raw_parts(data, len, len) }
}
