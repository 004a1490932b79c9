//! The rules, told to people: why a policy is or is not for a request, and
//! what a key holds. Off the request path; it allocates.
//!
//! A credential is never told: of its digest the first eight digits are.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use super::key::{Digests, ROOM, SubjectKey, digest};
use super::model::{KeyPart, PathPattern, Policy, Rules};
use super::select::{Attributes, Missing};
use crate::limit::Limit;

/// Header fields that carry credentials, whatever the rules say of them.
const CREDENTIALS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-api-key"];

/// What the rules make of one request, for one policy.
#[derive(Debug)]
pub struct Explained<'r> {
    /// The policy's place in [`Rules::policies`].
    pub place: usize,
    /// The policy.
    pub policy: &'r Policy,
    /// The conditions that the request does not meet; none if it applies.
    pub mismatches: Vec<Mismatch<'r>>,
    /// The identity that it needs and the request does not tell.
    pub missing: Option<Missing<'r>>,
    /// What it counts by; empty if the identity is missing.
    pub key: Vec<KeyField<'r>>,
    /// The limits of this subject.
    pub limits: &'r [Limit],
    /// Do they come from an override?
    pub overridden: bool,
    /// What the request costs.
    pub cost: u64,
}

/// A condition that a request does not meet.
#[derive(Clone, Copy, Debug)]
pub enum Mismatch<'r> {
    /// Another route is asked for.
    Route(&'r str),
    /// One of these methods is asked for.
    Method(&'r [String]),
    /// Another host is asked for.
    Host(&'r str),
    /// Another path is asked for.
    Path(&'r PathPattern),
    /// A header field is asked for; of this value, if there is one.
    Header(&'r str, Option<&'r str>),
    /// The default is only for requests that no policy is for.
    OthersApply,
}

impl Mismatch<'_> {
    /// In words, for the request that does not meet it.
    #[must_use]
    pub fn sentence(&self, request: &Attributes<'_>) -> String {
        let is = |what: &str, found: &[u8], asked: &str| {
            let asked = Printable(asked.as_bytes());
            match found {
                [] => format!("the {what} is not told; it is for {asked}"),
                found => format!("the {what} is {}; it is for {asked}", Printable(found)),
            }
        };
        match self {
            Mismatch::Route(asked) => is("route", request.route, asked),
            Mismatch::Method(asked) => is("method", request.method, &asked.join(", ")),
            Mismatch::Host(asked) => is("host", request.host, asked),
            Mismatch::Path(asked) => is("path", request.path, &asked.to_string()),
            Mismatch::Header(name, None) => format!("there is no header field {name}"),
            Mismatch::Header(name, Some(_)) => format!("the header field {name} is not what it asks for"),
            Mismatch::OthersApply => "it is the default, and another policy applies".into(),
        }
    }
}

/// What a policy does with a header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderUse {
    /// It counts by this field alone.
    Key,
    /// It counts by this field and others.
    PartOfKey,
    /// It is only for requests whose field is so.
    Match,
}

/// One part of a key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyField<'r> {
    /// As the rules file names it, such as `ip` or `header:x-shop`.
    pub name: Cow<'r, str>,
    /// The value.
    pub value: KeyValue,
}

/// A value of a key; its `Display` is safe for terminals and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyValue {
    /// The request does not tell it.
    Absent,
    /// All requests together.
    All,
    /// As it stands.
    Plain(Vec<u8>),
    /// An address, and how many of its bits count.
    Address(IpAddr, u8),
    /// The SHA-256 of a credential or of a long value.
    Digest([u8; 32]),
}

impl Rules {
    /// What every policy makes of a request, in file order.
    #[must_use]
    pub fn explain<'r>(&'r self, request: &Attributes<'_>) -> Vec<Explained<'r>> {
        let mut matched = false;
        let mut all = Vec::with_capacity(self.policies.len());
        for (place, policy) in self.policies.iter().enumerate() {
            let is_default = self.has_default && place + 1 == self.policies.len();
            let mismatches = match is_default {
                true if matched => Vec::from([Mismatch::OthersApply]),
                true => Vec::new(),
                false => self.mismatches(policy, request),
            };
            matched |= mismatches.is_empty();
            let mut room = [0; ROOM];
            let mut subject = SubjectKey::new(&mut room);
            let told = self.put_subject(&mut subject, policy, request, &mut Digests::default());
            let (subject, missing) = match told {
                Ok(()) => (Some(subject), None),
                Err(missing) => (None, Some(missing)),
            };
            let found = subject.as_ref().and_then(|subject| policy.overrides.find(subject.as_slice()));
            all.push(Explained {
                place,
                policy,
                mismatches,
                missing,
                key: subject
                    .map(|subject| self.subject_fields(policy, subject.as_slice()))
                    .unwrap_or_default(),
                limits: found.unwrap_or(&policy.limits),
                overridden: found.is_some(),
                cost: policy.cost.of(request),
            });
        }
        all
    }

