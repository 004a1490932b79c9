//! A decision as header fields and a problem body.

use core::ffi::c_char;

use tollgate_core::Decision;
use tollgate_core::http::{self, FIELDS_SIZE, Family, MAX_FIELDS, PROBLEM_SIZE};

use crate::limit::{limit_of, tollgate_decision, tollgate_limit};
use crate::memory::{Output, Outputs, input, inputs, output, outputs};
use crate::status::{
    TOLLGATE_ERR_ARGUMENT, TOLLGATE_ERR_NULL, TOLLGATE_ERR_PARSE, TOLLGATE_ERR_RANGE, TOLLGATE_ERR_SIZE, run,
    tollgate_status,
};

/// No fields but Retry-After.
pub const TOLLGATE_FIELDS_OFF: u32 = 0;
/// X-RateLimit-Limit (the burst), X-RateLimit-Remaining, X-RateLimit-Reset
/// (seconds until the bucket is full; of a denial at least Retry-After).
pub const TOLLGATE_FIELDS_X_RATELIMIT: u32 = 1;
/// RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset
/// (draft-ietf-httpapi-ratelimit-headers-03).
pub const TOLLGATE_FIELDS_RATELIMIT_03: u32 = 2;
/// RateLimit-Policy and RateLimit
/// (draft-ietf-httpapi-ratelimit-headers-11).
pub const TOLLGATE_FIELDS_RATELIMIT: u32 = 3;

/// The most fields of one answer.
pub const TOLLGATE_HTTP_FIELDS_MAX: usize = 4;
/// Always enough room for the values of one answer's fields.
pub const TOLLGATE_HTTP_BUFFER_SIZE: usize = 512;
/// Always enough room for a problem body.
pub const TOLLGATE_HTTP_PROBLEM_SIZE: usize = 1024;

const _: () = assert!(
    TOLLGATE_HTTP_FIELDS_MAX == MAX_FIELDS
        && TOLLGATE_HTTP_BUFFER_SIZE == FIELDS_SIZE
        && TOLLGATE_HTTP_PROBLEM_SIZE == PROBLEM_SIZE
);

/// One header field. Plain data; the name is static, the value lies in the
/// caller's buffer; neither ends with NUL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_http_field {
    /// Its name.
    pub name: *const c_char,
    /// Bytes of the name.
    pub name_len: usize,
    /// Its value.
    pub value: *const c_char,
    /// Bytes of the value.
    pub value_len: usize,
}

/// Writes the fields of one answer: the family's, and with a denial that can
/// ever end also Retry-After (whole seconds, rounded up, at least 1).
///
/// `name` is the policy's, for TOLLGATE_FIELDS_RATELIMIT; what a structured
/// field cannot hold becomes `?`, and it is cut after 64 bytes. `fields` has
/// room for TOLLGATE_HTTP_FIELDS_MAX. Errors: TOLLGATE_ERR_SIZE,
/// TOLLGATE_ERR_PARSE for a name that is not UTF-8, TOLLGATE_ERR_ARGUMENT.
/// Thread-safe.
///
/// # Safety
/// The pointers lead to what their types say, `name` to `name_len` bytes,
/// `buffer` to `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_http_fields(
    family: u32,
    name: *const c_char,
    name_len: usize,
    limit: *const tollgate_limit,
    decision: *const tollgate_decision,
    buffer: *mut c_char,
    size: usize,
    fields: *mut tollgate_http_field,
    count: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (name, limit, decision) =
            unsafe { (inputs(name.cast::<u8>(), name_len)?, limit_of(limit)?, input(decision)?) };
        // SAFETY: the caller's contract.
        let (room, fields, count) =
            unsafe { (outputs(buffer.cast::<u8>(), size)?, outputs(fields, MAX_FIELDS)?, output(count)?) };
        let family = Family::ALL.into_iter().find(|&f| f as u32 == family).ok_or(TOLLGATE_ERR_ARGUMENT)?;
        let name = core::str::from_utf8(name).map_err(|_| TOLLGATE_ERR_PARSE)?;
        let mut scratch = [0; FIELDS_SIZE];
        let written = http::fields(family, name, limit, &Decision::from(decision), &mut scratch)
            .map_err(|_| TOLLGATE_ERR_SIZE)?;
        hand_over(&written, &scratch, buffer, &room, &fields, count)
    })
}

