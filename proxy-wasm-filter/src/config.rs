//! The plugin's configuration: a JSON object, in which the rules are one
//! member.
//!
//! ```json
//! { "rules": { "policies": [ … ] },
//!   "embedded": { "zone": "main", "pages": 1024, "lease": 64, "lease_ttl_ms": 100 } }
//! ```
//!
//! Whatever is wrong is told with its line and column in the whole document.

use serde::Deserialize;
use serde_json::value::RawValue;
use tollgate_core::key::Seed;
use tollgate_core::pages;
use tollgate_core::policy::{Lease, Rules, Store};

/// What a plugin is to do.
#[derive(Debug)]
pub(crate) struct Config {
    /// The rules, compiled; those that count on this machine count in pages.
    pub(crate) rules: Rules,
    /// The shared pages.
    pub(crate) embedded: Embedded,
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
    #[serde(borrow)]
    rules: &'d RawValue,
    #[serde(default)]
    embedded: Embedded,
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
        let embedded = document.embedded.checked()?;
        let raw = document.rules.get();
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
            let at = |message: String| format!("rules: policy {:?}: {message}", policy.name());
            if policy.store() == Store::Redis {
                return Err(at("store: \"redis\" needs a connection, and none is configured".into()));
            }
            policy.all_limits().try_for_each(pages::accepts).map_err(|error| at(error.to_string()))?;
        }
        rules.count_in_store(embedded.lease());
        Ok(Config { rules, embedded })
    }
}

impl Embedded {
    fn checked(self) -> Result<Embedded, String> {
        let zone = self.zone.as_bytes();
        if !(1..=64).contains(&zone.len()) || !zone.iter().all(u8::is_ascii_graphic) {
            return Err("embedded.zone: legal are 1 to 64 printable ASCII characters without a space".into());
        }
        within("pages", self.pages.into(), 1, 65_536)?;
        within("remembered", self.remembered as u64, 8, 65_536)?;
        within("holds", self.holds as u64, 0, 65_536)?;
        within("lease", self.lease, 0, 1_000_000)?;
        within("lease_ttl_ms", self.lease_ttl_ms, 1, 60_000)?;
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
        Err(format!("embedded.{name}: {value} is outside {least} to {most}"))
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
