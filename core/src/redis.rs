//! Redis, so that many machines share one limit; without a socket of its own.
//!
//! What is decided here and what is sent are apart:
//!
//! - [`script`]: the calls. One Lua script per algorithm, one round trip, the
//!   server's clock; the twin of [`algorithm`](crate::algorithm).
//! - [`resp`], [`link`]: one connection, as bytes in and bytes out.
//! - [`cluster`]: which connection a key belongs to.
//! - [`lease`]: tokens fetched ahead, and denials remembered.
//! - [`breaker`]: when not to ask.
//! - [`share`]: pieces of a limit that add up: instances, shards, regions.
//! - [`store`]: all of this for a request: what memory can answer, what is
//!   asked, and what is decided while the store is away.
//! - [`engine`]: a store and its connections, for a host that owns sockets.
//! - `sim` (a feature): instances, network and server in virtual time.
//!
//! Whoever owns the sockets drives it: NGINX's event loop, a thread, a
//! simulated network. Memory is taken when a part is made, not after.

pub mod breaker;
pub mod cluster;
pub mod engine;
pub mod key;
pub mod lease;
pub mod link;
pub mod resp;
pub mod script;
pub mod share;
#[cfg(feature = "sim")]
pub mod sim;
pub(crate) mod state;
pub mod store;
