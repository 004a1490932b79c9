//! What the tests of rules files share: a file that can be replaced, and a server that follows it.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use tollgate_tests::nginx::{Conn, Nginx, Response};

/// A rules file in a folder of its own.
#[derive(Debug)]
pub(crate) struct RulesFile {
    dir: PathBuf,
}

impl RulesFile {
    /// Writes a new file.
    pub(crate) fn new(text: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tollgate-rules-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let file = Self { dir };
        file.write(text);
        file
    }

    /// Replaces the file as an editor or a deployment does.
    pub(crate) fn write(&self, text: &str) {
        let new = self.dir.join("rules.json.new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path()).unwrap();
    }

    /// Writes over the file in place: the same inode.
    pub(crate) fn overwrite(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }

    /// Takes the file away.
    pub(crate) fn remove(&self) {
        fs::remove_file(self.path()).unwrap();
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join("rules.json")
    }

    /// `tollgate_rules` with this file.
    pub(crate) fn directive(&self, more: &str) -> String {
        format!("tollgate_rules {} {more};", self.path().display())
    }

    /// One location below `/` that is asked of these rules, and metrics.
    pub(crate) fn http(&self, reload: &str, location: &str) -> String {
        format!(
            "{} tollgate_zone main size=1m rows=64 row_entries=64;
             server {{ listen 127.0.0.1:@port@; @h2@
                 tollgate_policies zone=main;
                 location / {{ empty_gif; }}
                 {location}
                 location = /metrics {{ tollgate_policies off; tollgate_metrics; }} }}",
            self.directive(reload)
        )
    }
}

impl Drop for RulesFile {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A server with these rules and its file.
pub(crate) fn start(rules: &str) -> (Nginx, RulesFile) {
    start_with(1, rules, "")
}

/// Several workers, and more locations.
pub(crate) fn start_with(workers: u32, rules: &str, location: &str) -> (Nginx, RulesFile) {
    let file = RulesFile::new(rules);
    let nginx = Nginx::start_with(workers, &file.http("reload=100ms", location));
    (nginx, file)
}

/// One policy with one limit.
pub(crate) fn policy(name: &str, more: &str, rate: &str) -> String {
    format!(r#"{{ "name": "{name}", {more} "limits": [ {{ "rate": "{rate}" }} ] }}"#)
}

/// A document of these policies.
pub(crate) fn document(policies: &[String]) -> String {
    format!(
        r#"{{ "identity": {{ "api_key": {{ "header": "x-api-key" }}, "user": {{ "header": "x-user-id" }},
             "tenant": {{ "header": "x-tenant" }} }}, "policies": [ {} ] }}"#,
        policies.join(",\n")
    )
}

/// Statuses of `n` requests, one after another.
pub(crate) fn statuses(nginx: &Nginx, n: usize, path: &str, headers: &[(&str, &str)]) -> Vec<u16> {
    (0..n).map(|_| nginx.get(path, headers).status).collect()
}

/// A request of exactly these bytes.
pub(crate) fn raw(nginx: &Nginx, bytes: &[u8]) -> Response {
    let mut conn = Conn::open(nginx.port(1));
    conn.raw(bytes);
    conn.response_to("GET").expect("an answer")
}

/// A policy's counter, in whatever zone.
pub(crate) fn counter(nginx: &Nginx, policy: &str, counter: &str) -> u64 {
    let page = nginx.metrics();
    page["zones"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|zone| zone["policies"].as_array().unwrap())
        .find(|p| p["name"] == policy)
        .unwrap_or_else(|| panic!("no policy {policy} in {page}"))[counter]
        .as_u64()
        .unwrap_or_else(|| panic!("no counter {counter} in {page}"))
}
