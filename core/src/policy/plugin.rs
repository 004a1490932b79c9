//! The configuration of a proxy's plugin: a JSON object, in which the rules are
//! one member.
//!
//! ```json
//! { "rules": { "policies": [ … ] },
//!   "embedded": { "zone": "main", "pages": 1024, "lease": 64, "lease_ttl_ms": 100 } }
//!
//! { "rules": { "policies": [ … ] },
//!   "redis": { "cluster": "tollgate_bridge", "timeout_ms": 5, "instances": 3, "workers": 4 } }
//!
//! { "rules": { "policies": [ … ] },
//!   "redis": { "cluster": "redis", "transport": "post", "password_env": "REDIS_PASSWORD" } }
//!
//! { "role": "bridge" }
//! ```
//!
//! It is read here, and not by the filter, because who writes such a
//! configuration, as the command line does, has to refuse what the filter
//! would, in the same words. Whatever is wrong is told with its line and column
//! in the whole object.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::json::{Node, Object, Reader, RuleError};
use super::model::{Lease, OnStoreError, Policy, Rules, Store};
use super::parse::{self, field};
use crate::key::Seed;
use crate::pages;
use crate::redis::store::{self, StoreConfig};
use crate::time::Nanos;

/// What a plugin is to do.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one, for a moment")]
pub enum Plugin {
    /// Limit requests by these rules, compiled.
    Filter(Rules, Counting),
    /// Be the other end of the streams to Redis.
    Bridge,
}

/// Where a plugin counts.
#[derive(Debug)]
pub struct Counting {
    /// In pages that the workers share.
    pub embedded: Embedded,
    /// In Redis, if any policy does.
    pub redis: Option<Connection>,
    /// Which of the policies count in pages.
    pub is_local: Box<[bool]>,
}

/// The way to Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// One gRPC stream to the bridge.
    #[default]
    Stream,
    /// HTTP calls, each a connection of its own.
    Post,
}

/// The connection to Redis.
#[derive(Debug)]
pub struct Connection {
    /// The host's cluster that leads to the bridge; with `post`, to Redis. 1 to
    /// 60 bytes.
    pub cluster: String,
    /// How.
    pub transport: Transport,
    /// Who we are to Redis. 1 to 128 bytes, as the variable.
    pub username: Option<String>,
    /// The variable of the VM's environment that holds the password. None
    /// behind redis_proxy, which says both itself.
    pub password_env: Option<String>,
    /// How long Redis may take, for policies that do not say; 1 to 10,000.
    pub timeout_ms: u64,
    /// Gateways that share the limits, each of which admits its part while Redis
    /// is away; 1 to 1,000.
    pub instances: u64,
    /// Which of them this one is, from 0. Without it remainders of the division
    /// are nobody's.
    pub instance: Option<u64>,
    /// Workers of each: Envoy's `--concurrency`; 1 to 1,000. With `instances`
    /// it is by how much what is fetched ahead is divided; both together at
    /// most 10,000.
    pub workers: u64,
    /// Keys that a worker keeps leases and denials of; 8 to 65,536.
    pub remembered: usize,
    /// Requests of a worker that may wait at the same time, 14 KiB each; 1 to
    /// 4,096. Those beyond are decided as if Redis were away.
    pub waiting: usize,
    /// Requests in flight under concurrency limits, a worker; at most 65,536.
    pub holds: usize,
}

/// Counts that the workers of one host share.
#[derive(Debug)]
pub struct Embedded {
    /// Plugins of one `vm_id` that name the same zone share their counts; 1 to
    /// 64 printable ASCII characters without a space.
    pub zone: String,
    /// Pages of about 50 keys; 1 to 65,536.
    pub pages: u32,
    /// Keys that a worker keeps leases and denials of; 8 to 65,536.
    pub remembered: usize,
    /// Requests in flight under concurrency limits, a worker; at most 65,536.
    pub holds: usize,
    /// Units that a worker may fetch ahead; 0 for none, at most 1,000,000.
    pub lease: u64,
    /// For so long; 1 to 60,000.
    pub lease_ttl_ms: u64,
}

impl Plugin {
    /// Reads a configuration; `seed` and `unix_at_zero` as for
    /// [`Rules::parse_at`].
    ///
    /// # Errors
    /// All that is wrong, as for [`Rules::parse`]; and what is legal in rules,
    /// but cannot be counted where this configuration counts.
    ///
    /// ```
    /// use tollgate_core::key::Seed;
    /// use tollgate_core::policy::plugin::Plugin;
    ///
    /// let errors = Plugin::parse(r#"{ "role": "bouncer" }"#, Seed([1, 2]), 0).unwrap_err();
    /// assert_eq!(errors[0].to_string(), "line 1, column 11: role: expected one of filter, bridge");
    /// ```
    pub fn parse(text: &str, seed: Seed, unix_at_zero: Nanos) -> Result<Plugin, Vec<RuleError>> {
        let mut reader = Reader::new(text);
        let plugin = reader.root().and_then(|root| plugin(&mut reader, root, seed, unix_at_zero));
        match plugin {
            Some(plugin) if reader.is_clean() => Ok(plugin),
            _ => Err(reader.finish()),
        }
    }
}

