//! Where Redis is: from a URL to what connections are made from.
//!
//! The redis crate reads the URL of one server. Those of a cluster and of
//! Sentinels name several: each is read as if it stood alone.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use ::redis::cluster::ClusterClient;
use ::redis::io::tcp::TcpSettings;
use ::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::config::{ClientConfig, ClientError, Tls};

/// What connections are made from.
pub(super) enum Target {
    /// One server.
    Server(ConnectionInfo),
    /// Any node of a cluster tells the others.
    Cluster(ClusterClient),
    /// Each connection begins with the question who is the master.
    Sentinel {
        sentinels: Vec<ConnectionInfo>,
        name: String,
        /// The master's, but for its address.
        master: ConnectionInfo,
    },
}

/// The parts of a URL that names several servers.
struct Several<'u> {
    user: &'u str,
    hosts: Vec<&'u str>,
    path: &'u str,
    query: &'u str,
}

impl Target {
    pub(super) fn of(config: &ClientConfig) -> Result<Target, ClientError> {
        let (scheme, rest) = config.url.split_once("://").ok_or(ClientError::Url("no scheme"))?;
        let tls = config.tls.as_ref();
        #[cfg(feature = "client-tls")]
        if scheme.starts_with("rediss") || scheme == "valkeys" {
            let _ = rustls::crypto::ring::default_provider().install_default(); // unless the program has chosen one
        }
        match scheme {
            "redis" | "rediss" | "valkey" | "valkeys" | "unix" | "redis+unix" | "valkey+unix" => {
                Ok(Target::Server(server(&config.url, tls)?))
            }
            "redis+cluster" => cluster("redis", rest, config),
            "rediss+cluster" => cluster("rediss", rest, config),
            "redis+sentinel" => sentinel("redis", rest, tls),
            "rediss+sentinel" => sentinel("rediss", rest, tls),
            _ => Err(ClientError::Url(
                "the scheme is none of redis, rediss, unix, redis+cluster, rediss+cluster, redis+sentinel, \
                 rediss+sentinel",
            )),
        }
    }
}

fn cluster(scheme: &str, rest: &str, config: &ClientConfig) -> Result<Target, ClientError> {
    let several = Several::of(rest)?;
    if !several.path.is_empty() {
        return Err(ClientError::Url("a cluster has one database, and no path"));
    }
    let of = |host: &&str| server(&format!("{scheme}://{}{host}{}", several.user, several.query), None);
    let nodes = several.hosts.iter().map(of).collect::<Result<Vec<_>, _>>()?;
    // A call that may have run is not sent again: what is safe to repeat the line repeats itself.
    let builder = ClusterClient::builder(nodes)
        .retries(0)
        .connection_timeout(config.connect_timeout)
        .response_timeout(config.connect_timeout)
        .tcp_settings(at_once());
    #[cfg(feature = "client-tls")]
    let builder = match config.tls.as_ref() {
        Some(tls) => builder.certs(certificates(tls)),
        None => builder,
    };
    let client = builder.build().map_err(|error| ClientError::Url(plain(error.kind())))?;
    Ok(Target::Cluster(client))
}

fn sentinel(scheme: &str, rest: &str, tls: Option<&Tls>) -> Result<Target, ClientError> {
    let several = Several::of(rest)?;
    let mut path = several.path.trim_start_matches('/').splitn(2, '/');
    let name = path.next().filter(|name| !name.is_empty());
    let name = name.ok_or(ClientError::Url("Sentinel needs the master's name as the path"))?.to_string();
    let db = path.next().unwrap_or_default();
    let setting = |name: &str| {
        let settings = several.query.trim_start_matches('?').split('&');
        settings.filter_map(|setting| setting.split_once('=')).find(|(key, _)| *key == name)
    };
    let user = match (setting("sentinel_user"), setting("sentinel_password")) {
        (None, None) => String::new(),
        (user, password) => {
            let text = |setting: Option<(&str, &str)>| setting.map_or("", |(_, value)| value).to_string();
            format!("{}:{}@", text(user), text(password))
        }
    };
    let of = |host: &&str| {
        let host = if has_port(host) { (*host).to_string() } else { format!("{host}:26379") };
        server(&format!("{scheme}://{user}{host}"), tls)
    };
    let sentinels = several.hosts.iter().map(of).collect::<Result<Vec<_>, _>>()?;
    let master = server(&format!("{scheme}://{}master.invalid/{db}", several.user), tls)?;
    Ok(Target::Sentinel { sentinels, name, master })
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
}

impl<'u> Several<'u> {
    fn of(rest: &'u str) -> Result<Several<'u>, ClientError> {
        let (rest, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1)); // behind the @
        if hosts.is_empty() || hosts.split(',').any(str::is_empty) {
            return Err(ClientError::Url("no host, or an empty one"));
        }
        Ok(Several { user, hosts: hosts.split(',').collect(), path, query })
    }
}