    /// What the key of a [`Layer`](super::Layer) of that policy holds.
    #[must_use]
    pub fn key_fields(&self, policy: usize, key: &[u8]) -> Vec<KeyField<'_>> {
        // Behind the policy's name and the number of the limit.
        let subject = value(key).and_then(|(_, rest)| value(rest)).map_or(&[][..], |(_, rest)| rest);
        self.policies.get(policy).map(|policy| self.subject_fields(policy, subject)).unwrap_or_default()
    }

    /// The parts of a policy's key, as the rules file names them.
    pub fn key_names<'r>(&'r self, policy: &'r Policy) -> impl Iterator<Item = Cow<'r, str>> {
        policy.key.iter().map(|part| self.part_name(*part))
    }

    /// Is the last policy the default, for requests that no other is for?
    #[must_use]
    pub fn has_default(&self) -> bool {
        self.has_default
    }

    /// The header fields without which a policy counts or matches otherwise,
    /// and nobody is told. Not among them: identities that are required, what
    /// tells the cost, and the chain of proxies.
    pub fn headers_asked<'r>(&'r self, policy: &'r Policy) -> impl Iterator<Item = (&'r str, HeaderUse)> {
        let in_key = if policy.key.len() == 1 { HeaderUse::Key } else { HeaderUse::PartOfKey };
        let key = policy.key.iter().filter_map(|part| self.field_of(*part));
        let matched = policy.matcher.headers.iter().map(|(place, _)| *place);
        let all = key.map(move |place| (place, in_key)).chain(matched.map(|place| (place, HeaderUse::Match)));
        all.filter_map(|(place, used)| Some((self.headers.get(place)?.as_str(), used)))
    }

    fn field_of(&self, part: KeyPart) -> Option<usize> {
        let named = match part {
            KeyPart::ApiKey => &self.identity.api_key,
            KeyPart::User => &self.identity.user,
            KeyPart::Tenant => &self.identity.tenant,
            KeyPart::Header(place) => return Some(place),
            KeyPart::Ip | KeyPart::Route | KeyPart::Method | KeyPart::Path | KeyPart::Global => return None,
        };
        named.as_ref().filter(|named| !named.required).map(|named| named.header)
    }

    fn mismatches<'r>(&'r self, policy: &'r Policy, request: &Attributes<'_>) -> Vec<Mismatch<'r>> {
        let matcher = &policy.matcher;
        let mut all = Vec::new();
        all.extend(matcher.route.as_deref().filter(|_| !matcher.is_route(request)).map(Mismatch::Route));
        if !matcher.is_method(request) {
            all.push(Mismatch::Method(&matcher.methods));
        }
        all.extend(matcher.host.as_deref().filter(|_| !matcher.is_host(request)).map(Mismatch::Host));
        all.extend(matcher.path.as_ref().filter(|_| !matcher.is_path(request)).map(Mismatch::Path));
        for (place, asked) in &matcher.headers {
            if !super::select::is_header(request, *place, asked.as_deref()) {
                let name = self.headers.get(*place).map_or("", String::as_str);
                all.push(Mismatch::Header(name, asked.as_deref()));
            }
        }
        all
    }

    fn subject_fields<'r>(&'r self, policy: &Policy, subject: &[u8]) -> Vec<KeyField<'r>> {
        let mut rest = subject;
        let mut fields = Vec::with_capacity(policy.key.len());
        for part in &policy.key {
            let Some((bytes, behind)) = value(rest) else { break };
            rest = behind;
            fields.push(KeyField { name: self.part_name(*part), value: self.shown(*part, bytes) });
        }
        fields
    }

    fn part_name(&self, part: KeyPart) -> Cow<'_, str> {
        let name = self.name_of(part);
        match part {
            KeyPart::Header(_) => Cow::Owned(format!("header:{name}")),
            _ => Cow::Borrowed(name),
        }
    }

    fn shown(&self, part: KeyPart, bytes: Bytes<'_>) -> KeyValue {
        let plain = match bytes {
            Bytes::Digest(digest) => return KeyValue::Digest(*digest),
            Bytes::Plain(plain) => plain,
        };
        match part {
            KeyPart::Global => KeyValue::All,
            _ if plain.is_empty() => KeyValue::Absent,
            KeyPart::Ip => match (<[u8; 4]>::try_from(plain), <[u8; 16]>::try_from(plain)) {
                (Ok(v4), _) => KeyValue::Address(v4.into(), 32),
                (_, Ok(v6)) => KeyValue::Address(v6.into(), self.identity.ip.ipv6_prefix),
                _ => KeyValue::Plain(plain.into()),
            },
            KeyPart::Header(place) if self.is_credential(place) => KeyValue::Digest(digest(plain)),
            _ => KeyValue::Plain(plain.into()),
        }
    }

    /// Is the header field that tells this part one that carries credentials?
    #[cfg(feature = "redis")]
    pub(crate) fn is_secret(&self, part: KeyPart) -> bool {
        let named = match part {
            KeyPart::ApiKey => return true,
            KeyPart::User => &self.identity.user,
            KeyPart::Tenant => &self.identity.tenant,
            KeyPart::Header(place) => return self.is_credential(place),
            KeyPart::Ip | KeyPart::Route | KeyPart::Method | KeyPart::Path | KeyPart::Global => return false,
        };
        named.as_ref().is_some_and(|named| self.is_credential(named.header))
    }

    pub(super) fn is_credential(&self, place: usize) -> bool {
        let is_api_key = self.identity.api_key.as_ref().is_some_and(|named| named.header == place);
        let name = self.headers.get(place).map_or("", String::as_str);
        is_api_key || CREDENTIALS.contains(&name)
    }
}

