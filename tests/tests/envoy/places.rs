//! Redis where it is not one plain server: the connections are Envoy's, by its cluster's settings.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use tollgate_tests::envoy::{Envoy, Setup};
use tollgate_tests::redis::Server;
use tollgate_tests::redis_cluster::Cluster;

use super::support::{connected_by_post, count, in_post, in_redis, manuals_user, statistic, told};

fn plugin(limit: &str) -> String {
    in_redis(&format!(r#"{{ "rate": "{limit}" }}"#), r#", "on_store_error": "deny", "timeout": "2s""#, "")
}

/// How many of so many are admitted, on one connection.
fn admitted(envoy: &Envoy, requests: usize, user: &str) -> usize {
    let mut conn = envoy.connect();
    (0..requests)
        .filter(|_| {
            conn.request("GET", "/", &[("x-user", user)]);
            conn.response_to("GET").expect("an answer").status == 200
        })
        .count()
}

fn endpoints(ports: &[u16]) -> Value {
    let endpoint = |port: &u16| json!({ "endpoint": { "address": { "socket_address": { "address": "127.0.0.1", "port_value": port } } } });
    let all: Vec<Value> = ports.iter().map(endpoint).collect();
    json!({ "cluster_name": "redis", "endpoints": [ { "lb_endpoints": all } ] })
}

fn password(word: &str) -> Value {
    json!({ "envoy.filters.network.redis_proxy": {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProtocolOptions",
        "auth_password": { "inline_string": word },
    } })
}

#[test]
fn a_password_and_tls_are_envoys_to_speak() {
    let certificates = Certificates::make();
    let (server, port) = certificates.server(&["--requirepass", "right"]);
    let cluster = |word: &str| {
        let mut cluster = certificates.cluster(port);
        cluster["typed_extension_protocol_options"] = password(word);
        cluster
    };
    let envoy = Setup::new(&plugin("20/d")).redis_proxy(cluster("right"), 1000).start();
    statistic(&envoy, "tollgate_store_connected", 1);
    assert_eq!(admitted(&envoy, 30, "a"), 20);
    let wrong = Setup::new(&plugin("20/d")).redis_proxy(cluster("wrong"), 1000).start();
    assert_eq!(admitted(&wrong, 30, "b"), 0, "as on_store_error says");
    told(&wrong, "NOAUTH");
    drop(server);
}

/// Without redis_proxy TLS is Envoy's, and user and password are the filter's; the user may do what
/// the manual says, and no more.
#[test]
fn a_user_and_tls_by_the_stream() {
    a_user_and_tls(in_redis, Setup::redis_in, |envoy| statistic(envoy, "tollgate_store_connected", 2));
}

#[test]
fn a_user_and_tls_by_posts() {
    a_user_and_tls(in_post, Setup::redis_cluster_by_post, |envoy| connected_by_post(envoy, 2));
}

fn a_user_and_tls(
    plugin: fn(&str, &str, &str) -> String,
    lead: fn(Setup, Value) -> Setup,
    connected: fn(&Envoy),
) {
    let certificates = Certificates::make();
    let (server, port) = certificates.server(&["--requirepass", "other"]);
    let mut admin = server.connection();
    let () = redis::cmd("AUTH").arg("other").query(&mut admin).expect("the password");
    let () = redis::cmd("ACL").arg(manuals_user()).query(&mut admin).expect("a user");
    let limits = r#"{ "rate": "20/d" }, { "algorithm": "fixed_window", "rate": "900/d" },
        { "algorithm": "sliding_window", "rate": "900/d" }, { "algorithm": "sliding_log", "rate": "900/d" },
        { "algorithm": "concurrency", "rate": "900/h" }"#;
    let more = r#", "on_store_error": "deny", "timeout": "2s""#;
    let by = |user: &str, cluster: Value, word: &str| {
        let connection = format!(r#", "username": "{user}", "password_env": "REDIS_WORD""#);
        let setup = Setup::new(&plugin(limits, more, &connection));
        lead(setup.environment(&[("REDIS_WORD", word)]), cluster).concurrency(2).start()
    };
    let envoy = by("tollgate", certificates.cluster(port), "secret");
    connected(&envoy);
    assert_eq!(admitted(&envoy, 30, "a"), 20);
    assert!(!envoy.admin("/config_dump").contains("\"secret\""));

    let kinds = ["", ":1", ":2", ":3#log"].map(|kind| format!("tg:{{a}}:all{kind}"));
    let found: u64 = redis::cmd("EXISTS").arg(&kinds).query(&mut admin).expect("a reply");
    assert_eq!(found, 4, "all were counted");

    let wrong = by("tollgate", certificates.cluster(port), "wrong");
    assert_eq!(admitted(&wrong, 30, "b"), 0);
    told(&wrong, "WRONGPASS");
    assert_eq!(admitted(&by("nobody", certificates.cluster(port), "secret"), 30, "c"), 0);
    let stranger = Certificates::make();
    let refused = by("tollgate", stranger.cluster(port), "secret");
    assert_eq!(admitted(&refused, 30, "d"), 0, "whom this authority does not vouch for");
    assert!(count(&refused.admin("/stats?filter=cluster.redis"), "ssl.fail_verify_error") > 0);
    drop(server);
}

#[test]
fn a_cluster_counts_each_key_where_it_lies() {
    let nodes = Cluster::start(3, 0);
    let ports: Vec<u16> = nodes
        .addresses()
        .iter()
        .map(|address| address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port"))
        .collect();
    let cluster = json!({
        "name": "redis",
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "load_assignment": endpoints(&ports),
        "cluster_type": {
            "name": "envoy.clusters.redis",
            "typed_config": {
                "@type": "type.googleapis.com/google.protobuf.Struct",
                "value": { "cluster_refresh_rate": "1s", "cluster_refresh_timeout": "1s" },
            },
        },
    });
    // Two limits of one policy: their keys share a slot.
    let limits = r#"{ "rate": "5/d" }, { "algorithm": "sliding_window", "rate": "100/h" }"#;
    let plugin = in_redis(limits, r#", "on_store_error": "deny", "timeout": "2s""#, "");
    let envoy = Setup::new(&plugin).concurrency(2).redis_proxy(cluster, 1000).start();
    statistic(&envoy, "tollgate_store_connected", 2);
    for user in 0..60 {
        assert_eq!(admitted(&envoy, 7, &format!("user-{user}")), 5, "user {user}");
    }
}

/// An authority, and a server that it vouches for, in a folder of their own.
struct Certificates(PathBuf);

impl Certificates {
    /// A Redis that speaks TLS at this port, and other words at another one.
    fn server(&self, more: &[&str]) -> (Server, u16) {
        let held = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = held.local_addr().expect("an address").port();
        drop(held);
        let (text, cert, key, ca) =
            (port.to_string(), self.file("redis.crt"), self.file("redis.key"), self.file("ca.crt"));
        let tls = ["--tls-port", &text, "--tls-cert-file", &cert, "--tls-key-file", &key];
        let rest = ["--tls-ca-cert-file", &ca, "--tls-auth-clients", "no"];
        (Server::start(&[&tls[..], &rest, more].concat()), port)
    }

    /// Envoy's cluster of it: it is to be who this authority says.
    fn cluster(&self, port: u16) -> Value {
        let tls = json!({
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "sni": "localhost",
                "common_tls_context": { "validation_context": { "trusted_ca": { "filename": self.file("ca.crt") } } },
            },
        });
        json!({ "name": "redis", "type": "STATIC", "connect_timeout": "1s", "load_assignment": endpoints(&[port]),
                "transport_socket": tls })
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn make() -> Certificates {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tollgate-envoy-tls-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a folder");
        let openssl = |args: &[&str]| {
            let status = Command::new("openssl").args(args).current_dir(&dir).stderr(Stdio::null()).status();
            assert!(status.expect("openssl runs").success(), "{args:?}");
        };
        let new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout"];
        openssl(&[&new[..], &["ca.key", "-out", "ca.crt", "-subj", "/CN=authority"]].concat());
        let new = ["req", "-newkey", "rsa:2048", "-nodes", "-keyout"];
        openssl(&[&new[..], &["redis.key", "-out", "redis.csr", "-subj", "/CN=localhost"]].concat());
        fs::write(dir.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1").expect("a file");
        openssl(&[
            "x509",
            "-req",
            "-in",
            "redis.csr",
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "names",
            "-out",
            "redis.crt",
        ]);
        Certificates(dir)
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
