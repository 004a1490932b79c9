//! The rules file: which requests are counted, by what, and under which
//! limits.
//!
//! A document is parsed and compiled whole, off the request path, into
//! [`Rules`]; one that is wrong gives a list of what is wrong and where, and
//! no rules. On the request path [`Rules::select`] finds every policy that
//! matches and gives the limits to pass, [`check`] asks them all of a table,
//! all or none. Nothing of that allocates.
//!
//! Each policy counts under its own name, so policies that overlap never
//! share a bucket. An identity that is missing and not required counts as one
//! subject: all who do not tell who they are share it.

pub(crate) mod check;
mod explain;
mod identity;
mod json;
pub(crate) mod key;
mod model;
mod notice;
mod observe;
mod overrides;
mod parse;
pub(crate) mod penalty;
#[cfg(feature = "redis")]
pub mod plugin;
mod respond;
mod select;

pub use check::{Answer, Outcome, check, give_back};
#[cfg(feature = "redis")]
pub(crate) use explain::{Bytes, value};
pub use explain::{Explained, HeaderUse, KeyField, KeyValue, Mismatch, Printable};
pub use json::RuleError;
pub use key::KeyRoom;
pub use model::{
    AddressRules, Cost, Forwarding, Identity, KeyPart, Lease, Matcher, Named, Network, OnStoreError,
    PathPattern, Penalty, Policy, Rules, Store, Uses,
};
pub use notice::{MAX_NOTICE, Notice};
pub use observe::{label, record};
pub use overrides::Overrides;
pub use parse::{Accepts, DEFAULT_TIMEOUT, MAX_DOCUMENT, MAX_HEADERS, MAX_KEY_PARTS, MAX_NAME, MAX_POLICIES};
pub use select::{Attributes, Layer, Missing, Selection};
