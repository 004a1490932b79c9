//! What the rules' answers mean to metrics: which policy admitted, which
//! denied, and whom.

use core::fmt::{self, Write};
use core::net::IpAddr;

use super::check::{Answer, Outcome};
use super::explain::{Bytes, value};
use super::key::digest;
use super::model::{KeyPart, Rules};
use super::select::{Layer, Selection};
use crate::decision::Decision;
use crate::local::LocalStore;
use crate::metrics::{Counters, Label, TopKeys};

/// Counts an answer: `counters[i]` is of policy `i` of [`Rules::policies`],
/// and each key that was denied is counted in `top`.
///
/// A policy counts a request once, whichever of its limits decided: as denied
/// when one of them denied, and not at all when another policy did. Threads
/// and processes may call it at the same time.
pub fn record<const K: usize, T: LocalStore + ?Sized>(
    rules: &Rules,
    table: &T,
    selection: &Selection<'_>,
    answer: &Answer,
    counters: &[Counters],
    top: Option<&TopKeys<K>>,
) {
    if let (Some(layer), 1) = (selection.layer(0), selection.len()) {
        let (Some(decision), Some(&outcome)) = (answer.decisions().first(), answer.outcomes().first()) else {
            return;
        };
        count_key(rules, table, layer, outcome, top);
        if outcome != Outcome::Spared {
            count(rules, layer, decision, counters);
        }
    } else {
        record_several(rules, table, selection, answer, counters, top);
    }
}

fn count_key<const K: usize, T: LocalStore + ?Sized>(
    rules: &Rules,
    table: &T,
    layer: &Layer<'_>,
    outcome: Outcome,
    top: Option<&TopKeys<K>>,
) {
    if let (Outcome::Denied, Some(top)) = (outcome, top) {
        top.record(table.fingerprint(layer.key()), || label(rules, layer));
    }
}

fn count(rules: &Rules, layer: &Layer<'_>, decision: &Decision, counters: &[Counters]) {
    if let (Some(counters), Some(policy)) = (counters.get(layer.policy), rules.policies().get(layer.policy)) {
        counters.record(decision, policy.dry_run());
    }
}

#[inline(never)]
fn record_several<const K: usize, T: LocalStore + ?Sized>(
    rules: &Rules,
    table: &T,
    selection: &Selection<'_>,
    answer: &Answer,
    counters: &[Counters],
    top: Option<&TopKeys<K>>,
) {
    let layers = || selection.layers().zip(answer.decisions()).zip(answer.outcomes());
    for ((layer, decision), &outcome) in layers() {
        count_key(rules, table, layer, outcome, top);
        let same = || layers().filter(|((other, _), _)| other.policy == layer.policy);
        let deciding = |outcome: Outcome| matches!(outcome, Outcome::Denied | Outcome::WouldDeny);
        let decides = if deciding(outcome) {
            // The first that denies stands for the policy.
            same()
                .find(|(_, other)| deciding(**other))
                .is_some_and(|((first, _), _)| first.index == layer.index)
        } else {
            let longest = same().map(|((_, decision), _)| decision.delay).max();
            outcome == Outcome::Admitted
                && !same().any(|(_, other)| *other != Outcome::Admitted)
                && same()
                    .find(|((_, d), _)| Some(d.delay) == longest)
                    .is_some_and(|((l, _), _)| l.index == layer.index)
        };
        if decides {
            count(rules, layer, decision, counters);
        }
    }
}

