//! A subject under a penalty is not asked about: it waits. But what it is told
//! to wait must be enough for its limits, too, or it would be denied again,
//! and longer, although it did as it was told. So its limits are looked at,
//! where that takes no call: in memory, in a store that is near, or, as that
//! is away, in what this machine counts.

use super::super::key;
use super::super::lease::Spend;
use super::super::script::Ask;
use super::asks;
use super::begin::mixed;
use super::{Host, Store};
use crate::decision::Decision;
use crate::limiter::MAX_LAYERS;
use crate::local::LocalStore;
use crate::policy::check::Asked;
use crate::policy::{Layer, Outcome, Rules, Selection};
use crate::time::Nanos;

impl Store {
    /// Lengthens what the subjects of these layers are told to wait.
    pub(super) fn wait_for_limits(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        remote: u16,
        asked: &mut Asked<'_, dyn LocalStore + '_>,
        host: &mut Host<'_, '_>,
    ) {
        for (first, layer) in selection.layers().enumerate() {
            let is_blocked = asked.answer.outcomes.get(first) == Some(&Outcome::Denied);
            if layer.index > 0 || remote >> first & 1 == 0 || !is_blocked {
                continue;
            }
            let members = selection.layers().skip(first).take_while(|next| next.policy == layer.policy);
            let wait = self.wait_of(rules, layer, members, host);
            if let Some(decision) = asked.answer.decisions.get_mut(first) {
                let retry_after = decision.retry_after.max(wait);
                let reset_after = decision.reset_after.max(retry_after);
                *decision = Decision { retry_after, reset_after, ..*decision };
            }
        }
    }

    /// How long until all limits of a policy have room; 0 if that is now, or
    /// not known.
    fn wait_of<'l>(
        &mut self,
        rules: &Rules,
        layer: &Layer<'_>,
        members: impl Iterator<Item = &'l Layer<'l>> + Clone,
        host: &mut Host<'_, '_>,
    ) -> Nanos {
        let is_divided = rules.policies().get(layer.policy).is_some_and(|policy| policy.shards() > 1);
        if is_divided {
            return 0; // any piece may have room
        }
        let pot = members.clone().fold(self.hash.fingerprint(layer.key()).0, mixed).max(1);
        match self.leases.peek(pot, layer.cost, host.now) {
            Spend::Taken { .. } => 0,
            Spend::Denied { until, .. } => until.saturating_sub(host.now),
            Spend::Ask => {
                let limits = members.map(|layer| layer.limit);
                let wait = |asks: &[Ask<'_>]| host.transport.peek(asks, layer.cost, host.now);
                let wait = asks::with::<MAX_LAYERS, _>(&key::base(rules, layer), None, limits, wait);
                let alone = || {
                    host.table
                        .peek_fingerprint(
                            host.table.fingerprint(layer.key()),
                            layer.limit,
                            layer.cost,
                            host.now,
                        )
                        .retry_after
                };
                wait.flatten().unwrap_or_else(alone)
            }
        }
    }
}
