//! What a document asks for and does not get: settings that are read and
//! checked, so that documents can be written for them, and have no effect yet.

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec::Vec;
use core::fmt;

use super::model::{OnStoreError, Policy, Rules, Store};
use super::parse::DEFAULT_TIMEOUT;

/// A setting without effect. Its `Display` is one line, such as `policy
/// daily: counted on this machine; store redis is not available yet`.
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
    /// What the document asks for and does not get, in file order. Allocates.
    pub fn notices(&self) -> impl Iterator<Item = Notice<'_>> {
        self.policies.iter().flat_map(Policy::notices)
    }
}

impl Policy {
    /// Those of this policy.
    pub fn notices(&self) -> impl Iterator<Item = Notice<'_>> {
        let store = (self.store == Store::Redis)
            .then_some(Cow::Borrowed("counted on this machine; store redis is not available yet"));
        let told = [store, self.of_the_store()];
        told.into_iter().flatten().map(|sentence| Notice { policy: &self.name, sentence })
    }

    /// Settings of a store that other machines share; a default asks for nothing.
    fn of_the_store(&self) -> Option<Cow<'static, str>> {
        let given = [
            ("on_store_error", self.on_store_error != OnStoreError::Local),
            ("timeout", self.timeout != DEFAULT_TIMEOUT),
            ("lease", self.lease.is_some()),
            ("shards", self.shards != 1),
        ];
        let names: Vec<_> = given.into_iter().filter_map(|(name, is)| is.then_some(name)).collect();
        let verb = if names.len() == 1 { "has" } else { "have" };
        (!names.is_empty()).then(|| Cow::Owned(format!("{} {verb} no effect yet", names.join(", "))))
    }
}

impl fmt::Display for Notice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy {}: {}", self.policy, self.sentence)
    }
}