/// Writes the application/problem+json body of a denial; `*len` is its
/// length (no NUL follows). `status` is the HTTP status, 400 to 599. `name`
/// as in tollgate_http_fields. Errors: TOLLGATE_ERR_SIZE, TOLLGATE_ERR_RANGE
/// for another status, TOLLGATE_ERR_PARSE. Thread-safe.
///
/// # Safety
/// As tollgate_http_fields.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_http_problem(
    status: u32,
    name: *const c_char,
    name_len: usize,
    decision: *const tollgate_decision,
    buffer: *mut c_char,
    size: usize,
    len: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (name, decision) = unsafe { (inputs(name.cast::<u8>(), name_len)?, input(decision)?) };
        // SAFETY: the caller's contract.
        let (room, len) = unsafe { (outputs(buffer.cast::<u8>(), size)?, output(len)?) };
        let status =
            u16::try_from(status).ok().filter(|s| (400..600).contains(s)).ok_or(TOLLGATE_ERR_RANGE)?;
        let name = core::str::from_utf8(name).map_err(|_| TOLLGATE_ERR_PARSE)?;
        let mut scratch = [0; PROBLEM_SIZE];
        let written = http::problem(status, name, &Decision::from(decision), &mut scratch)
            .map_err(|_| TOLLGATE_ERR_SIZE)?;
        if !room.copy(scratch.get(..written).unwrap_or(&[])) {
            return Err(if buffer.is_null() { TOLLGATE_ERR_NULL } else { TOLLGATE_ERR_SIZE });
        }
        len.write(written);
        Ok(())
    })
}

/// Writes the fields of a 401: WWW-Authenticate, which names the header field
/// that is missing. `fields` has room for TOLLGATE_HTTP_FIELDS_MAX. Errors:
/// TOLLGATE_ERR_SIZE, TOLLGATE_ERR_PARSE for a name that is not UTF-8.
/// Thread-safe.
///
/// # Safety
/// As tollgate_http_fields, `missing` to `missing_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_http_missing_fields(
    missing: *const c_char,
    missing_len: usize,
    buffer: *mut c_char,
    size: usize,
    fields: *mut tollgate_http_field,
    count: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let missing = unsafe { inputs(missing.cast::<u8>(), missing_len)? };
        // SAFETY: the caller's contract.
        let (room, fields, count) =
            unsafe { (outputs(buffer.cast::<u8>(), size)?, outputs(fields, MAX_FIELDS)?, output(count)?) };
        let missing = core::str::from_utf8(missing).map_err(|_| TOLLGATE_ERR_PARSE)?;
        let mut scratch = [0; FIELDS_SIZE];
        let written = http::missing_fields(missing, &mut scratch).map_err(|_| TOLLGATE_ERR_SIZE)?;
        hand_over(&written, &scratch, buffer, &room, &fields, count)
    })
}

/// Writes the application/problem+json body of a 401; `*len` is its length
/// (no NUL follows). `missing` is the header field that is missing. Errors:
/// as tollgate_http_missing_fields. Thread-safe.
///
/// # Safety
/// As tollgate_http_missing_fields.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_http_missing_problem(
    missing: *const c_char,
    missing_len: usize,
    buffer: *mut c_char,
    size: usize,
    len: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let missing = unsafe { inputs(missing.cast::<u8>(), missing_len)? };
        // SAFETY: the caller's contract.
        let (room, len) = unsafe { (outputs(buffer.cast::<u8>(), size)?, output(len)?) };
        let missing = core::str::from_utf8(missing).map_err(|_| TOLLGATE_ERR_PARSE)?;
        let mut scratch = [0; PROBLEM_SIZE];
        let written = http::missing_problem(missing, &mut scratch).map_err(|_| TOLLGATE_ERR_SIZE)?;
        if !room.copy(scratch.get(..written).unwrap_or(&[])) {
            return Err(if buffer.is_null() { TOLLGATE_ERR_NULL } else { TOLLGATE_ERR_SIZE });
        }
        len.write(written);
        Ok(())
    })
}

