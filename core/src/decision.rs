//! What the gate says. A denial is an answer like any other, not an error.

use crate::time::{NEVER, Nanos};

/// The answer to one request, complete whether it was admitted or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Decision {
    /// Was the request admitted (and, unless it was a peek, charged)?
    pub allowed: bool,
    /// The sustained allowance: units per period.
    pub limit: u64,
    /// Whole units admissible now, after this request.
    pub remaining: u64,
    /// Nanoseconds until *this* cost fits, when nobody else comes: 0 when
    /// allowed, [`NEVER`] when the cost is above the burst.
    pub retry_after: Nanos,
    /// Nanoseconds until the bucket is full again, or the window empty.
    pub reset_after: Nanos,
    /// Nanoseconds that an admitted request has to wait for its turn; only a
    /// leaky bucket asks for it.
    pub delay: Nanos,
}

impl Decision {
    /// Can this cost ever be admitted under this limit?
    #[must_use]
    pub fn can_ever_fit(&self) -> bool {
        self.retry_after != NEVER
    }
}
