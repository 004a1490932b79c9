//! From a document to [`Rules`]: everything that is wrong is told at once, and
//! a document with any error gives no rules.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::identity::parse_network;
use super::json::{Node, Object, Path, Reader, RuleError};
use super::model::{
    AddressRules, Cost, Forwarding, Identity, KeyPart, Matcher, Named, OnStoreError, PathPattern, Policy,
    Rules, Store,
};
use super::overrides::Overrides;
use crate::http::Family;
use crate::key::Seed;
use crate::limit::parse_period;
use crate::time::{Nanos, SECOND};

/// The longest document: 256 MiB.
pub const MAX_DOCUMENT: usize = 256 << 20;
/// The longest policy name.
pub const MAX_NAME: usize = 64;
/// The most policies, beside the default.
pub const MAX_POLICIES: usize = 1024;
/// The most header fields that a document may name.
pub const MAX_HEADERS: usize = 64;
/// The most parts of one key.
pub const MAX_KEY_PARTS: usize = 8;

/// How long a store may take, where a policy does not say.
pub const DEFAULT_TIMEOUT: Nanos = 5_000_000;

const KEY_PARTS: &str = "api_key, user, ip, tenant, route, method, path, header:<name>, global";
const METHOD: &str = "an HTTP method in capital letters";
const NETWORK: &str = "an address or a network such as 10.0.0.0/8 (/0 to /32) or 2001:db8::/32 (/0 to /128)";

impl Rules {
    /// Reads and compiles a rules document. `seed` is a secret of this
    /// process, for its own look-ups.
    ///
    /// # Errors
    /// All that is wrong, up to 100 errors in document order of their checks.
    /// A limit by the calendar month is, as nothing is known of the clock:
    /// see [`parse_at`](Self::parse_at).
    ///
    /// ```
    /// use tollgate_core::key::Seed;
    /// use tollgate_core::policy::Rules;
    ///
    /// let rules = Rules::parse(
    ///     r#"{ "policies": [ { "name": "all", "key": ["ip"], "limits": [ { "rate": "10/s" } ] } ] }"#,
    ///     Seed([1, 2]),
    /// ).unwrap();
    /// assert_eq!(rules.policies()[0].name(), "all");
    ///
    /// let errors = Rules::parse(r#"{ "policys": [] }"#, Seed([1, 2])).unwrap_err();
    /// assert!(errors[0].to_string().starts_with("line 1, column 14: policys: unknown field"));
    /// ```
    pub fn parse(text: &str, seed: Seed) -> Result<Rules, Vec<RuleError>> {
        Self::compile(text, seed, None, &|_| Ok(()))
    }

    /// As [`parse`](Self::parse), for a host that knows the UNIX time, in
    /// nanoseconds, at its clock's zero: that of now less what the clock shows
    /// now. Limits by the calendar month need it, and no others.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse).
    pub fn parse_at(text: &str, seed: Seed, unix_at_zero: Nanos) -> Result<Rules, Vec<RuleError>> {
        Self::compile(text, seed, Some(unix_at_zero), &|_| Ok(()))
    }

    /// As [`parse_at`](Self::parse_at), for a host that cannot count whatever
    /// the format allows: `accepts` says of a policy why not, and that is an
    /// error at the policy.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse), and those.
    pub fn parse_for(
        text: &str,
        seed: Seed,
        unix_at_zero: Nanos,
        accepts: &Accepts<'_>,
    ) -> Result<Rules, Vec<RuleError>> {
        Self::compile(text, seed, Some(unix_at_zero), accepts)
    }

    fn compile(
        text: &str,
        seed: Seed,
        unix_at_zero: Option<Nanos>,
        accepts: &Accepts<'_>,
    ) -> Result<Rules, Vec<RuleError>> {
        let mut reader = Reader::new(text);
        let Some(root) = reader.root() else { return Err(reader.finish()) };
        let rules = compile(&mut reader, root, seed, unix_at_zero, accepts);
        match rules {
            Some(rules) if reader.is_clean() => Ok(rules),
            _ => Err(reader.finish()),
        }
    }
}

mod limits;

/// Why a host cannot count a policy, with what it could.
pub type Accepts<'a> = dyn Fn(&Policy) -> Result<(), String> + 'a;