/// Makes of a request's target, as the client sent it, the path that rules
/// match, as NGINX does: without query and fragment, percent signs decoded
/// once, `.` and `..` resolved, slashes merged. Without this, `/x/../login`
/// would not be under the limit of `/login`.
///
/// `path` is never longer than the target, does not end with NUL, and has room
/// for `size` >= `len` bytes, apart from the target's. Any bytes are legal; a
/// whole address, as proxies are sent, has to be without its scheme and host.
/// Errors: TOLLGATE_ERR_SIZE. Thread-safe.
///
/// # Safety
/// The pointers lead to what their types say, `target` to `len` bytes, `path`
/// to `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_http_path(
    target: *const c_char,
    len: usize,
    path: *mut c_char,
    size: usize,
    path_len: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (target, path, path_len) = unsafe {
            (inputs(target.cast::<u8>(), len)?, outputs(path.cast::<u8>(), size)?, output(path_len)?)
        };
        path_len.write(path.make(target, http::make_path).ok_or(TOLLGATE_ERR_SIZE)?);
        Ok(())
    })
}

/// Is it a gRPC request, by the value of its Content-Type? `*is` is 1 or 0.
/// Its denials are of HTTP status 200, without a body, and with the fields of
/// tollgate_http_grpc. Thread-safe.
///
/// # Safety
/// The pointers lead to what their types say, `content_type` to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_http_is_grpc(
    content_type: *const c_char,
    len: usize,
    is: *mut u32,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (content_type, is) = unsafe { (inputs(content_type.cast::<u8>(), len)?, output(is)?) };
        is.write(u32::from(http::is_grpc(content_type)));
        Ok(())
    })
}

/// Writes the fields of a denial that a gRPC client can read: content-type,
/// grpc-status (8, RESOURCE_EXHAUSTED) and grpc-message. `name` and `fields`
/// as in tollgate_http_fields. With `decision` NULL it is the answer to a
/// request without an identity (16, UNAUTHENTICATED), and `name` the header
/// field that is missing. Errors: as tollgate_http_missing_fields.
/// Thread-safe.
///
/// # Safety
/// As tollgate_http_fields.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_http_grpc(
    name: *const c_char,
    name_len: usize,
    decision: *const tollgate_decision,
    buffer: *mut c_char,
    size: usize,
    fields: *mut tollgate_http_field,
    count: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let name = unsafe { inputs(name.cast::<u8>(), name_len)? };
        // SAFETY: the caller's contract.
        let decision = if decision.is_null() { None } else { Some(unsafe { input(decision)? }) };
        // SAFETY: the caller's contract.
        let (room, fields, count) =
            unsafe { (outputs(buffer.cast::<u8>(), size)?, outputs(fields, MAX_FIELDS)?, output(count)?) };
        let name = core::str::from_utf8(name).map_err(|_| TOLLGATE_ERR_PARSE)?;
        let mut scratch = [0; FIELDS_SIZE];
        let written = match decision {
            Some(decision) => http::grpc_denial(name, &Decision::from(decision), &mut scratch),
            None => http::grpc_missing(name, &mut scratch),
        };
        hand_over(&written.map_err(|_| TOLLGATE_ERR_SIZE)?, &scratch, buffer, &room, &fields, count)
    })
}

/// Copies fields and their values into the caller's memory.
fn hand_over(
    written: &http::Fields,
    scratch: &[u8],
    buffer: *const c_char,
    room: &Outputs<u8>,
    fields: &Outputs<tollgate_http_field>,
    count: Output<'_, usize>,
) -> Result<(), tollgate_status> {
    let written = written.as_slice();
    let end = written.last().map_or(0, |field| field.end);
    if !room.copy(scratch.get(..end).unwrap_or(&[])) {
        return Err(if buffer.is_null() { TOLLGATE_ERR_NULL } else { TOLLGATE_ERR_SIZE });
    }
    for (index, field) in written.iter().enumerate() {
        fields.write(
            index,
            tollgate_http_field {
                name: field.name.as_ptr().cast(),
                name_len: field.name.len(),
                value: room.address(field.start).cast(),
                value_len: field.end - field.start,
            },
        );
    }
    count.write(written.len());
    Ok(())
}
