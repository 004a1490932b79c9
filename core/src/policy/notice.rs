//! What a document asks for and does not get here: settings that are legal and
//! have no effect.

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec::Vec;
use core::fmt;

use super::model::{OnStoreError, Policy, Rules, Store};
use super::parse::DEFAULT_TIMEOUT;
use crate::limit::Algorithm;

/// A setting without effect. Its `Display` is one line, such as `policy
/// daily: counted on this machine, as this host has no Redis`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice<'r> {
    /// The policy's name.
    pub policy: &'r str,
    /// What its reader should know, of printable ASCII.
    pub sentence: Cow<'static, str>,
}

/// The longest line of a notice, in bytes.
pub const MAX_NOTICE: usize = 160;

impl Rules {
    /// What the document asks for and does not get, in file order, from a host
    /// with a store or without. Allocates.
    pub fn notices(&self, has_store: bool) -> impl Iterator<Item = Notice<'_>> {
        self.policies.iter().flat_map(move |policy| policy.notices(has_store))
    }
}

impl Policy {
    /// Those of this policy.
    pub fn notices(&self, has_store: bool) -> impl Iterator<Item = Notice<'_>> {
        let told = match (self.store, has_store) {
            (Store::Local, _) => self.of_the_store(),
            (Store::Redis, false) => {
                Some(Cow::Borrowed("counted on this machine, as this host has no Redis"))
            }
            (Store::Redis, true) => self.without_lease(),
        };
        told.into_iter().map(|sentence| Notice { policy: &self.name, sentence })
    }

    /// Settings of a store that other machines share; a default asks for nothing.
    fn of_the_store(&self) -> Option<Cow<'static, str>> {
        let given = [
            ("on_store_error", self.on_store_error != OnStoreError::Local),
            ("timeout", self.timeout() != DEFAULT_TIMEOUT),
            ("lease", self.lease.is_some()),
            ("shards", self.shards != 1),
        ];
        let names: Vec<_> = given.into_iter().filter_map(|(name, is)| is.then_some(name)).collect();
        let verb = if names.len() == 1 { "has" } else { "have" };
        (!names.is_empty())
            .then(|| Cow::Owned(format!("{} {verb} no effect with store local", names.join(", "))))
    }

    /// A queue's places and units in flight are not fetched ahead.
    fn without_lease(&self) -> Option<Cow<'static, str>> {
        let is_not = |algorithm| matches!(algorithm, Algorithm::LeakyBucket | Algorithm::Concurrency);
        let limit = self.all_limits().find(|limit| is_not(limit.algorithm()))?;
        self.lease.map(|_| {
            Cow::Owned(format!("lease has no effect where a limit is a {}", limit.algorithm().name()))
        })
    }
}

impl fmt::Display for Notice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy {}: {}", self.policy, self.sentence)
    }
}
