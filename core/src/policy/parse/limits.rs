//! The numbers of a policy: limits, the rows that override them, costs,
//! leases and penalties.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::{Compiler, field, item};
use crate::limit::{Algorithm, Anchor, Limit, MAX_LIMIT};
use crate::limiter::MAX_LAYERS;
use crate::policy::identity::parse_network;
use crate::policy::json::Node;
use crate::policy::key::{ROOM, SubjectKey, digest};
use crate::policy::model::{AddressRules, Cost, KeyPart, Lease, Penalty};
use crate::policy::overrides::Overrides;
use crate::time::SECOND;

impl<'d> Compiler<'_, 'd> {
    pub(super) fn limits(&mut self, node: Node<'d, '_>) -> Option<Vec<Limit>> {
        let items = self.reader.array(node)?;
        if items.is_empty() || items.len() > MAX_LAYERS {
            self.reader.fail(node, format!("expected 1 to {MAX_LAYERS} limits"));
            return None;
        }
        let mut limits = Vec::with_capacity(items.len());
        let mut all = true;
        for (index, text) in items.into_iter().enumerate() {
            match self.limit(item(&node.path, index, text)) {
                Some(limit) => limits.push(limit),
                None => all = false,
            }
        }
        all.then_some(limits)
    }

    fn limit(&mut self, node: Node<'d, '_>) -> Option<Limit> {
        let mut object = self.reader.object(node)?;
        let at = object.path();
        let names = Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm));
        let algorithm = self.choice(&mut object, "algorithm", &names).unwrap_or(Algorithm::TokenBucket);
        let anchors = [("clock", Anchor::Clock), ("first_request", Anchor::FirstRequest)];
        let anchor = self.choice(&mut object, "anchor", &anchors);
        let burst = object.take("burst").map(|text| field(&at, "burst", text));
        let burst_units = burst.and_then(|node| self.reader.number(node, 1, MAX_LIMIT));
        let rate = self.reader.required(&mut object, "rate").map(|text| field(&at, "rate", text));
        self.reader.end(&object);
        let rate = rate?;
        let text = self.reader.string(rate)?;
        if text.contains(' ') {
            self.reader.fail(
                rate,
                "expected units/period and no more, such as 100/s; \"algorithm\", \"burst\" and \"anchor\" \
                 are fields of their own",
            );
            return None;
        }
        let limit = match Limit::parse(&text, algorithm) {
            Ok(limit) => limit,
            Err(error) => {
                self.reader.fail(rate, error.to_string());
                return None;
            }
        };
        if limit.anchor() == Anchor::CalendarMonth && self.unix_at_zero.is_none() {
            self.reader
                .fail(rate, "this program does not know the time of day, and so not when a month begins");
            return None;
        }
        let limit = limit.with_unix_at_zero(self.unix_at_zero.unwrap_or(0));
        let limit = match burst_units {
            Some(units) => limit.with_burst(units),
            None => Ok(limit),
        };
        let limit = limit.and_then(|limit| anchor.map_or(Ok(limit), |anchor| limit.with_anchor(anchor)));
        match limit {
            Ok(limit) => Some(limit),
            Err(error) => {
                self.reader.fail(burst.unwrap_or(node), error.to_string());
                None
            }
        }
    }

    pub(super) fn overrides(
        &mut self,
        node: Node<'d, '_>,
        key: &[KeyPart],
        addresses: &AddressRules,
        overrides: &mut Overrides,
    ) {
        let items = self.reader.array(node).unwrap_or_default();
        overrides.reserve(items.len());
        for (index, text) in items.into_iter().enumerate() {
            self.override_row(item(&node.path, index, text), key, addresses, overrides);
        }
        overrides.shrink();
    }

    fn override_row(
        &mut self,
        node: Node<'d, '_>,
        key: &[KeyPart],
        addresses: &AddressRules,
        overrides: &mut Overrides,
    ) -> Option<()> {
        let mut object = self.reader.object(node)?;
        let at = object.path();
        let subject = self.reader.required(&mut object, "key").map(|text| field(&at, "key", text));
        let limits = self.reader.required(&mut object, "limits").map(|text| field(&at, "limits", text));
        self.reader.end(&object);
        let (subject, limits) = (subject?, self.limits(limits?)?);
        let items = self.reader.array(subject)?;
        if items.len() != key.len() {
            self.reader
                .fail(subject, format!("expected {} values, as the policy's key has parts", key.len()));
            return None;
        }
        let mut room = [0; ROOM];
        let mut bytes = SubjectKey::new(&mut room);
        for (index, (text, part)) in items.into_iter().zip(key).enumerate() {
            let node = item(&subject.path, index, text);
            let value = self.reader.string(node)?;
            match part {
                KeyPart::ApiKey => match api_key(&value) {
                    Some(digest) => bytes.push_digest(&digest),
                    None => {
                        self.reader.fail(node, "expected 64 hexadecimal digits after \"sha256:\"");
                        return None;
                    }
                },
                KeyPart::Ip => match parse_network(&value).filter(|network| network.is_one(addresses)) {
                    Some(network) => bytes.push_address(addresses.counted(network.address)),
                    None => {
                        let prefix = addresses.ipv6_prefix;
                        let message =
                            format!("expected an IPv4 address, or an IPv6 address or its /{prefix}");
                        self.reader.fail(node, message);
                        return None;
                    }
                },
                KeyPart::Global => bytes.push(b""),
                _ => bytes.push(value.as_bytes()),
            }
        }
        let plan = overrides.plan(limits)?;
        if !overrides.insert(bytes.as_slice(), plan) {
            self.reader.fail(subject, "this subject has a row already");
        }
        Some(())
    }

    pub(super) fn cost(&mut self, node: Node<'d, '_>) -> Option<Cost> {
        if !node.text.starts_with('{') {
            return self.reader.number(node, 0, MAX_LIMIT).map(Cost::Fixed);
        }
        let mut object = self.reader.object(node)?;
        let at = object.path();
        let header = self.reader.required(&mut object, "header");
        let header = header.and_then(|text| self.header(field(&at, "header", text)));
        let max = self.reader.required(&mut object, "max");
        let max = max.and_then(|text| self.reader.number(field(&at, "max", text), 1, MAX_LIMIT));
        let default =
            object.take("default").and_then(|t| self.reader.number(field(&at, "default", t), 0, MAX_LIMIT));
        self.reader.end(&object);
        Some(Cost::Header { header: header?, max: max?, default: default.unwrap_or(1) })
    }

    pub(super) fn lease(&mut self, node: Node<'d, '_>) -> Option<Lease> {
        let mut object = self.reader.object(node)?;
        let at = object.path();
        let max = self.reader.required(&mut object, "max");
        let max = max.and_then(|text| self.reader.number(field(&at, "max", text), 1, MAX_LIMIT));
        let ttl = self.span(&mut object, "ttl", 1_000_000, 3600 * SECOND).unwrap_or(SECOND);
        self.reader.end(&object);
        Some(Lease { max: max?, ttl })
    }

    pub(super) fn penalty(&mut self, node: Node<'d, '_>) -> Option<Penalty> {
        let mut object = self.reader.object(node)?;
        let at = object.path();
        let base = self.span(&mut object, "base", 1_000_000, 86_400 * SECOND).unwrap_or(SECOND);
        let max = self.span(&mut object, "max", 1_000_000, 30 * 86_400 * SECOND).unwrap_or(900 * SECOND);
        let factor = object.take("factor").map(|text| field(&at, "factor", text));
        let factor_milli = match factor {
            None => 2_000,
            Some(node) => match serde_json::from_str::<f64>(node.text) {
                Ok(factor) if (1.0..=100.0).contains(&factor) => (factor * 1000.0 + 0.5) as u64, // at most 100,000
                _ => {
                    self.reader.fail(node, "expected a number from 1 to 100");
                    2_000
                }
            },
        };
        if base > max {
            self.reader.fail(node, "\"base\" is longer than \"max\"");
        }
        self.reader.end(&object);
        Some(Penalty { base, factor_milli, max })
    }
}

/// An API key as an override names it: in the clear, or as `sha256:` and 64
/// hexadecimal digits, so that rules files need not hold the keys themselves.
/// Nothing if what follows `sha256:` is something else.
fn api_key(value: &str) -> Option<[u8; 32]> {
    let Some(hex) = value.strip_prefix("sha256:") else { return Some(digest(value.as_bytes())) };
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(index * 2..index * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}
