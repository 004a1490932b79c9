//! The one file that turns C pointers into Rust references.
//!
//! Every function checks for NULL and alignment; that the pointer leads to
//! memory of the promised size, for as long as the call lasts, is the
//! caller's contract.

use core::mem::{align_of, size_of};

use tollgate_core::table::{Header, Line};

use crate::status::{
    TOLLGATE_ERR_ALIGN, TOLLGATE_ERR_ARGUMENT, TOLLGATE_ERR_NULL, TOLLGATE_ERR_SIZE, tollgate_status,
};

fn check<T>(pointer: *const T) -> Result<(), tollgate_status> {
    if pointer.is_null() {
        Err(TOLLGATE_ERR_NULL)
    } else if !pointer.is_aligned() {
        Err(TOLLGATE_ERR_ALIGN)
    } else {
        Ok(())
    }
}

/// A plain-data input.
///
/// # Safety
/// `pointer` is NULL or leads to a `T` that nobody writes during `'a`.
#[inline]
pub(crate) unsafe fn input<'a, T>(pointer: *const T) -> Result<&'a T, tollgate_status> {
    check(pointer)?;
    // SAFETY: not NULL, aligned, and the caller's to read.
    Ok(unsafe { &*pointer })
}

/// An output, checked before anything is done.
///
/// # Safety
/// `pointer` is NULL or leads to room for a `T` that is the caller's alone.
/// `T` is plain data for which all bytes are legal.
#[inline]
pub(crate) unsafe fn output<'a, T>(pointer: *mut T) -> Result<Output<'a, T>, tollgate_status> {
    check(pointer)?;
    Ok(Output { pointer, lifetime: core::marker::PhantomData })
}

/// Room for a result; written at most once, on success.
pub(crate) struct Output<'a, T> {
    pointer: *mut T,
    lifetime: core::marker::PhantomData<&'a mut T>,
}

impl<T> Output<'_, T> {
    #[inline]
    pub(crate) fn write(self, value: T) {
        // SAFETY: checked by `output`; a write does not read or drop what was there.
        unsafe { self.pointer.write(value) };
    }
}

/// An input array; NULL is legal when it is empty.
///
/// # Safety
/// As [`input`], for `len` of them.
#[inline]
pub(crate) unsafe fn inputs<'a, T>(pointer: *const T, len: usize) -> Result<&'a [T], tollgate_status> {
    if len == 0 {
        return Ok(&[]);
    }
    check(pointer)?;
    bounded::<T>(len)?;
    // SAFETY: not NULL, aligned, at most isize::MAX bytes, the caller's to read.
    Ok(unsafe { core::slice::from_raw_parts(pointer, len) })
}

/// An output array; NULL is legal when it is empty.
///
/// # Safety
/// As [`output`], for `len` of them.
#[inline]
pub(crate) unsafe fn outputs<T>(pointer: *mut T, len: usize) -> Result<Outputs<T>, tollgate_status> {
    if len > 0 {
        check(pointer)?;
        bounded::<T>(len)?;
    }
    Ok(Outputs { pointer, len })
}

/// Room for an array of results.
pub(crate) struct Outputs<T> {
    pointer: *mut T,
    len: usize,
}

impl<T> Outputs<T> {
    /// Writes one of them; places past the end are passed over.
    #[inline]
    pub(crate) fn write(&self, index: usize, value: T) {
        if index < self.len {
            // SAFETY: within the array that `outputs` checked.
            unsafe { self.pointer.add(index).write(value) };
        }
    }
}

impl Outputs<u8> {
    /// Copies bytes to the start of the room; false if they do not fit.
    pub(crate) fn copy(&self, bytes: &[u8]) -> bool {
        if bytes.len() > self.len {
            return false;
        }
        if !bytes.is_empty() {
            // SAFETY: `len` bytes are the caller's to write; `bytes` is ours, so they do not overlap.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer, bytes.len()) };
        }
        true
    }

    /// Copies bytes to the start of the room and makes of them what stays
    /// there, which is as long as is said; none if they do not fit.
    pub(crate) fn make(&self, bytes: &[u8], make: impl FnOnce(&mut [u8]) -> usize) -> Option<usize> {
        if !self.copy(bytes) {
            return None;
        }
        if bytes.is_empty() {
            return Some(0);
        }
        // SAFETY: so many bytes of the caller's room were written just now, and nobody else has them.
        Some(make(unsafe { core::slice::from_raw_parts_mut(self.pointer, bytes.len()) }))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where a byte of the room is, for pointers handed to the caller.
    pub(crate) fn address(&self, offset: usize) -> *const u8 {
        self.pointer.wrapping_add(offset)
    }
}

/// An object that the library keeps in opaque storage of the caller's, behind
/// a mark that tells it from memory that was never initialised.
#[repr(C)]
pub(crate) struct Marked<T> {
    mark: u64,
    value: T,
}

impl<T> Marked<T> {
    pub(crate) const fn new(mark: u64, value: T) -> Self {
        Marked { mark, value }
    }

