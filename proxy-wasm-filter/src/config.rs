//! The plugin's configuration: a JSON object, in which the rules are one
//! member.
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
//! Whatever is wrong is told with its line and column in the whole document.

use serde::Deserialize;
use serde_json::value::RawValue;
use tollgate_core::key::Seed;
use tollgate_core::pages;
use tollgate_core::policy::{Lease, Rules, Store};
use tollgate_core::redis::script;
use tollgate_core::time::Nanos;

/// What a plugin is to do.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one, for a moment")]
pub(crate) enum Config {
    /// Limit requests by these rules, compiled.
    Filter(Rules, Counting),
    /// Be the other end of the streams to Redis.
    Bridge,
}

/// Where a plugin counts.
#[derive(Debug)]
pub(crate) struct Counting {
    /// In pages that the workers share, if any policy does.
    pub(crate) embedded: Option<Embedded>,
    /// In Redis, if any policy does.
    pub(crate) redis: Option<Connection>,
    /// Which of the policies count in pages.
    pub(crate) is_local: Box<[bool]>,
}

/// The way to Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// One gRPC stream to the bridge.
    #[default]
    Stream,
    /// HTTP calls, each a connection of its own.
    Post,
}

/// The connection to Redis.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Connection {
    /// Envoy's cluster that leads to the bridge; with `post`, to Redis.
    pub(crate) cluster: String,
    /// How.
    #[serde(default)]
    pub(crate) transport: Transport,
    /// With `post`: who we are to Redis, and the variable of the VM's
    /// environment that holds the password. With a stream, redis_proxy says it.
    pub(crate) username: Option<String>,
    password_env: Option<String>,
    /// How long Redis may take, for policies that do not say; 1 to 10,000.
    #[serde(default = "five")]
    timeout_ms: u64,
    /// Envoys and other gateways that share the limits; 1 to 1,000.
    #[serde(default = "one")]
    pub(crate) instances: u64,
    /// Workers of each: Envoy's `--concurrency`; 1 to 1,000. With `instances`
    /// it is by how much a limit is divided while Redis is away; both together
    /// at most 10,000.
    #[serde(default = "one")]
    pub(crate) workers: u64,
    /// Keys that a worker keeps leases and denials of; 8 to 65,536.
    #[serde(default = "thousand")]
    pub(crate) remembered: usize,
    /// Requests of a worker that may wait at the same time, 14 KiB each; 1 to
    /// 4,096. Those beyond are decided as if Redis were away.
    #[serde(default = "many")]
    pub(crate) waiting: usize,
    /// Requests in flight under concurrency limits, a worker; at most 65,536.
    #[serde(default = "thousand")]
    pub(crate) holds: usize,
}

fn five() -> u64 {
    5
}

fn one() -> u64 {
    1
}

fn many() -> usize {
    256
}

fn thousand() -> usize {
    1024
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    #[default]
    Filter,
    Bridge,
}

/// Counts that the workers of one Envoy share.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Embedded {
    /// Plugins of one `vm_id` that name the same zone share their counts.
    pub(crate) zone: String,
    /// Pages of about 50 keys; 1 to 65,536.
    pub(crate) pages: u32,
    /// Keys that a worker keeps leases and denials of; 8 to 65,536.
    pub(crate) remembered: usize,
    /// Requests in flight under concurrency limits, a worker; at most 65,536.
    pub(crate) holds: usize,
    /// Units that a worker may fetch ahead; 0 for none, at most 1,000,000.
    lease: u64,
    /// For so long; 1 to 60,000.
    lease_ttl_ms: u64,
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

/// The members, the rules not yet looked into.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<'d> {
    #[serde(default)]
    role: Role,
    #[serde(borrow)]
    rules: Option<&'d RawValue>,
    embedded: Option<Embedded>,
    redis: Option<Connection>,
}