impl Connection {
    /// [`timeout_ms`](Self::timeout_ms), as the core counts.
    #[must_use]
    pub fn timeout(&self) -> Nanos {
        self.timeout_ms.saturating_mul(1_000_000)
    }

    /// What each worker's store is made with. Where the workers do not share
    /// what they count while Redis is away, each of them is an instance.
    #[must_use]
    pub fn store(&self, is_shared: bool) -> StoreConfig {
        let (instances, instance, workers) = match is_shared {
            true => (self.instances, self.instance, self.workers),
            false => (self.instances.saturating_mul(self.workers), None, 1),
        };
        StoreConfig {
            pots: self.remembered,
            waiting: self.waiting,
            holds: self.holds,
            instances,
            instance,
            workers,
            timeout: self.timeout(),
            ..StoreConfig::default()
        }
    }
}

impl Default for Embedded {
    fn default() -> Self {
        Embedded {
            zone: "main".into(),
            pages: 1024,
            remembered: 1024,
            holds: 1024,
            lease: 64,
            lease_ttl_ms: 100,
        }
    }
}

impl Embedded {
    fn lease(&self) -> Option<Lease> {
        let ttl = self.lease_ttl_ms.saturating_mul(1_000_000);
        (self.lease > 0).then_some(Lease { max: self.lease, ttl })
    }
}

/// The most of `instances` × `workers`.
const MOST_WORKERS: u64 = 10_000;

fn plugin<'d>(
    reader: &mut Reader<'d>,
    root: Node<'d, '_>,
    seed: Seed,
    unix_at_zero: Nanos,
) -> Option<Plugin> {
    let mut object = reader.object(root)?;
    let at = object.path();
    let roles = [("filter", false), ("bridge", true)];
    let role = object.take("role").and_then(|text| reader.choice(field(&at, "role", text), &roles));
    if role == Some(true) {
        for (name, text) in object.drain() {
            reader.fail(field(&at, &name, text), "a bridge has no other field than \"role\"");
        }
        return Some(Plugin::Bridge);
    }
    let embedded = object.take("embedded").and_then(|text| embedded(reader, field(&at, "embedded", text)));
    let embedded = embedded.unwrap_or_default();
    let redis_text = object.take("redis");
    let redis = redis_text.and_then(|text| connection(reader, field(&at, "redis", text)));
    let store = redis.as_ref().map(|redis| redis.store(true));
    let accepts = |policy: &Policy| match (policy.store(), &store) {
        (Store::Local, _) => policy.all_limits().try_for_each(pages::accepts).map_err(|why| why.to_string()),
        (Store::Redis, Some(store)) => {
            store::accepts(policy, store).map_err(|why| why.to_string())?;
            let alone = |limit| pages::accepts_piece(limit, store.instances);
            if policy.on_store_error() != OnStoreError::Local {
                return Ok(());
            }
            let why = |why| format!("\"on_store_error\": \"local\": {why}; \"allow\" or \"deny\"");
            policy.all_limits().try_for_each(alone).map_err(why)
        }
        (Store::Redis, None) if redis_text.is_some() => Ok(()), // what is wrong with it was told
        (Store::Redis, None) => {
            Err("\"store\": \"redis\" needs a connection, and the configuration has no \"redis\"".to_owned())
        }
    };
    let rules = reader.required(&mut object, "rules").and_then(|text| {
        parse::compile(reader, field(&at, "rules", text), seed, Some(unix_at_zero), &accepts)
    });
    reader.end(&object);
    let mut rules = rules?;
    let is_local: Box<[bool]> =
        rules.policies().iter().map(|policy| policy.store() == Store::Local).collect();
    rules.count_in_store(embedded.lease());
    let redis = redis.filter(|_| is_local.contains(&false));
    Some(Plugin::Filter(rules, Counting { embedded, redis, is_local }))
}