    pub(crate) fn value_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// Reads the object in an opaque storage.
///
/// # Safety
/// `storage` is NULL or leads to an `S` whose bytes were all written, by
/// [`keep`] or otherwise, and which nobody writes during `'a`.
#[inline]
pub(crate) unsafe fn kept<'a, S, T>(storage: *const S, mark: u64) -> Result<&'a T, tollgate_status> {
    const { assert!(size_of::<Marked<T>>() <= size_of::<S>() && align_of::<Marked<T>>() <= align_of::<S>()) };
    check(storage)?;
    let marked = storage.cast::<Marked<T>>();
    // SAFETY: the storage is large and aligned enough (asserted above), and the
    // mark, a u64, is legal whatever its bytes are.
    if unsafe { (&raw const (*marked).mark).read() } != mark {
        return Err(TOLLGATE_ERR_ARGUMENT);
    }
    // SAFETY: only `keep` writes the mark, after the value.
    Ok(unsafe { &(*marked).value })
}

/// As [`kept`], for who owns the object.
///
/// # Safety
/// As [`kept`], and nobody else uses it during `'a`.
#[inline]
pub(crate) unsafe fn owned<'a, S, T>(storage: *mut S, mark: u64) -> Result<&'a mut T, tollgate_status> {
    // SAFETY: the caller's contract.
    unsafe { kept::<S, T>(storage, mark)? };
    // SAFETY: as `kept` found; the caller's alone.
    Ok(unsafe { &mut (*storage.cast::<Marked<T>>()).value })
}

/// Puts an object into an opaque storage.
///
/// # Safety
/// `storage` is NULL or leads to room for an `S` that is the caller's alone.
pub(crate) unsafe fn keep<S, T>(storage: *mut S, mark: u64, value: T) -> Result<(), tollgate_status> {
    const { assert!(size_of::<Marked<T>>() <= size_of::<S>() && align_of::<Marked<T>>() <= align_of::<S>()) };
    check(storage.cast_const())?;
    // SAFETY: room enough, aligned, and the caller's alone.
    unsafe { storage.cast::<Marked<T>>().write(Marked::new(mark, value)) };
    Ok(())
}

/// The bytes before and after an aligned cut: a table's header and lines.
///
/// # Safety
/// `memory` is NULL or leads to `size` bytes that hold zeros, a table, or
/// anything else, and are shared only by atomic access for `'m`.
pub(crate) unsafe fn table_parts<'m>(
    memory: *mut u8,
    size: usize,
) -> Result<(&'m Header, &'m [Line]), tollgate_status> {
    check(memory)?;
    if !memory.cast::<Line>().is_aligned() {
        return Err(TOLLGATE_ERR_ALIGN);
    }
    bounded::<u8>(size)?;
    let rest = size.checked_sub(size_of::<Header>()).ok_or(TOLLGATE_ERR_SIZE)?;
    // SAFETY: aligned to 64; both types are made of atomics only, for which
    // every byte is legal and shared access is sound; within `size`.
    unsafe {
        let lines = memory.add(size_of::<Header>()).cast::<Line>();
        Ok((&*memory.cast::<Header>(), core::slice::from_raw_parts(lines, rest / size_of::<Line>())))
    }
}

/// Zeros the first `needed` of `size` bytes, so that all of them are written before anything reads
/// them: what an allocator gives may never have been. Memory that is zero already is only checked
/// for its size.
///
/// # Safety
/// `memory` is NULL or leads to `size` bytes that are the caller's alone.
pub(crate) unsafe fn zero(
    memory: *mut u8,
    size: usize,
    needed: usize,
    is_zero: bool,
) -> Result<(), tollgate_status> {
    check(memory.cast::<Line>())?;
    bounded::<u8>(size)?;
    if size < needed {
        return Err(TOLLGATE_ERR_SIZE);
    }
    if !is_zero {
        // SAFETY: not NULL, and the caller's alone.
        unsafe { memory.write_bytes(0, needed) };
    }
    Ok(())
}

/// Lines of slots in caller memory.
///
/// # Safety
/// As [`table_parts`].
pub(crate) unsafe fn lines<'m>(memory: *mut u8, count: usize) -> Result<&'m [Line], tollgate_status> {
    check(memory.cast::<Line>())?;
    bounded::<Line>(count)?;
    // SAFETY: as in `table_parts`.
    Ok(unsafe { core::slice::from_raw_parts(memory.cast::<Line>(), count) })
}

fn bounded<T>(len: usize) -> Result<(), tollgate_status> {
    let bytes = len.checked_mul(size_of::<T>()).ok_or(TOLLGATE_ERR_SIZE)?;
    isize::try_from(bytes).map(|_| ()).map_err(|_| TOLLGATE_ERR_SIZE)
}

/// Puts an object into memory of the library's own, for C to hold.
pub(crate) fn give<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Takes back what [`give`] gave, and drops it.
///
/// # Safety
/// `pointer` comes from [`give`], nobody else uses it, and it was not taken.
pub(crate) unsafe fn take<T>(pointer: *mut T) {
    // SAFETY: the caller's contract.
    drop(unsafe { Box::from_raw(pointer) });
}