/// The rules at this place of a document.
pub(super) fn compile<'d>(
    reader: &mut Reader<'d>,
    root: Node<'d, '_>,
    seed: Seed,
    unix_at_zero: Option<Nanos>,
    accepts: &Accepts<'_>,
) -> Option<Rules> {
    Compiler { reader, headers: Vec::new(), seed, unix_at_zero, accepts }.rules(root)
}

struct Compiler<'r, 'd> {
    reader: &'r mut Reader<'d>,
    headers: Vec<String>,
    seed: Seed,
    unix_at_zero: Option<Nanos>,
    accepts: &'r Accepts<'r>,
}

/// A child of a path; not inlined, as it is built for each field.
#[inline(never)]
pub(super) fn field<'d, 'p>(path: &'p Path<'p>, name: &'p str, text: &'d str) -> Node<'d, 'p> {
    Node { text, path: Path::Field(path, name) }
}

fn item<'d, 'p>(path: &'p Path<'p>, index: usize, text: &'d str) -> Node<'d, 'p> {
    Node { text, path: Path::Index(path, index) }
}

impl<'d> Compiler<'_, 'd> {
    fn rules(mut self, root: Node<'d, '_>) -> Option<Rules> {
        let mut object = self.reader.object(root)?;
        let at = object.path();
        if let Some(text) = object.take("$schema") {
            self.reader.string(field(&at, "$schema", text)); // for editors
        }
        let identity = object.take("identity").and_then(|text| self.identity(field(&at, "identity", text)));
        let identity = identity.unwrap_or_default();
        let fields = object.take("headers").and_then(|text| self.family(field(&at, "headers", text)));
        let status = self.status(&mut object, "status").unwrap_or(429);
        let status_over = self.status(&mut object, "status_over").unwrap_or(422);
        let status_unavailable = self.status(&mut object, "status_unavailable").unwrap_or(503);
        let mut policies = Vec::new();
        if let Some(text) = object.take("policies") {
            let node = field(&at, "policies", text);
            let mut items = self.reader.array(node).unwrap_or_default();
            if items.len() > MAX_POLICIES {
                self.reader.fail(node, format!("{} policies; at most {MAX_POLICIES} are legal", items.len()));
                items.clear();
            }
            for (index, text) in items.into_iter().enumerate() {
                let node = item(&node.path, index, text);
                if let Some(policy) = self.policy(node, &identity, false) {
                    self.add(node, policy, &mut policies);
                }
            }
        }
        let default = object.take("default");
        let has_default = default.is_some();
        if let Some(text) = default {
            let node = field(&at, "default", text);
            if let Some(policy) = self.policy(node, &identity, true) {
                self.add(node, policy, &mut policies);
            }
        }
        if policies.is_empty() && self.reader.is_clean() && object.is_empty() {
            self.reader.fail(root, "no policy: write at least one in \"policies\", or a \"default\"");
        }
        self.reader.end(&object);
        Some(Rules {
            identity,
            policies,
            has_default,
            headers: self.headers,
            fields: fields.unwrap_or_default(),
            status,
            status_over,
            status_unavailable,
        })
    }

    /// A policy counts under its name, so no two may have the same.
    fn add(&mut self, node: Node<'d, '_>, policy: Policy, policies: &mut Vec<Policy>) {
        if policies.iter().any(|earlier| earlier.name == policy.name) {
            self.reader.fail(node, format!("the name {:?} is taken by an earlier policy", policy.name));
        }
        if let Err(why) = (self.accepts)(&policy) {
            let mark = self.reader.mark();
            self.reader.fail(node, why);
            self.reader.name_since(mark, &policy.name);
        }
        policies.push(policy);
    }

    fn status(&mut self, object: &mut Object<'d, '_>, name: &'static str) -> Option<u16> {
        let at = object.path();
        let text = object.take(name)?;
        self.reader.number(field(&at, name, text), 400, 599).map(|status| status as u16) // at most 599
    }

    fn family(&mut self, node: Node<'d, '_>) -> Option<Family> {
        let name = self.reader.string(node)?;
        let family = Family::ALL.into_iter().find(|family| family.name() == name);
        if family.is_none() {
            self.reader.fail(node, "expected off, x-ratelimit, ratelimit-03 or ratelimit");
        }
        family
    }

    fn identity(&mut self, node: Node<'d, '_>) -> Option<Identity> {
        let mut object = self.reader.object(node)?;
        let at = object.path();
        let mut named = |this: &mut Self, name: &'static str| {
            let text = object.take(name)?;
            this.named(field(&at, name, text))
        };
        let api_key = named(self, "api_key");
        let user = named(self, "user");
        let tenant = named(self, "tenant");
        let ip = object.take("ip").and_then(|text| self.addresses(field(&at, "ip", text)));
        self.reader.end(&object);
        Some(Identity { api_key, user, tenant, ip: ip.unwrap_or_default() })
    }

    fn named(&mut self, node: Node<'d, '_>) -> Option<Named> {
        let mut object = self.reader.object(node)?;
        let at = object.path();
        let header = self.reader.required(&mut object, "header");
        let header = header.and_then(|text| self.header(field(&at, "header", text)));
        let required = object.take("required").and_then(|t| self.reader.boolean(field(&at, "required", t)));
        self.reader.end(&object);
        Some(Named { header: header?, required: required.unwrap_or(false) })
    }

    fn addresses(&mut self, node: Node<'d, '_>) -> Option<AddressRules> {
        let mut object = self.reader.object(node)?;
        let at = object.path();
        let mut rules = AddressRules::default();
        let mut listed = 0;
        if let Some(text) = object.take("trusted_proxies") {
            let list = field(&at, "trusted_proxies", text);
            let proxies = self.reader.array(list).unwrap_or_default();
            listed = proxies.len();
            for (index, text) in proxies.into_iter().enumerate() {
                let node = item(&list.path, index, text);
                let Some(network) = self.reader.string(node) else { continue };
                match parse_network(&network) {
                    Some(network) => rules.trusted.push(network),
                    None => self.reader.fail(node, format!("expected {NETWORK}")),
                }
            }
        }
        if let Some(text) = object.take("header") {
            let node = field(&at, "header", text);
            let is_forwarded =
                self.reader.string(node).is_some_and(|name| name.eq_ignore_ascii_case("forwarded"));
            let syntax = if is_forwarded { Forwarding::Forwarded } else { Forwarding::List };
            rules.header = self.header(node).map(|header| (header, syntax));
            if listed == 0 {
                self.reader.fail(node, "is never believed without \"trusted_proxies\"");
            }
        }
        if let Some(text) = object.take("ipv6_prefix") {
            let prefix = self.reader.number(field(&at, "ipv6_prefix", text), 1, 128);
            rules.ipv6_prefix = prefix.map_or(64, |prefix| prefix as u8); // at most 128
        }
        self.reader.end(&object);
        Some(rules)
    }

    /// The place of a header field in the list of those that requests bring.
    fn header(&mut self, node: Node<'d, '_>) -> Option<usize> {
        let name = self.reader.string(node)?;
        self.header_named(node, &name)
    }

    fn header_named(&mut self, node: Node<'d, '_>, name: &str) -> Option<usize> {
        let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_token) {
            self.reader
                .fail(node, "expected the name of a header field: 1 to 64 letters, digits and hyphens");
            return None;
        }
        let name = name.to_ascii_lowercase();
        if let Some(known) = self.headers.iter().position(|known| *known == name) {
            return Some(known);
        }
        if self.headers.len() == MAX_HEADERS {
            self.reader.fail(node, format!("more than {MAX_HEADERS} header fields are named"));
            return None;
        }
        self.headers.push(name);
        Some(self.headers.len() - 1)
    }

    fn policy(&mut self, node: Node<'d, '_>, identity: &Identity, is_default: bool) -> Option<Policy> {
        let mark = self.reader.mark();
        let mut object = self.reader.object(node)?;
        let at = object.path();
        let name = if is_default {
            let given = object.take("name");
            given.map_or(Some("default".to_owned()), |text| self.name(field(&at, "name", text)))
        } else {
            let given = self.reader.required(&mut object, "name");
            given.and_then(|text| self.name(field(&at, "name", text)))
        };
        let matcher = match object.take("match") {
            Some(text) if is_default => {
                self.reader.fail(
                    field(&at, "match", text),
                    "the default is for all requests that no policy matches",
                );
                None
            }
            Some(text) => self.matcher(field(&at, "match", text)),
            None => Some(Matcher::default()),
        };
        let key = match object.take("key") {
            Some(text) => self.key(field(&at, "key", text), identity),
            None => Some(Vec::from([KeyPart::Global])),
        };
        let limits = self.reader.required(&mut object, "limits");
        let limits = limits.and_then(|text| self.limits(field(&at, "limits", text)));
        let mut overrides = Overrides::new(self.seed);
        if let (Some(text), Some(key)) = (object.take("overrides"), &key) {
            self.overrides(field(&at, "overrides", text), key, &identity.ip, &mut overrides);
        }
        let cost = object.take("cost").map_or(Some(Cost::Fixed(1)), |t| self.cost(field(&at, "cost", t)));
        let store = self.choice(&mut object, "store", &[("local", Store::Local), ("redis", Store::Redis)]);
        let failures =
            [("local", OnStoreError::Local), ("allow", OnStoreError::Allow), ("deny", OnStoreError::Deny)];
        let on_store_error = self.choice(&mut object, "on_store_error", &failures);
        let timeout = self.span(&mut object, "timeout", 100_000, 10 * SECOND);
        let lease = object.take("lease").and_then(|text| self.lease(field(&at, "lease", text)));
        let shards_text = object.take("shards");
        let shards = shards_text.and_then(|t| self.reader.number(field(&at, "shards", t), 1, 256));
        let penalty = object.take("penalty").and_then(|text| self.penalty(field(&at, "penalty", text)));
        let dry_run = object.take("dry_run").and_then(|t| self.reader.boolean(field(&at, "dry_run", t)));
        self.reader.end(&object);
        let own = limits.iter().flatten();
        let smallest = own.chain(overrides.limits()).map(crate::Limit::burst).min();
        if let (Some(text), Some(pieces), Some(smallest)) = (shards_text, shards, smallest)
            && pieces > smallest
        {
            let message = format!("expected at most {smallest}, the smallest burst of this policy's limits");
            self.reader.fail(field(&at, "shards", text), message);
        }
        let name = name?;
        self.reader.name_since(mark, &name);
        Some(Policy {
            prefix: super::key::prefix(&name),
            name,
            matcher: matcher?,
            key: key?.into_boxed_slice(),
            limits: limits?.into_boxed_slice(),
            overrides,
            cost: cost?,
            store: store.unwrap_or_default(),
            on_store_error: on_store_error.unwrap_or_default(),
            timeout,
            lease,
            shards: shards.map_or(1, |n| n as u32), // at most 256
            penalty,
            dry_run: dry_run.unwrap_or(false),
        })
    }

    fn name(&mut self, node: Node<'d, '_>) -> Option<String> {
        let name = self.reader.string(node)?;
        let legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(legal) {
            self.reader.fail(node, "expected 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'");
            return None;
        }
        Some(name.into_owned())
    }

    fn matcher(&mut self, node: Node<'d, '_>) -> Option<Matcher> {
        let mut object = self.reader.object(node)?;
        let at = object.path();
        let route = object.take("route").and_then(|t| self.filled(field(&at, "route", t)));
        let host = object.take("host").and_then(|t| self.filled(field(&at, "host", t)));
        let mut matcher = Matcher { route, host, ..Matcher::default() };
        if let Some(host) = &mut matcher.host {
            host.make_ascii_lowercase();
        }
        if let Some(text) = object.take("method") {
            let node = field(&at, "method", text);
            if text.starts_with('[') {
                for (index, text) in self.reader.array(node).unwrap_or_default().into_iter().enumerate() {
                    let method = self.method(item(&node.path, index, text));
                    matcher.methods.extend(method);
                }
                if text.trim_matches(['[', ']']).trim().is_empty() {
                    self.reader.fail(node, format!("expected {METHOD}, or several"));
                }
            } else {
                matcher.methods.extend(self.method(node));
            }
        }
        if let Some(text) = object.take("path") {
            matcher.path = self.path(field(&at, "path", text));
        }
        if let Some(text) = object.take("header") {
            let node = field(&at, "header", text);
            if let Some(mut fields) = self.reader.object(node) {
                for (name, text) in fields.drain() {
                    let node = field(&node.path, &name, text);
                    let place = self.header_named(Node { text, path: node.path }, &name);
                    // `true` asks that the field be there, a string for its value.
                    let value = self.reader.string_or_true(node);
                    if let (Some(place), Some(value)) = (place, value) {
                        matcher.headers.push((place, value.map(|value| value.into_owned())));
                    }
                }
            }
        }
        self.reader.end(&object);
        Some(matcher)
    }

    fn method(&mut self, node: Node<'d, '_>) -> Option<String> {
        let method = self.reader.string(node)?;
        if method.is_empty()
            || method.len() > 32
            || !method.chars().all(|c| c.is_ascii_uppercase() || c == '-')
        {
            self.reader.fail(node, format!("expected {METHOD}"));
            return None;
        }
        Some(method.into_owned())
    }

    fn path(&mut self, node: Node<'d, '_>) -> Option<PathPattern> {
        let path = self.reader.string(node)?;
        let (stem, below) = path.strip_suffix('*').map_or((&*path, false), |stem| (stem, true));
        if !path.starts_with('/') || stem.contains('*') || (below && !stem.ends_with('/')) {
            self.reader.fail(node, "expected a path such as /login, or all below one such as /api/*");
            return None;
        }
        let stem = stem.to_string();
        Some(if below { PathPattern::Below(stem) } else { PathPattern::Exact(stem) })
    }

    /// A string that is not empty.
    fn filled(&mut self, node: Node<'d, '_>) -> Option<String> {
        let text = self.reader.string(node)?;
        if text.is_empty() {
            self.reader.fail(node, "expected a string that is not empty");
            return None;
        }
        Some(text.into_owned())
    }

    fn key(&mut self, node: Node<'d, '_>, identity: &Identity) -> Option<Vec<KeyPart>> {
        let items = self.reader.array(node)?;
        if items.is_empty() || items.len() > MAX_KEY_PARTS {
            self.reader.fail(node, format!("expected 1 to {MAX_KEY_PARTS} of {KEY_PARTS}"));
            return None;
        }
        let mut parts = Vec::new();
        for (index, text) in items.iter().enumerate() {
            let node = item(&node.path, index, text);
            let name = self.reader.string(node)?;
            let part = match &*name {
                "api_key" => self.told_by(node, identity.api_key.is_some(), KeyPart::ApiKey),
                "user" => self.told_by(node, identity.user.is_some(), KeyPart::User),
                "tenant" => self.told_by(node, identity.tenant.is_some(), KeyPart::Tenant),
                "ip" => Some(KeyPart::Ip),
                "route" => Some(KeyPart::Route),
                "method" => Some(KeyPart::Method),
                "path" => Some(KeyPart::Path),
                "global" => Some(KeyPart::Global),
                other => match other.strip_prefix("header:") {
                    Some(header) => self.header_named(node, header).map(KeyPart::Header),
                    None => {
                        self.reader.fail(node, format!("expected one of {KEY_PARTS}"));
                        None
                    }
                },
            };
            parts.push(part?);
        }
        Some(parts)
    }

    fn told_by(&mut self, node: Node<'d, '_>, is_told: bool, part: KeyPart) -> Option<KeyPart> {
        if !is_told {
            self.reader.fail(node, "\"identity\" does not say which header field tells this");
            return None;
        }
        Some(part)
    }

    /// One of several words.
    fn choice<T: Copy>(
        &mut self,
        object: &mut Object<'d, '_>,
        name: &'static str,
        legal: &[(&str, T)],
    ) -> Option<T> {
        let at = object.path();
        let node = field(&at, name, object.take(name)?);
        self.reader.choice(node, legal)
    }

    /// A span of time, written as `5ms` or `15m`.
    fn span(
        &mut self,
        object: &mut Object<'d, '_>,
        name: &'static str,
        least: Nanos,
        most: Nanos,
    ) -> Option<Nanos> {
        let at = object.path();
        let node = field(&at, name, object.take(name)?);
        let text = self.reader.string(node)?;
        let span = parse_period(&text).ok().filter(|span| (least..=most).contains(span));
        if span.is_none() {
            let (least, most) = (Span(least), Span(most));
            self.reader.fail(node, format!("expected a time such as 5ms or 15m, from {least} to {most}"));
        }
        span
    }
}

/// A span in milliseconds or seconds, for messages.
struct Span(Nanos);

impl core::fmt::Display for Span {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            span if span >= SECOND => write!(f, "{}s", span / SECOND),
            span => write!(f, "{}us", span / 1_000),
        }
    }
}
