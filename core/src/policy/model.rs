//! What a rules document means, compiled: nothing here is looked up by name,
//! and nothing is allocated, once it exists.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::overrides::Overrides;
use super::parse::DEFAULT_TIMEOUT;
use crate::http::Family;
use crate::limit::{Algorithm, Limit};
use crate::time::Nanos;

/// A rules document, parsed and compiled whole.
#[derive(Debug)]
pub struct Rules {
    pub(super) identity: Identity,
    pub(super) policies: Vec<Policy>,
    /// Does the last of the policies apply only when no other does?
    pub(super) has_default: bool,
    /// The header fields that requests must bring along, in lower case.
    pub(super) headers: Vec<String>,
    pub(super) fields: Family,
    pub(super) status: u16,
    pub(super) status_over: u16,
    pub(super) status_unavailable: u16,
}

/// Who a request comes from, and how that is told.
#[derive(Debug, Default)]
pub struct Identity {
    pub(super) api_key: Option<Named>,
    pub(super) user: Option<Named>,
    pub(super) tenant: Option<Named>,
    pub(super) ip: AddressRules,
}

/// An identity that a header field tells.
#[derive(Debug)]
pub struct Named {
    /// Its place in the list of header fields.
    pub(super) header: usize,
    pub(super) required: bool,
}

/// How a client's address is told.
#[derive(Debug)]
pub struct AddressRules {
    pub(super) trusted: Vec<Network>,
    pub(super) header: Option<(usize, Forwarding)>,
    pub(super) ipv6_prefix: u8,
}

impl Default for AddressRules {
    fn default() -> Self {
        AddressRules { trusted: Vec::new(), header: None, ipv6_prefix: 64 }
    }
}

/// The syntax of the header field that proxies leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// A list of addresses, as X-Forwarded-For.
    List,
    /// RFC 7239.
    Forwarded,
}

/// Addresses of one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub(super) address: IpAddr,
    pub(super) prefix: u8,
}

/// One rule.
#[derive(Debug)]
pub struct Policy {
    pub(super) name: String,
    /// What its limits' keys begin with.
    pub(super) prefix: Box<[u8]>,
    pub(super) matcher: Matcher,
    pub(super) key: Box<[KeyPart]>,
    pub(super) limits: Box<[Limit]>,
    pub(super) overrides: Overrides,
    pub(super) cost: Cost,
    pub(super) store: Store,
    pub(super) on_store_error: OnStoreError,
    pub(super) timeout: Option<Nanos>,
    pub(super) lease: Option<Lease>,
    pub(super) shards: u32,
    pub(super) penalty: Option<Penalty>,
    pub(super) dry_run: bool,
}

/// Which requests a policy is for. What is not given matches all.
#[derive(Debug, Default)]
pub struct Matcher {
    pub(super) route: Option<String>,
    pub(super) methods: Vec<String>,
    pub(super) host: Option<String>,
    pub(super) path: Option<PathPattern>,
    /// Places in the list of header fields, and the value asked for.
    pub(super) headers: Vec<(usize, Option<String>)>,
}

/// A path, or all paths below one.
#[derive(Debug)]
pub enum PathPattern {
    /// Exactly this one.
    Exact(String),
    /// All paths below this prefix, which ends with a slash; not the path
    /// before that slash.
    Below(String),
}

/// One part of what a policy counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The API key, as a digest.
    ApiKey,
    /// The user.
    User,
    /// The client's address.
    Ip,
    /// The tenant.
    Tenant,
    /// The route's name.
    Route,
    /// The method.
    Method,
    /// The path.
    Path,
    /// A header field, by its place in the list.
    Header(usize),
    /// Nothing: all requests together.
    Global,
}

/// What a request costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Always this.
    Fixed(u64),
    /// What a header field says, at most `max`; else `default`.
    Header {
        /// Its place in the list of header fields.
        header: usize,
        /// The ceiling.
        max: u64,
        /// Without the field, or where it is not a number.
        default: u64,
    },
}

/// Where a policy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Store {
    /// In this machine's shared memory.
    #[default]
    Local,
    /// In Redis, with all machines.
    Redis,
}

/// What becomes of a request when the store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnStoreError {
    /// Count on this machine alone.
    #[default]
    Local,
    /// Admit.
    Allow,
    /// Deny.
    Deny,
}

