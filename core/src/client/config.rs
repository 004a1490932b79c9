//! What a client is made of, and why it cannot be made.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use std::time::Duration;

use crate::limit::Limit;
use crate::policy::RuleError;
use crate::redis::store::{StoreConfig, StoreError};
use crate::table;

/// How a client is made. Its `Debug` tells neither the URL nor keys.
#[derive(Clone)]
pub struct ClientConfig {
    /// Where Redis is:
    ///
    /// - one server: `redis://[user:password@]host[:port][/db]`, with TLS
    ///   `rediss://…`, or `unix:///path[?db=1&user=…&pass=…]`;
    /// - a cluster: `redis+cluster://[user:password@]host:port[,host:port…]`,
    ///   with TLS `rediss+cluster://…`; any of its nodes;
    /// - a master that Sentinel watches:
    ///   `redis+sentinel://[user:password@]host:port[,host:port…]/name[/db]`,
    ///   with TLS `rediss+sentinel://…`; user and password are the master's,
    ///   those of the Sentinels are `?sentinel_user=…&sentinel_password=…`.
    ///
    /// What is not a letter, digit or one of `-._~` in a name or password is
    /// percent-encoded. `?protocol=resp3` is understood; RESP2 is the default.
    pub url: String,
    /// Connections, each with a thread of its own; from 1 to 64.
    pub connections: usize,
    /// How long making a connection may take, and how long
    /// [`Client::new`](super::Client::new) waits for the first one; from 1 ms
    /// to 60 s. No request waits for it.
    pub connect_timeout: Duration,
    /// For `rediss`: whom to trust, and who we are. None trusts the system's
    /// authorities.
    pub tls: Option<Tls>,
    /// Leases and denials, instances, regions, the breaker. The client sets
    /// `workers`, and a `seed` that is 0, itself; `pots`, `waiting` and
    /// `holds` are of all stores together.
    pub store: StoreConfig,
    /// Parts of the memory that threads lock on their own, so that requests
    /// of different subjects seldom meet: from 1 to 64; 0 stands for as many
    /// as there are processors, at most 16.
    pub stores: usize,
    /// The table of the limits that count on this machine, and of all of them
    /// while Redis is away. Concurrency limits and sliding logs need rows.
    pub table: table::Config,
}

/// Certificates and keys, as PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// The authorities that are trusted, and no others; none trusts the system's.
    pub authorities: Option<Vec<u8>>,
    /// This client's certificate, with those that lead to its authority, and
    /// its private key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Why a client cannot be made, or rules cannot be taken up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The document is wrong; each line says where.
    #[error("{}", Lines(.0))]
    Rules(Vec<RuleError>),
    /// A limit that cannot be counted where its policy says, or cannot be
    /// divided as the configuration asks.
    #[error("policy {policy}: {limit}: {reason}")]
    Limit {
        /// The policy's name.
        policy: String,
        /// The limit.
        limit: Box<Limit>,
        /// Why, and what could be instead.
        reason: String,
    },
    /// The URL says nothing that can be connected to. It is not repeated: it
    /// may hold a password.
    #[error("url: {0}")]
    Url(&'static str),
    /// The certificates cannot be used.
    #[error("tls: {0}")]
    Tls(&'static str),
    /// Too few or too many connections.
    #[error("connections: {0} is outside 1 to 64")]
    Connections(usize),
    /// Too short or too long.
    #[error("connect_timeout: {0:?} is outside 1ms to 60s")]
    ConnectTimeout(Duration),
    /// Too many stores.
    #[error("stores: {0} is outside 0 to 64")]
    Stores(usize),
    /// The store's own.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The table's own.
    #[error("table: {0}")]
    Table(#[from] table::ConfigError),
    /// The system gives no thread.
    #[error("no thread: {0}")]
    Thread(std::io::ErrorKind),
}

impl ClientConfig {
    /// For one Redis, all else as is usual: two connections, 250 ms to
    /// connect, a table of 65,536 keys and 1,024 rows of 128 entries.
    #[must_use]
    pub fn new(url: impl Into<String>) -> ClientConfig {
        ClientConfig {
            url: url.into(),
            connections: 2,
            connect_timeout: Duration::from_millis(250),
            tls: None,
            store: StoreConfig { waiting: 1024, ..StoreConfig::default() },
            stores: 0,
            table: table::Config { capacity: 65_536, rows: 1024, row_entries: 128 },
        }
    }

    pub(super) fn check(&self) -> Result<(), ClientError> {
        if !(1..=64).contains(&self.connections) {
            return Err(ClientError::Connections(self.connections));
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&self.connect_timeout) {
            return Err(ClientError::ConnectTimeout(self.connect_timeout));
        }
        if self.stores > 64 {
            return Err(ClientError::Stores(self.stores));
        }
        Ok(())
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClientConfig { url: _, connections, connect_timeout, tls, store, stores, table } = self;
        f.debug_struct("ClientConfig")
            .field("connections", connections)
            .field("connect_timeout", connect_timeout)
            .field("tls", tls)
            .field("store", store)
            .field("stores", stores)
            .field("table", table)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

struct Lines<'e>(&'e [RuleError]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let end = if index > 0 { "\n" } else { "" };
            write!(f, "{end}{error}")?;
        }
        Ok(())
    }
}