fn embedded<'d>(reader: &mut Reader<'d>, node: Node<'d, '_>) -> Option<Embedded> {
    let mut object = reader.object(node)?;
    let mut made = Embedded::default();
    let at = object.path();
    if let Some(text) = object.take("zone") {
        let node = field(&at, "zone", text);
        let zone = reader.string(node).unwrap_or_default();
        if (1..=64).contains(&zone.len()) && zone.bytes().all(|byte| byte.is_ascii_graphic()) {
            made.zone = zone.into_owned();
        } else {
            reader.fail(node, "expected 1 to 64 printable ASCII characters without a space");
        }
    }
    let mut number = |name, value: u64, least, most| number(reader, &mut object, name, value, least, most);
    made.pages = number("pages", made.pages.into(), 1, 65_536) as u32; // at most 65,536
    made.remembered = number("remembered", made.remembered as u64, 8, 65_536) as usize;
    made.holds = number("holds", made.holds as u64, 0, 65_536) as usize;
    made.lease = number("lease", made.lease, 0, 1_000_000);
    made.lease_ttl_ms = number("lease_ttl_ms", made.lease_ttl_ms, 1, 60_000);
    reader.end(&object);
    Some(made)
}

/// Where no number is given.
const NONE: u64 = u64::MAX;

fn connection<'d>(reader: &mut Reader<'d>, node: Node<'d, '_>) -> Option<Connection> {
    let mut object = reader.object(node)?;
    let at = object.path();
    let cluster = reader.required(&mut object, "cluster");
    let cluster = cluster.and_then(|text| name(reader, field(&at, "cluster", text), 60));
    let ways = [("stream", Transport::Stream), ("post", Transport::Post)];
    let transport = object.take("transport").map(|text| reader.choice(field(&at, "transport", text), &ways));
    let (user, password) = (object.take("username"), object.take("password_env"));
    let username = user.and_then(|text| name(reader, field(&at, "username", text), 128));
    let password_env = password.and_then(|text| name(reader, field(&at, "password_env", text), 128));
    if let (Some(text), None) = (user, password) {
        reader.fail(field(&at, "username", text), "needs \"password_env\" beside it");
    }
    let mut number = |name, value, least, most| number(reader, &mut object, name, value, least, most);
    let made = Connection {
        timeout_ms: number("timeout_ms", 5, 1, 10_000),
        instances: number("instances", 1, 1, 1_000),
        instance: Some(number("instance", NONE, 0, 999)).filter(|instance| *instance != NONE),
        workers: number("workers", 1, 1, 1_000),
        remembered: number("remembered", 1024, 8, 65_536) as usize,
        waiting: number("waiting", 256, 1, 4_096) as usize,
        holds: number("holds", 1024, 0, 65_536) as usize,
        cluster: String::new(),
        transport: transport.flatten().unwrap_or_default(),
        username,
        password_env,
    };
    let workers = made.instances.saturating_mul(made.workers);
    if workers > MOST_WORKERS {
        let message = format!("instances × workers: {workers} is above {MOST_WORKERS}");
        reader.fail(node, message);
    }
    if let Some(instance) = made.instance.filter(|instance| *instance >= made.instances) {
        let last = made.instances.saturating_sub(1);
        reader.fail(
            node,
            format!("instance: {instance} is outside 0 to {last}, for {} instances", made.instances),
        );
    }
    reader.end(&object);
    Some(Connection { cluster: cluster?, ..made })
}

/// A string that is not empty and not too long.
fn name<'d>(reader: &mut Reader<'d>, node: Node<'d, '_>, most: usize) -> Option<String> {
    let name = reader.string(node)?;
    if !(1..=most).contains(&name.len()) {
        reader.fail(node, format!("expected 1 to {most} bytes, found {}", name.len()));
        return None;
    }
    Some(name.into_owned())
}