/// One value of a key, as its bytes hold it.
#[derive(Clone, Copy)]
pub(crate) enum Bytes<'k> {
    Plain(&'k [u8]),
    Digest(&'k [u8; 32]),
}

/// The first value of a key's bytes, and what is behind it.
pub(crate) fn value(key: &[u8]) -> Option<(Bytes<'_>, &[u8])> {
    let (&len, rest) = key.split_first()?;
    if len == 0xFF {
        let (digest, rest) = rest.split_first_chunk::<32>()?;
        return Some((Bytes::Digest(digest), rest));
    }
    let (plain, rest) = rest.split_at_checked(len.into())?;
    Some((Bytes::Plain(plain), rest))
}

impl fmt::Display for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyValue::Absent => f.write_str("(none)"),
            KeyValue::All => f.write_str("(all)"),
            KeyValue::Plain(bytes) => Printable(bytes).fmt(f),
            KeyValue::Address(address @ IpAddr::V6(_), prefix) if *prefix < 128 => {
                write!(f, "{address}/{prefix}")
            }
            KeyValue::Address(address, _) => write!(f, "{address}"),
            KeyValue::Digest(digest) => {
                f.write_str("sha256:")?;
                digest.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// Bytes that somebody else wrote, shown so that no terminal obeys them:
/// whatever is no plain character of a line of text is escaped.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'b>(pub &'b [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() || is_invisible(c) {
                    write!(f, "\\u{{{:x}}}", u32::from(c))?;
                } else {
                    fmt::Write::write_char(f, c)?;
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

/// Marks that turn the direction of text, break a line, or show nothing.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{61c}' | '\u{e0000}'..='\u{e007f}')
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathPattern::Exact(path) => f.write_str(path),
            PathPattern::Below(prefix) => write!(f, "{prefix}*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Seed;
    use crate::policy::KeyRoom;
    use proptest::prelude::*;
    use std::string::ToString;

    const RULES: &str = r#"{
      "identity": { "api_key": { "header": "x-shop", "required": true }, "user": { "header": "x-user" },
                    "ip": { "ipv6_prefix": 64 } },
      "policies": [
        { "name": "a", "match": { "route": "r", "method": ["GET", "PUT"], "host": "h", "path": "/p/*",
          "header": { "x-flag": "on" } }, "key": ["user", "ip", "header:x-shop"],
          "limits": [ { "rate": "1/s" } ] },
        { "name": "b", "match": { "path": "/p/q" }, "key": ["api_key"], "limits": [ { "rate": "2/s" } ],
          "overrides": [ { "key": ["gold"], "limits": [ { "rate": "9/s" }, { "rate": "99/m" } ] } ] } ],
      "default": { "key": ["method", "path", "global"], "cost": 3, "limits": [ { "rate": "3/s" } ] } }"#;

    fn rules() -> Rules {
        Rules::parse(RULES, Seed([1, 2])).unwrap()
    }

    fn request<'a>(path: &'a [u8], headers: &'a [Option<&'a [u8]>]) -> Attributes<'a> {
        let peer = "2001:db8::7".parse().ok();
        Attributes { route: b"r", method: b"GET", host: b"H", path, peer, headers }
    }

    #[test]
    fn what_fails_is_told_and_what_is_counted_is_shown() {
        let rules = rules();
        assert_eq!(rules.headers(), ["x-shop", "x-user", "x-flag"]);
        let all = rules.explain(&request(b"/p/q", &[Some(b"gold"), Some(b"u\x1b[2J"), None]));
        assert!(matches!(all[0].mismatches[..], [Mismatch::Header("x-flag", Some("on"))]), "{:?}", all[0]);
        assert_eq!(all[1].limits.len(), 2);
        assert!(all[1].overridden && all[1].mismatches.is_empty());
        assert_eq!(all[1].key[0].value.to_string(), "sha256:24d7f03d");
        assert!(matches!(all[2].mismatches[..], [Mismatch::OthersApply]));
        let shown: Vec<_> = all[0].key.iter().map(|f| std::format!("{}={}", f.name, f.value)).collect();
        assert_eq!(shown, ["user=u\\u{1b}[2J", "ip=2001:db8::/64", "header:x-shop=sha256:24d7f03d"]);
        assert_eq!(all[2].cost, 3);
    }

    #[test]
    fn a_missing_identity_is_told() {
        let rules = rules();
        let all = rules.explain(&request(b"/p/q", &[None; 3]));
        assert_eq!(all[1].missing.map(|missing| missing.header), Some("x-shop"));
        assert!(all[1].key.is_empty());
    }

    proptest! {
        /// The explanation and the request path never differ.
        #[test]
        fn explained_is_what_is_selected(
            path in prop::sample::select(std::vec![&b"/p/q"[..], b"/p/x", b"/z"]),
            method in prop::sample::select(std::vec![&b"GET"[..], b"PUT", b"POST"]),
            key in prop::option::of(prop::sample::select(std::vec![&b"gold"[..], b"k"])),
            user in prop::option::of(prop::collection::vec(any::<u8>(), 0..80)),
            flag in any::<bool>(),
        ) {
            let rules = rules();
            let headers = [key, user.as_deref(), flag.then_some(&b"on"[..])];
            let request = Attributes { method, ..request(path, &headers) };
            let all = rules.explain(&request);
            let applying: Vec<_> = all.iter().filter(|e| e.mismatches.is_empty()).collect();
            let mut room = KeyRoom::new();
            match rules.select(&request, &mut room) {
                Err(missing) => {
                    prop_assert_eq!(applying.iter().find_map(|e| e.missing), Some(missing));
                }
                Ok(selection) => {
                    let told: Vec<_> = applying
                        .iter()
                        .flat_map(|e| e.limits.iter().map(|limit| (e.place, limit.to_string(), e.cost, e.overridden)))
                        .collect();
                    let selected: Vec<_> = selection
                        .layers()
                        .map(|l| (l.policy, l.limit.to_string(), l.cost, l.overridden))
                        .collect();
                    prop_assert_eq!(told, selected);
                    for layer in selection.layers() {
                        prop_assert_eq!(&rules.key_fields(layer.policy, layer.key()), &all[layer.policy].key);
                    }
                }
            }
        }

        #[test]
        fn no_bytes_panic_as_a_key(key in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = rules().key_fields(0, &key);
            let shown = Printable(&key).to_string();
            prop_assert!(!shown.chars().any(char::is_control));
        }
    }
}
