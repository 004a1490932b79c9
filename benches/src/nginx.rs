//! A real NGINX, with our module and with its own `limit_req`.
//!
//! Both limit the same location, `empty_gif`, by the same header. NGINX runs
//! in a folder and on a loopback port of its own; it is stopped by its own
//! process id. A limiter that admits or denies another number of requests
//! than its limit says fails the run.

mod client;
mod server;
mod shared;

use client::{Client, Load};
use server::Server;

use crate::Options;
use crate::keys::key;
use crate::measure::median;
use crate::report::Row;

const PEER: &str = "limit_req";
const OURS_ZONE: &str = "tollgate_zone ours size=1m; tollgate_headers off; tollgate_log_level info;";
const PEER_ZONE_LEVEL: &str = "limit_req_log_level info;";

pub(crate) fn rows(options: &Options) -> Vec<Row> {
    if !server::is_built() {
        eprintln!("no NGINX rows: no {} or no module: run make nginx", server::binary().display());
        return Vec::new();
    }
    let mut rows = Vec::new();
    if options.wants("nginx/instructions") {
        rows.extend(instructions(options));
    }
    if options.wants("nginx/requests") {
        for workers in [1, 2] {
            for denied in [false, true] {
                rows.extend(requests(options, workers, denied));
            }
        }
    }
    if options.wants("nginx/bytes") {
        rows.extend(bytes());
    }
    if options.wants("nginx/redis") {
        rows.extend(shared::rows(options));
    }
    if options.wants("nginx/first-time") {
        rows.push(first_time());
    }
    rows
}

/// Locations with no limiter, with ours and with the peer, all of which admit.
fn open_locations() -> String {
    format!(
        "{OURS_ZONE} {PEER_ZONE_LEVEL}
         limit_req_zone $http_x_api_key zone=peer:1m rate=100000r/s;
         limit_req_zone $uri zone=denied:1m rate=1r/m;
         server {{ listen 127.0.0.1:@port@;
             location = /none {{ empty_gif; }}
             location = /ours {{ tollgate zone=ours key=$http_x_api_key rate=100000r/s burst=100000; empty_gif; }}
             location = /ours-fields {{
                 tollgate_headers x-ratelimit;
                 tollgate zone=ours key=$http_x_api_key rate=100000r/s burst=100000; empty_gif; }}
             location = /peer {{ limit_req zone=peer burst=100000 nodelay; empty_gif; }}
             location = /ours-denied {{ tollgate zone=ours key=$uri rate=1/h burst=1; empty_gif; }}
             location = /peer-denied {{ limit_req zone=denied; limit_req_status 429; empty_gif; }} }}"
    )
}

/// User-space instructions that one request takes, over 1,000 keys that the
/// limiter knows.
fn instructions(options: &Options) -> Vec<Row> {
    let requests = if options.quick { 2_000 } else { 5_000 };
    let keys: Vec<String> = (0..1_000).map(key).collect();
    let total = |path: &str, requests: usize| {
        let server = Server::under_callgrind(&open_locations())?;
        let mut client = Client::connect(server.port());
        for number in 0..requests {
            let status = client.get(path, &keys[number % keys.len()]);
            let expected = if path.ends_with("-denied") && number > 0 { 429 } else { 200 };
            assert_eq!(status, expected, "{path}, request {number}");
        }
        server.instructions()
    };
    let per_request = |path: &str| {
        let (few, many) = (total(path, keys.len())?, total(path, keys.len() + requests)?);
        Some((many - few) / requests as f64)
    };
    let (Some(none), Some(ours), Some(fields), Some(peer)) =
        (per_request("/none"), per_request("/ours"), per_request("/ours-fields"), per_request("/peer"))
    else {
        return Vec::new();
    };
    let (Some(ours_denied), Some(peer_denied)) = (per_request("/ours-denied"), per_request("/peer-denied"))
    else {
        return Vec::new();
    };
    let what =
        "NGINX, user-space instructions a request adds over no limiter (callgrind; 1,000 keys of 23 bytes)";
    vec![
        Row::new("nginx/instructions", what, "instructions", ours - none, peer - none, PEER).goal(0.55),
        Row::new(
            "nginx/instructions/fields",
            "the same, ours also writes three X-RateLimit fields",
            "instructions",
            fields - none,
            peer - none,
            PEER,
        ),
        Row::new(
            "nginx/instructions/denied",
            "NGINX, instructions of a whole request that is denied (ours: Retry-After and a problem body)",
            "instructions",
            ours_denied,
            peer_denied,
            PEER,
        ),
        Row::new(
            "nginx/instructions/request",
            "NGINX, instructions of a whole request",
            "instructions",
            ours,
            none,
            "no limiter",
        ),
    ]
}