/// One server.
fn server(url: &str, tls: Option<&Tls>) -> Result<ConnectionInfo, ClientError> {
    let info = url.into_connection_info().map_err(|error| match () {
        () if url.starts_with("rediss") && !cfg!(feature = "client-tls") => {
            ClientError::Url("this library was built without TLS")
        }
        () => ClientError::Url(plain(error.kind())),
    })?;
    let settings = info.redis_settings().clone().set_lib_name("tollgate", env!("CARGO_PKG_VERSION"));
    let info = info.set_redis_settings(settings).set_tcp_settings(at_once());
    match (info.addr(), tls) {
        (ConnectionAddr::TcpTls { .. }, Some(tls)) => secured(info, tls),
        _ => Ok(info),
    }
}

#[cfg(feature = "client-tls")]
fn secured(info: ConnectionInfo, tls: &Tls) -> Result<ConnectionInfo, ClientError> {
    let client = ::redis::Client::build_with_tls(info, certificates(tls));
    let client = client.map_err(|_| ClientError::Tls("a certificate or key is no PEM, or does not fit"))?;
    Ok(client.get_connection_info().clone().set_tcp_settings(at_once()))
}

#[cfg(not(feature = "client-tls"))]
fn secured(_: ConnectionInfo, _: &Tls) -> Result<ConnectionInfo, ClientError> {
    Err(ClientError::Tls("this library was built without TLS"))
}

#[cfg(feature = "client-tls")]
fn certificates(tls: &Tls) -> ::redis::TlsCertificates {
    let identity = tls.identity.clone();
    ::redis::TlsCertificates {
        client_tls: identity
            .map(|(client_cert, client_key)| ::redis::ClientTlsConfig { client_cert, client_key }),
        root_cert: tls.authorities.clone(),
    }
}

/// Small calls that somebody waits for are not held back to be sent together.
fn at_once() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// The crate's own words may repeat parts of the URL.
fn plain(kind: ::redis::ErrorKind) -> &'static str {
    match kind {
        ::redis::ErrorKind::InvalidClientConfig => {
            "no URL of a Redis server, or its host, port, database, user or password cannot be read; \
             other servers of the same cluster must have the same"
        }
        _ => "no URL of a Redis server",
    }
}

/// The address of a master, as a Sentinel tells it.
pub(super) fn of_master(master: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let address = match master.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    master.clone().set_addr(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> Result<Target, ClientError> {
        Target::of(&ClientConfig::new(url))
    }

    #[test]
    fn each_way_to_name_a_redis_is_read() {
        for url in [
            "redis://h",
            "redis://h:1",
            "redis://:secret@h:1/3",
            "redis://u:p%40q@[::1]:1",
            "unix:///tmp/s?db=2",
            "redis://h?protocol=resp3",
        ] {
            assert!(matches!(of(url), Ok(Target::Server(_))), "{url}");
        }
        for url in ["redis+cluster://h:1", "redis+cluster://u:p@h:1,[::1]:2,i:3"] {
            assert!(matches!(of(url), Ok(Target::Cluster(_))), "{url}");
        }
        let url = "redis+sentinel://u:p@h:1,i/main/2?sentinel_user=s&sentinel_password=t";
        let Ok(Target::Sentinel { sentinels, name, master }) = of(url) else { panic!("{url}") };
        assert_eq!((name.as_str(), master.redis_settings().db()), ("main", 2));
        assert_eq!(master.redis_settings().password(), Some("p"));
        assert_eq!(sentinels[1].addr(), &ConnectionAddr::Tcp("i".into(), 26_379));
        assert_eq!(sentinels[0].redis_settings().password(), Some("t"));
    }

    #[test]
    fn what_is_wrong_is_refused_and_never_repeated() {
        for url in [
            "",
            "secret",
            "http://secret",
            "redis://:secret@",
            "redis://:secret@h:99999",
            "redis://:secret@h/x",
            "redis+cluster://",
            "redis+cluster://h,,i",
            "redis+cluster://h/1",
            "redis+sentinel://h:1",
            "redis+sentinel://h:1/",
            "redis://u:%ff@h",
            "redis+cluster://:secret@h:x",
        ] {
            let Err(error) = of(url) else { panic!("{url} was taken") };
            let (said, detail) = (error.to_string(), format!("{error:?}"));
            assert!(!said.contains("secret") && !detail.contains("secret"), "{said}");
        }
        let config = ClientConfig::new("redis://:secret@h");
        assert!(!format!("{config:?}").contains("secret"));
    }
}
