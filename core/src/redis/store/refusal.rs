//! What cannot be counted in the store as a rules file asks.

use super::super::script;
use super::super::share::{self, Piece, Share};
use super::{StoreConfig, is_remote};
use crate::limit::Limit;
use crate::policy::{OnStoreError, Policy, Rules};

/// A limit that cannot be counted in the store as it should be.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'r> {
    /// The policy's place in [`Rules::policies`].
    pub place: usize,
    /// Its name.
    pub policy: &'r str,
    /// The limit.
    pub limit: &'r Limit,
    /// Why.
    pub why: RefusalReason,
}

/// Why a limit is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    /// A script cannot count it exactly.
    #[error("{0}")]
    Script(#[from] script::Refused),
    /// It cannot be divided exactly.
    #[error("{0}")]
    Share(#[from] share::ShareError),
    /// A part of it, a region's or a shard's, is less than one unit.
    #[error("a part of it is less than one unit; divide it by less")]
    Empty,
}

impl core::fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "policy {}: {}: {}", self.policy, self.limit, self.why)
    }
}

/// The limit of a policy that is refused, and why.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{limit}: {why}")]
pub struct Uncountable<'r> {
    /// The limit.
    pub limit: &'r Limit,
    /// Why.
    pub why: RefusalReason,
}

/// Can the store count every limit that is to be counted there, in this
/// region's part, and this machine its piece while the store is away? The
/// first limit that it cannot. Ask when rules are loaded.
#[must_use]
pub fn refusal<'r>(rules: &'r Rules, config: &StoreConfig) -> Option<Refusal<'r>> {
    let remote = rules.policies().iter().enumerate().filter(|(_, policy)| is_remote(policy));
    let mut policies = remote.map(|(place, policy)| (place, policy, accepts(policy, config)));
    policies.find_map(|(place, policy, accepted)| {
        let Uncountable { limit, why } = accepted.err()?;
        Some(Refusal { place, policy: policy.name(), limit, why })
    })
}

/// As [`refusal`], of one policy that is counted in the store.
///
/// # Errors
/// Its first limit that cannot be counted.
pub fn accepts<'r>(policy: &'r Policy, config: &StoreConfig) -> Result<(), Uncountable<'r>> {
    policy
        .all_limits()
        .try_for_each(|limit| countable(policy, limit, config).map_err(|why| Uncountable { limit, why }))
}

fn countable(policy: &Policy, limit: &Limit, config: &StoreConfig) -> Result<(), RefusalReason> {
    let whole = |piece| match piece {
        Piece::Some(limit) => Ok(limit),
        Piece::Fraction(_) | Piece::Nothing => Err(RefusalReason::Empty),
    };
    let regional = if config.region.is_whole() { *limit } else { whole(config.region.of_limit(limit)?)? };
    let pieces = u64::from(policy.shards().max(1));
    for index in [0, pieces - 1] {
        let share = Share::nth(index, pieces)?;
        let piece = if share.is_whole() { regional } else { whole(share.of_limit(&regional)?)? };
        script::accepts(&piece)?;
    }
    if policy.on_store_error() == OnStoreError::Local {
        Share::nth(0, config.instances.max(1))?.of_limit(&regional)?;
    }
    Ok(())
}