impl Config {
    /// Reads the configuration.
    ///
    /// # Errors
    /// All that is wrong, a line each.
    pub(crate) fn read(bytes: &[u8]) -> Result<Config, String> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| format!("byte {}: the configuration is not UTF-8", error.valid_up_to()))?;
        if text.trim().is_empty() {
            return Err("there is no configuration; it needs at least { \"rules\": { … } }".into());
        }
        let document: Document<'_> =
            serde_json::from_str(text).map_err(|error| format!("configuration: {error}"))?;
        let Document { role, rules, embedded, redis } = document;
        if let Role::Bridge = role {
            let is_alone = rules.is_none() && embedded.is_none() && redis.is_none();
            return if is_alone {
                Ok(Config::Bridge)
            } else {
                Err("role: a bridge has no other fields".into())
            };
        }
        let Some(rules) = rules else { return Err("rules: missing; a filter has a rules document".into()) };
        let embedded = embedded.unwrap_or_default().checked()?;
        let redis = redis.map(Connection::checked).transpose()?;
        let raw = rules.get();
        // The clock is the system's: it counts from 1970.
        let seed = Seed(crate::abi::random().unwrap_or([1, 2]));
        let mut rules = Rules::parse_at(raw, seed, 0).map_err(|errors| {
            let (line, column) = place(text, raw);
            let told = errors.into_iter().map(|mut error| {
                if error.line == 1 {
                    error.column = error.column.saturating_add(column).saturating_sub(1);
                }
                error.line = error.line.saturating_add(line).saturating_sub(1);
                let at = if error.path.is_empty() { "" } else { "." };
                error.path = format!("rules{at}{}", error.path);
                error.to_string()
            });
            told.collect::<Vec<_>>().join("\n")
        })?;
        for policy in rules.policies() {
            let at = |message: String| Err(format!("rules: policy {:?}: {message}", policy.name()));
            match policy.store() {
                Store::Redis if redis.is_none() => {
                    return at(
                        "store: \"redis\" needs a connection, and the configuration has no \"redis\"".into()
                    );
                }
                Store::Redis => {
                    if let Err(error) = policy.all_limits().try_for_each(script::accepts) {
                        return at(error.to_string());
                    }
                }
                Store::Local => {
                    if let Err(error) = policy.all_limits().try_for_each(pages::accepts) {
                        return at(error.to_string());
                    }
                }
            }
        }
        let is_local: Box<[bool]> =
            rules.policies().iter().map(|policy| policy.store() == Store::Local).collect();
        rules.count_in_store(embedded.lease());
        let embedded = is_local.contains(&true).then_some(embedded);
        let redis = redis.filter(|_| is_local.contains(&false));
        Ok(Config::Filter(rules, Counting { embedded, redis, is_local }))
    }
}

impl Connection {
    fn checked(self) -> Result<Connection, String> {
        let cluster = self.cluster.len();
        if !(1..=60).contains(&cluster) {
            return Err(format!("redis.cluster: {cluster} bytes; legal are 1 to 60"));
        }
        if self.transport == Transport::Stream && (self.username.is_some() || self.password_env.is_some()) {
            return Err(
                "redis.username, redis.password_env: only with \"transport\": \"post\"; to a stream, \
                        redis_proxy says who it is by its cluster's auth_username and auth_password"
                    .into(),
            );
        }
        if self.username.is_some() && self.password_env.is_none() {
            return Err("redis.username: needs redis.password_env".into());
        }
        for (name, value) in [("username", &self.username), ("password_env", &self.password_env)] {
            if let Some(length) = value.as_ref().map(String::len).filter(|length| !(1..=128).contains(length))
            {
                return Err(format!("redis.{name}: {length} bytes; legal are 1 to 128"));
            }
        }
        within("redis.timeout_ms", self.timeout_ms, 1, 10_000)?;
        within("redis.instances", self.instances, 1, 1_000)?;
        within("redis.workers", self.workers, 1, 1_000)?;
        within("redis.instances × redis.workers", self.instances.saturating_mul(self.workers), 1, 10_000)?;
        within("redis.remembered", self.remembered as u64, 8, 65_536)?;
        within("redis.waiting", self.waiting as u64, 1, 4_096)?;
        within("redis.holds", self.holds as u64, 0, 65_536)?;
        Ok(self)
    }

    /// The password, which is never in the configuration: that is shown to
    /// whoever may ask the host for it.
    ///
    /// # Errors
    /// The VM has no such variable.
    pub(crate) fn password(&self) -> Result<Option<Vec<u8>>, String> {
        let Some(name) = &self.password_env else { return Ok(None) };
        let value = crate::abi::environment(name).filter(|value| !value.is_empty());
        let missing = || {
            format!(
                "redis.password_env: the VM has no variable {name:?}; \
                 vm_config.environment_variables.host_env_keys hands one over"
            )
        };
        value.map(Some).ok_or_else(missing)
    }

    pub(crate) fn timeout(&self) -> Nanos {
        self.timeout_ms.saturating_mul(1_000_000)
    }
}

impl Embedded {
    fn checked(self) -> Result<Embedded, String> {
        let zone = self.zone.as_bytes();
        if !(1..=64).contains(&zone.len()) || !zone.iter().all(u8::is_ascii_graphic) {
            return Err("embedded.zone: legal are 1 to 64 printable ASCII characters without a space".into());
        }
        within("embedded.pages", self.pages.into(), 1, 65_536)?;
        within("embedded.remembered", self.remembered as u64, 8, 65_536)?;
        within("embedded.holds", self.holds as u64, 0, 65_536)?;
        within("embedded.lease", self.lease, 0, 1_000_000)?;
        within("embedded.lease_ttl_ms", self.lease_ttl_ms, 1, 60_000)?;
        Ok(self)
    }

    fn lease(&self) -> Option<Lease> {
        let ttl = self.lease_ttl_ms.saturating_mul(1_000_000);
        (self.lease > 0).then_some(Lease { max: self.lease, ttl })
    }
}

fn within(name: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(format!("{name}: {value} is outside {least} to {most}"))
    }
}

/// The line and column, from 1, at which a piece of a text begins.
fn place(text: &str, piece: &str) -> (usize, usize) {
    let offset = (piece.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    let before = text.get(..offset).unwrap_or("");
    let line = before.matches('\n').count().saturating_add(1);
    let last = before.rsplit('\n').next().unwrap_or("");
    (line, last.chars().count().saturating_add(1))
}