/// A whole number, or the one that stands for it.
fn number<'d>(
    reader: &mut Reader<'d>,
    object: &mut Object<'d, '_>,
    name: &'static str,
    default: u64,
    least: u64,
    most: u64,
) -> u64 {
    let at = object.path();
    let found = object.take(name).and_then(|text| reader.number(field(&at, name, text), least, most));
    found.unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn errors(text: &str) -> Vec<String> {
        match Plugin::parse(text, Seed([1, 2]), 0) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.iter().map(ToString::to_string).collect(),
        }
    }

    fn counted_in(store: &str, limit: &str) -> String {
        format!(
            r#""rules": {{ "policies": [ {{ "name": "a", "store": "{store}", "limits": [ {limit} ] }} ] }}"#
        )
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once_in_one_voice() {
        let text = r#"{ "embedded": { "pages": 0, "zone": "a b", "leases": 1 },
  "redis": { "cluster": "", "transport": "pigeon", "workers": "2" },
  "rules": { "policies": [ { "name": "a", "limits": [ { "rate": 5 } ] } ] }, "more": 1 }"#;
        let told = vec![
            "line 1, column 37: embedded.zone: expected 1 to 64 printable ASCII characters without a space",
            "line 1, column 26: embedded.pages: expected a whole number from 1 to 65536, found 0",
            "line 1, column 54: embedded.leases: unknown field; the fields here are zone, pages, \
             remembered, holds, lease, lease_ttl_ms",
            "line 2, column 25: redis.cluster: expected 1 to 60 bytes, found 0",
            "line 2, column 42: redis.transport: expected one of stream, post",
            "line 2, column 63: redis.workers: expected a whole number from 1 to 1000, found a string",
            "line 3, column 65: rules.policies[0].limits[0].rate: expected a string, found a number (policy a)",
            "line 3, column 86: more: unknown field; the fields here are role, embedded, redis, rules",
        ];
        assert_eq!(errors(text), told);
    }

    #[test]
    fn a_limit_is_refused_where_it_cannot_be_counted() {
        let log = r#"{ "algorithm": "sliding_log", "rate": "1025/m" }"#;
        let redis = r#""redis": { "cluster": "c" }"#;
        let told = "line 1, column 28: rules.policies[0]: limit: 1025 is above 1024, the most of a \
                    sliding_log or concurrency limit in shared pages (policy a)";
        assert_eq!(errors(&format!("{{ {} }}", counted_in("local", log))), [told]);
        let alone = "line 1, column 28: rules.policies[0]: \"on_store_error\": \"local\": limit: 1025 is above \
                     1024, the most of a sliding_log or concurrency limit in shared pages; \"allow\" or \
                     \"deny\" (policy a)";
        assert_eq!(errors(&format!("{{ {}, {redis} }}", counted_in("redis", log))), [alone]);
        let several = redis.replace('}', r#", "instances": 2 }"#);
        assert_eq!(errors(&format!("{{ {}, {several} }}", counted_in("redis", log))), [""; 0]);
        let window = r#"{ "algorithm": "fixed_window", "rate": "1/864000001ms" }"#;
        assert_eq!(errors(&format!("{{ {} }}", counted_in("local", window))), [""; 0]);
        let told = errors(&format!("{{ {}, {redis} }}", counted_in("redis", window)));
        assert!(told[0].contains("one of more than 10 days must be whole seconds (policy a)"), "{told:?}");
        let told = errors(&format!("{{ {} }}", counted_in("redis", r#"{ "rate": "1/s" }"#)));
        assert!(told[0].contains("needs a connection"), "{told:?}");
        let told = errors(&format!(
            r#"{{ {}, "redis": {{ "cluster": "c", "instances": 101, "workers": 100 }} }}"#,
            counted_in("redis", r#"{ "rate": "1/s" }"#)
        ));
        assert!(told[0].ends_with("redis: instances × workers: 10100 is above 10000"), "{told:?}");
        let of = |instance: u64| {
            let rules = counted_in("redis", r#"{ "rate": "1/s" }"#);
            errors(&format!(
                r#"{{ {rules}, "redis": {{ "cluster": "c", "instances": 3, "instance": {instance} }} }}"#
            ))
        };
        assert_eq!((of(0), of(2)), (Vec::new(), Vec::new()));
        assert!(of(3)[0].ends_with("redis: instance: 3 is outside 0 to 2, for 3 instances"), "{:?}", of(3));
    }

    #[test]
    fn numbers_are_taken_from_end_to_end_of_their_range() {
        let ranges = [
            ("embedded", "pages", 1, 65_536),
            ("embedded", "remembered", 8, 65_536),
            ("embedded", "holds", 0, 65_536),
            ("embedded", "lease", 0, 1_000_000),
            ("embedded", "lease_ttl_ms", 1, 60_000),
            ("redis", "timeout_ms", 1, 10_000),
            ("redis", "instances", 1, 1_000),
            ("redis", "workers", 1, 1_000),
            ("redis", "remembered", 8, 65_536),
            ("redis", "waiting", 1, 4_096),
            ("redis", "holds", 0, 65_536),
        ];
        for (object, field, least, most) in ranges {
            let cluster = if object == "redis" { r#""cluster": "c", "# } else { "" };
            let with = |value: i64| {
                let rules = counted_in("local", r#"{ "rate": "1/s" }"#);
                errors(&format!(r#"{{ {rules}, "{object}": {{ {cluster}"{field}": {value} }} }}"#))
            };
            assert_eq!((with(least), with(most)), (Vec::new(), Vec::new()), "{object}.{field}");
            for value in [least - 1, most + 1] {
                let told = format!(
                    "{object}.{field}: expected a whole number from {least} to {most}, found {value}"
                );
                assert!(with(value).iter().any(|line| line.ends_with(&told)), "{:?}", with(value));
            }
        }
    }

    #[test]
    fn a_bridge_has_nothing_to_say() {
        assert!(errors(r#"{ "role": "bridge" }"#).is_empty());
        let told = errors(r#"{ "role": "bridge", "rules": {} }"#);
        assert_eq!(told, ["line 1, column 30: rules: a bridge has no other field than \"role\""]);
        let told = errors("{ }");
        assert_eq!(told, ["line 1, column 1: the field \"rules\" is missing"]);
    }
}
