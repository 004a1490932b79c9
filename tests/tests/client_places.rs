//! The native client where Redis is not one plain server: over TLS, in a cluster whose slots move,
//! behind a Sentinel that makes another master.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use tollgate_core::client::{Client, ClientConfig, Tls};
use tollgate_core::policy::Attributes;
use tollgate_core::redis::cluster::key_slot;
use tollgate_tests::install::succeed;
use tollgate_tests::over::Over;
use tollgate_tests::redis::Server;
use tollgate_tests::redis_cluster::Cluster;
use tollgate_tests::redis_sentinel::Sentinel;

/// A tenant's limits, which lie on one slot together.
fn rules(timeout: &str) -> String {
    format!(
        r#"{{ "identity": {{ "tenant": {{ "header": "x-tenant" }} }},
             "policies": [ {{ "name": "p", "key": ["tenant"], "store": "redis", "timeout": "{timeout}",
                 "on_store_error": "deny",
                 "limits": [ {{ "rate": "10/d" }}, {{ "algorithm": "sliding_window", "rate": "20/d" }} ] }} ] }}"#
    )
}

/// Is it admitted, and by Redis?
fn ask(client: &Client, tenant: &str) -> (bool, bool) {
    let headers = [Some(tenant.as_bytes())];
    let request =
        Attributes { route: b"", method: b"GET", host: b"", path: b"/", peer: None, headers: &headers };
    let answer = client.check(&request).unwrap();
    (answer.allowed, !answer.is_degraded(0))
}

fn within(time: Duration, mut is: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if is() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

/// An authority, and a server's certificate for 127.0.0.1 from it, in a folder that goes with this.
struct Authority(PathBuf);

impl Authority {
    fn new(name: &str) -> Authority {
        let dir = std::env::temp_dir().join(format!("tollgate-tls-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let openssl = |arguments: &str| {
            let mut command = Command::new("openssl");
            succeed(command.current_dir(&dir).args(arguments.split(' ')))
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        openssl(&format!("req -x509 {key} -days 2 -keyout ca.key -out ca.crt -subj /CN={name}"));
        openssl(&format!(
            "req {key} -keyout key.pem -out csr -subj /CN=server -addext subjectAltName=IP:127.0.0.1"
        ));
        openssl(
            "x509 -req -in csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copy -out crt.pem",
        );
        Authority(dir)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn trusted(&self) -> Tls {
        Tls { authorities: Some(fs::read(self.0.join("ca.crt")).unwrap()), identity: None }
    }

    fn server(&self, port: u16) -> Server {
        let (certificate, key, ca) = (self.file("crt.pem"), self.file("key.pem"), self.file("ca.crt"));
        Server::start(&[
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &ca,
            "--tls-auth-clients",
            "optional",
        ])
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.0));
    }
}

#[test]
fn tls_is_spoken_with_whom_the_client_trusts_and_with_nobody_else() {
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let _server = ours.server(port);
    let with = |tls: Tls| {
        let mut config = ClientConfig::new(format!("rediss://127.0.0.1:{port}"));
        (config.tls, config.connect_timeout) = (Some(tls), Duration::from_secs(2));
        Client::new(&rules("2s"), &config).unwrap()
    };
    let client = with(ours.trusted());
    let admitted = (0..15).filter(|_| ask(&client, "t") == (true, true)).count();
    assert_eq!(admitted, 10);
    let identity = Some(("crt.pem", "key.pem"))
        .map(|(crt, key)| (fs::read(ours.file(crt)).unwrap(), fs::read(ours.file(key)).unwrap()));
    assert_eq!(ask(&with(Tls { identity, ..ours.trusted() }), "u"), (true, true));
    let stranger = with(other.trusted());
    assert_eq!((ask(&stranger, "u"), stranger.connected()), ((false, false), 0));
}

#[test]
fn each_tenant_of_a_cluster_has_its_limit_while_slots_move() {
    let cluster = Cluster::start(3, 0);
    let url = format!("redis+cluster://{}", cluster.addresses().join(","));
    let mut config = ClientConfig::new(url);
    config.connections = 4;
    let client = Client::new(&rules("5s"), &config).unwrap();
    let tenants: Vec<String> = (0..100).map(|tenant| format!("tenant-{tenant}")).collect();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _over = Over(&over);
            for tenant in tenants.iter().cycle().take(30) {
                let slot = key_slot(tenant.as_bytes()); // the tenant is the tag
                let from = cluster.owner(slot);
                cluster.migrate(slot, from, (from + 1) % 3, Duration::from_millis(1));
            }
        });
        for part in 0..4 {
            let (client, tenants, over) = (&client, &tenants, &over);
            scope.spawn(move || {
                for tenant in tenants.iter().skip(part * 25).take(25) {
                    let admitted = (0..13).filter(|_| {
                        let (allowed, asked) = ask(client, tenant);
                        assert!(asked, "{tenant}: {:?} {:?}", client.trouble(), client.metrics().snapshot());
                        allowed
                    });
                    assert_eq!(admitted.count(), 10, "{tenant}");
                }
                while !over.load(Ordering::Relaxed) {
                    let (allowed, asked) = ask(client, &tenants[part]);
                    assert!(asked && !allowed);
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
    });
    let seen = client.metrics().snapshot();
    assert_eq!((seen.failures, seen.key_failures, seen.timeouts), (0, 0, 0));
}

#[test]
fn a_master_that_dies_is_followed_to_the_one_that_sentinel_makes() {
    let mut master = Server::start(&[]);
    let port = master.port().to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]);
    assert!(within(Duration::from_secs(10), || replica.info("replication", "master_link_status") == "up"));
    let sentinel = Sentinel::start(master.port(), 1);
    let config = ClientConfig::new(format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port()));
    let client = Client::new(&rules("1s"), &config).unwrap();
    assert_eq!((0..4).filter(|_| ask(&client, "t") == (true, true)).count(), 4);
    assert!(within(Duration::from_secs(5), || {
        master.info("replication", "master_repl_offset") == replica.info("replication", "master_repl_offset")
    }));
    master.kill();
    assert!(within(Duration::from_secs(20), || sentinel.master() == Some(replica.port())));
    // It may have to notice first; what it asks then is admitted by the new master.
    let mut admitted = 4;
    assert!(
        within(Duration::from_secs(1), || {
            let (allowed, asked) = ask(&client, "t");
            admitted += usize::from(allowed);
            asked
        }),
        "{:?}",
        client.trouble()
    );
    admitted += (0..20).filter(|_| ask(&client, "t").0).count();
    assert_eq!(admitted, 10, "what was spent before is spent");
}
