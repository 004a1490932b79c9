//! Status codes and versions.

use core::ffi::{CStr, c_char};

/// 0 is success, a negative number an error; no number is ever reused. See
/// tollgate_status_str.
pub type tollgate_status = i32;

/// Success.
pub const TOLLGATE_OK: tollgate_status = 0;
/// A required pointer is NULL.
pub const TOLLGATE_ERR_NULL: tollgate_status = -1;
/// A value is not legal: an unknown number, a wrong struct_size, a reserved
/// field that is not 0, or an object that was never initialised.
pub const TOLLGATE_ERR_ARGUMENT: tollgate_status = -2;
/// A number is outside its legal range.
pub const TOLLGATE_ERR_RANGE: tollgate_status = -3;
/// The text cannot be read.
pub const TOLLGATE_ERR_PARSE: tollgate_status = -4;
/// A pointer is not aligned as its type or layout asks.
pub const TOLLGATE_ERR_ALIGN: tollgate_status = -5;
/// The memory or buffer is too small.
pub const TOLLGATE_ERR_SIZE: tollgate_status = -6;
/// The memory holds no table or bucket, or one of another layout or
/// configuration.
pub const TOLLGATE_ERR_MISMATCH: tollgate_status = -7;
/// This bucket or table cannot hold this limit, or this processor has no
/// 128-bit compare-and-swap.
pub const TOLLGATE_ERR_UNSUPPORTED: tollgate_status = -8;

/// The version of the binary interface that this header describes.
pub const TOLLGATE_ABI_VERSION: u32 = 1;

/// The `retry_after_ns` of a cost that can never fit.
pub const TOLLGATE_NEVER: u64 = u64::MAX;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The binary interface of the library that is linked; compare it with
/// TOLLGATE_ABI_VERSION. Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn tollgate_abi_version() -> u32 {
    TOLLGATE_ABI_VERSION
}

/// The version of the library, such as "0.1.0"; static. Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn tollgate_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// What a status means, in English; static, never NULL. Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn tollgate_status_str(status: tollgate_status) -> *const c_char {
    describe(status).as_ptr()
}

pub(crate) fn describe(status: tollgate_status) -> &'static CStr {
    match status {
        TOLLGATE_OK => c"ok",
        TOLLGATE_ERR_NULL => c"a required pointer is NULL",
        TOLLGATE_ERR_ARGUMENT => c"a value is not legal, or an object was not initialised",
        TOLLGATE_ERR_RANGE => c"a number is outside its legal range",
        TOLLGATE_ERR_PARSE => c"the text cannot be read",
        TOLLGATE_ERR_ALIGN => c"a pointer is not aligned as its type or layout asks",
        TOLLGATE_ERR_SIZE => c"the memory or buffer is too small",
        TOLLGATE_ERR_MISMATCH => c"the memory holds another layout or configuration",
        TOLLGATE_ERR_UNSUPPORTED => c"this store or processor cannot hold this limit",
        _ => c"unknown status",
    }
}

/// Runs the body of an extern function and turns its result into a status.
pub(crate) fn run(body: impl FnOnce() -> Result<(), tollgate_status>) -> tollgate_status {
    match body() {
        Ok(()) => TOLLGATE_OK,
        Err(status) => status,
    }
}
