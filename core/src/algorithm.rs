//! The six algorithms, one file each, all of the same shape:
//! `(state, &Limit, now, cost) -> (state, Decision)`.
//!
//! They are pure. A state that comes back unchanged need not be stored: a
//! denial changes nothing, and a cost of 0 reads without taking. Where the
//! state lives, and how many threads and processes share it, is the business
//! of [`Bucket`](crate::Bucket) and [`Table`](crate::Table).
//!
//! Their clock does not step back: whoever keeps the state also keeps the
//! latest instant at which it was charged, and asks with the later of that
//! and its clock, as [`Bucket`](crate::Bucket) and [`Table`](crate::Table) do.
//! One that steps back all the same is safe: it finds less, never more.
//!
//! The exact answers of all of them are defined by the vectors in
//! `tests/vectors`, made with rational numbers.

pub mod concurrency;
pub mod fixed_window;
pub mod leaky_bucket;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;