/// What a layer counts, for people: the policy's name, then each part of its
/// key. Credentials and long values are told by the first bytes of their
/// SHA-256; what is not printable is escaped. At most [`Label::SIZE`] bytes.
#[must_use]
pub fn label(rules: &Rules, layer: &Layer<'_>) -> Label {
    let Some(policy) = rules.policies().get(layer.policy) else { return Label::default() };
    let mut label = Label::new(policy.name());
    // Behind the policy's name and the number of the limit.
    let behind = value(layer.key()).and_then(|(_, rest)| value(rest));
    let mut rest = behind.map_or(&[][..], |(_, rest)| rest);
    let mut first = true;
    for part in &policy.key {
        let Some((bytes, behind)) = value(rest) else { break };
        rest = behind;
        let comma = if first { "" } else { "," };
        first = false;
        let written = write!(label, "{comma}{}=", rules.name_of(*part)).and_then(|()| match (part, bytes) {
            (_, Bytes::Digest(digest)) => short(&mut label, digest),
            (KeyPart::Global, _) => label.write_str("all"),
            (_, Bytes::Plain([])) => label.write_str("(none)"),
            (KeyPart::Ip, Bytes::Plain(address)) => rules.write_address(&mut label, address),
            (KeyPart::Header(place), Bytes::Plain(plain)) if rules.is_credential(*place) => {
                short(&mut label, &digest(plain))
            }
            (_, Bytes::Plain(plain)) => {
                label.push_bytes(plain);
                Ok(())
            }
        });
        let _ = written; // a label takes what fits
    }
    label
}

fn short(label: &mut Label, digest: &[u8; 32]) -> fmt::Result {
    label.write_str("sha256:")?;
    digest.iter().take(4).try_for_each(|byte| write!(label, "{byte:02x}"))
}

impl Rules {
    /// The word for a part of a key; of a header field its name.
    pub(super) fn name_of(&self, part: KeyPart) -> &str {
        match part {
            KeyPart::ApiKey => "api_key",
            KeyPart::User => "user",
            KeyPart::Ip => "ip",
            KeyPart::Tenant => "tenant",
            KeyPart::Route => "route",
            KeyPart::Method => "method",
            KeyPart::Path => "path",
            KeyPart::Global => "global",
            KeyPart::Header(place) => self.headers.get(place).map_or("", |name| name.as_str()),
        }
    }

    fn write_address(&self, label: &mut Label, bytes: &[u8]) -> fmt::Result {
        match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
            (Ok(v4), _) => write!(label, "{}", IpAddr::from(v4)),
            (_, Ok(v6)) => write!(label, "{}/{}", IpAddr::from(v6), self.identity.ip.ipv6_prefix),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Seed;
    use crate::policy::{Attributes, KeyRoom};
    use proptest::prelude::*;
    use std::vec::Vec;

    const RULES: &str = r#"{
      "identity": { "api_key": { "header": "x-key" }, "user": { "header": "x-user" } },
      "policies": [
        { "name": "a", "key": ["api_key", "user", "ip", "header:authorization"],
          "limits": [ { "rate": "2/s" }, { "rate": "1000/d" } ] },
        { "name": "dry", "dry_run": true, "limits": [ { "rate": "1/s" }, { "rate": "1/m" } ] },
        { "name": "slow", "limits": [ { "rate": "100/s" }, { "algorithm": "leaky_bucket", "rate": "10/s" } ] } ] }"#;

    fn request<'a>(headers: &'a [Option<&'a [u8]>]) -> Attributes<'a> {
        let peer = "2001:db8::7".parse().ok();
        Attributes { route: b"", method: b"GET", host: b"h", path: b"/", peer, headers }
    }

    proptest! {
        #[test]
        fn no_value_tells_a_credential_or_a_control_character(
            values in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..100)), 3),
        ) {
            let rules = Rules::parse(RULES, Seed([1, 2])).unwrap();
            let headers: Vec<_> = values.iter().map(|v| v.as_deref()).collect();
            let mut room = KeyRoom::new();
            let selection = rules.select(&request(&headers), &mut room).unwrap();
            for layer in selection.layers() {
                let label = label(&rules, layer);
                prop_assert!(!label.as_str().chars().any(char::is_control));
                prop_assert_eq!(label.name(), rules.policies()[layer.policy].name());
            }
        }
    }
}