/// Requests a second under load, one key.
fn requests(options: &Options, workers: usize, denied: bool) -> Vec<Row> {
    let (limit, burst) = if denied { ("1r/m", 1) } else { ("1000000r/s", 1_000_000) };
    let server = Server::start(
        workers,
        &format!(
            "{OURS_ZONE} {PEER_ZONE_LEVEL}
             limit_req_zone $http_x_api_key zone=peer:1m rate={limit};
             server {{ listen 127.0.0.1:@port@;
                 location = /ours {{ tollgate zone=ours key=$http_x_api_key rate={limit} burst={burst} status=429; empty_gif; }}
                 location = /peer {{ limit_req zone=peer burst={burst} nodelay; limit_req_status 429; empty_gif; }} }}"
        ),
    );
    let mut speeds = [Vec::new(), Vec::new()];
    let mut costs = [Vec::new(), Vec::new()];
    let paths = ["/ours", "/peer"];
    for number in 0..=options.rounds(15) {
        for turn in 0..paths.len() {
            let index = (turn + number) % paths.len();
            let path = paths[index];
            let before = server.worker_time();
            let Some(load) = Load::run(server.port(), path, workers) else {
                return Vec::new();
            };
            let used = server.worker_time() - before;
            // A bucket of a minute admits few; all others are refused.
            let refused = if denied { load.requests } else { 0 };
            assert!(
                load.refused.abs_diff(refused) <= 8,
                "{path}: {load:?} where {refused} were to be refused"
            );
            if number > 0 {
                speeds[index].push(load.per_second); // the first only warms up
                costs[index].push(used as f64 / load.requests as f64 / 1_000.0);
            }
        }
    }
    let [ours, peer] = speeds.map(|mut speeds| median(&mut speeds));
    let kind = if denied { "denied" } else { "allowed" };
    let id = format!("nginx/requests/{workers}-worker{}/{kind}", if workers == 1 { "" } else { "s" });
    let what =
        format!("NGINX, requests/s, {workers} worker(s), every request {kind} (wrk on the same 2 cores)");
    let [ours_cost, peer_cost] = costs.map(|mut costs| median(&mut costs));
    vec![
        // Within the noise of the machine.
        Row::new(&id, &what, "requests/s", ours, peer, PEER).goal(0.97).higher(),
        Row::new(
            &format!("{id}/cpu"),
            "the same rounds, processor time of the workers a request: less disturbed by what else runs",
            "us",
            ours_cost,
            peer_cost,
            PEER,
        ),
    ]
}

/// A zone of 1 MB of each: how many keys it remembers.
fn bytes() -> Vec<Row> {
    const ZONE: f64 = 1_048_576.0;
    const STEP: usize = 512;
    let server = Server::start(1, &full_zones());
    let mut client = Client::connect(server.port());
    let mut ours = 0;
    loop {
        let keys = (ours..ours + STEP).map(key);
        assert_eq!(client.admitted("/ours", keys), STEP, "ours denied first-time keys");
        if server.zone_number(&mut client, "evictions") > 0 {
            break; // somebody of this step took another's place
        }
        ours += STEP;
    }
    // All of the steps before are there, but for those that the last step took the place of.
    let lost = server.zone_number(&mut client, "evictions") as usize;
    assert!(client.admitted("/ours", (0..ours).map(key)) <= 2 * lost, "ours lost keys");
    // The newest states first: the first one that is admitted again was lost.
    let peer = 16_384; // more than it can hold: a state of limit_req takes 64 bytes or more
    assert_eq!(client.admitted("/peer", (0..peer).map(key)), peer, "limit_req denied first-time keys");
    let mut held = 0;
    while held < peer && client.admitted("/peer", std::iter::once(key(peer - 1 - held))) == 0 {
        held += 1;
    }
    assert!(0 < held && held < peer, "limit_req held {held} of {peer} states");
    let (ours, peer) = (ZONE / ours as f64, ZONE / held as f64);
    let what = "NGINX, bytes of a 1 MB zone a state, 23-byte keys, as many as it holds with none lost";
    vec![
        Row::absolute("nginx/bytes", what, "bytes", ours, 20.0),
        Row::new("nginx/bytes/limit_req", what, "bytes", ours, peer, PEER),
    ]
}

/// First-time keys that are refused by a full zone whose keys are of another length.
fn first_time() -> Row {
    const NEW: usize = 20_000;
    let server = Server::start(1, &full_zones());
    let mut client = Client::connect(server.port());
    let denied = |client: &mut Client, path: &str| {
        client.admitted(path, (0..80_000).map(key));
        let longer = (0..NEW).map(|number| format!("{number:0100}"));
        NEW - client.admitted(path, longer)
    };
    let (ours, peer) = (denied(&mut client, "/ours"), denied(&mut client, "/peer"));
    let what =
        "NGINX, first-time keys of 100 bytes denied, of 20,000, by a full zone of 1 MB with keys of 23 bytes";
    Row::new("nginx/first-time", what, "denials", ours as f64, peer as f64, PEER).goal(0.0)
}

/// One request an hour for each key.
fn full_zones() -> String {
    format!(
        "{OURS_ZONE} {PEER_ZONE_LEVEL}
         limit_req_zone $http_x_api_key zone=peer:1m rate=1r/m;
         server {{ listen 127.0.0.1:@port@;
             location = /ours {{ tollgate zone=ours key=$http_x_api_key rate=1r/h burst=1; empty_gif; }}
             location = /peer {{ limit_req zone=peer; empty_gif; }}
             location = /metrics {{ tollgate_metrics; }} }}"
    )
}
