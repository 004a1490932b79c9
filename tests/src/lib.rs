//! What crosses the parts of Tollgate: vectors, laws, C programs, real servers.
pub mod counting;
pub mod envoy;
pub mod install;
pub mod nginx;
pub mod oracle;
pub mod over;
pub mod redis;
pub mod redis_cluster;
pub mod redis_faults;
pub mod redis_host;
pub mod redis_proxy;
pub mod redis_sentinel;
pub mod scripts;
pub mod shared_pages;
pub mod strategies;
pub mod subject;
pub mod vectors;