/// Tokens fetched ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// At most so many.
    pub max: u64,
    /// For at most so long.
    pub ttl: Nanos,
}

/// Growing delays after repeated denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// The first delay.
    pub base: Nanos,
    /// How much longer each next one is, in thousandths.
    pub factor_milli: u64,
    /// The longest delay, and the quiet after which all is forgotten.
    pub max: Nanos,
}

/// Parts of a request that some policy matches or counts by. Header fields
/// have a list of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses {
    /// The route's name.
    pub route: bool,
    /// The method.
    pub method: bool,
    /// The host.
    pub host: bool,
    /// The path.
    pub path: bool,
    /// Who opened the connection.
    pub peer: bool,
}

impl Rules {
    /// The header fields whose values a request must bring along, in lower
    /// case and in this order.
    #[must_use]
    pub fn headers(&self) -> &[String] {
        &self.headers
    }

    /// The policies in file order; the default is the last.
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// For a host whose workers share a store and no memory: every policy that
    /// would count on this machine counts in the store. Those of token buckets
    /// alone fetch ahead by `lease`.
    pub fn count_in_store(&mut self, lease: Option<Lease>) {
        for policy in self.policies.iter_mut().filter(|policy| policy.store == Store::Local) {
            let is_bucket = |limit: &Limit| limit.algorithm() == Algorithm::TokenBucket;
            policy.lease = lease.filter(|_| policy.all_limits().all(is_bucket));
            (policy.store, policy.shards) = (Store::Redis, 1);
        }
    }

    /// Which parts of a request its policies look at, for a host to which
    /// each of them is a call.
    #[must_use]
    pub fn uses(&self) -> Uses {
        let keys = |part: KeyPart| self.policies.iter().any(|policy| policy.key.contains(&part));
        let matches = |is: fn(&Matcher) -> bool| self.policies.iter().any(|policy| is(&policy.matcher));
        Uses {
            route: keys(KeyPart::Route) || matches(|matcher| matcher.route.is_some()),
            method: keys(KeyPart::Method) || matches(|matcher| !matcher.methods.is_empty()),
            host: matches(|matcher| matcher.host.is_some()),
            path: keys(KeyPart::Path) || matches(|matcher| matcher.path.is_some()),
            peer: keys(KeyPart::Ip),
        }
    }

    /// Which fields answers carry.
    #[must_use]
    pub fn fields(&self) -> Family {
        self.fields
    }

    /// The status of a denial.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The status of a denial that no waiting ends: the cost is above the
    /// burst.
    #[must_use]
    pub fn status_over(&self) -> u16 {
        self.status_over
    }

    /// The status of a denial that no limit gave: its store is away, and
    /// `on_store_error` says `deny`.
    #[must_use]
    pub fn status_unavailable(&self) -> u16 {
        self.status_unavailable
    }
}

impl Policy {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it counts by, in order.
    #[must_use]
    pub fn key(&self) -> &[KeyPart] {
        &self.key
    }

    /// Its limits, for subjects without an override.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Every limit that it may apply, those of overrides included.
    pub fn all_limits(&self) -> impl Iterator<Item = &Limit> {
        self.limits.iter().chain(self.overrides.limits())
    }

    /// Rows that give a subject other limits.
    #[must_use]
    pub fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// Where it counts.
    #[must_use]
    pub fn store(&self) -> Store {
        self.store
    }

    /// What happens when the store does not answer.
    #[must_use]
    pub fn on_store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    /// How long the store may take.
    #[must_use]
    pub fn timeout(&self) -> Nanos {
        self.timeout.unwrap_or(DEFAULT_TIMEOUT)
    }

    /// As [`timeout`](Self::timeout), when the document names one.
    #[must_use]
    pub fn own_timeout(&self) -> Option<Nanos> {
        self.timeout
    }

    /// Tokens fetched ahead.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        self.lease
    }

    /// In how many pieces a key is counted.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// Growing delays after repeated denials.
    #[must_use]
    pub fn penalty(&self) -> Option<Penalty> {
        self.penalty
    }

    /// Is it only counted, never enforced?
    #[must_use]
    pub fn dry_run(&self) -> bool {
        self.dry_run
    }
}
