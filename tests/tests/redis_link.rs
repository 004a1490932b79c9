//! A link on a real Redis, under what happens to one: full pipelines, lost scripts, passwords,
//! killed clients, a server that stops, restarts, loads, is busy, full, or a replica.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use redis::cmd;
use tollgate_core::redis::cluster::RouterConfig;
use tollgate_core::redis::link::{LinkConfig, Refused};
use tollgate_core::redis::script::{Ask, Call, Op, decode};
use tollgate_core::{Decision, Limit};
use tollgate_tests::redis::Server;
use tollgate_tests::redis_host::{ADD, Add, Host};

const SECOND: Duration = Duration::from_secs(1);
/// "Within a second", on a machine that does other things as well.
const RECOVERY: Duration = Duration::from_millis(1500);
const LONG: Duration = Duration::from_secs(20);
const NOTHING: Decision =
    Decision { allowed: false, limit: 0, remaining: 0, retry_after: 0, reset_after: 0, delay: 0 };

fn link() -> LinkConfig<'static> {
    LinkConfig { scripts: Some(&[ADD]), ..LinkConfig::default() }
}

fn host(addresses: &[&str], link: LinkConfig<'_>) -> Host {
    let addresses: Vec<&[u8]> = addresses.iter().map(|address| address.as_bytes()).collect();
    Host::new(&RouterConfig { link, addresses: &addresses, cluster: false })
}

fn tcp(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

fn unix(server: &Server) -> String {
    format!("unix:{}", server.socket().display())
}

fn ready(host: &mut Host) {
    assert!(host.until(LONG, |host| host.router.is_ready()), "not ready: {:?}", host.closed);
}

fn add(host: &mut Host, ticket: u64, key: &str, within: Duration) -> Result<(), Refused> {
    host.send(ticket, &Add { keys: &[key.as_bytes()], by: "1" }, within)
}

/// One call, and what became of it.
fn ask(host: &mut Host, key: &str) -> Result<Vec<i64>, String> {
    let ticket = u64::MAX - host.outcomes.len() as u64;
    add(host, ticket, key, LONG).map_err(|refused| refused.to_string())?;
    assert!(host.until(LONG * 2, |host| host.router.waiting() == 0), "no answer");
    let outcome = host.outcomes.iter().find(|outcome| outcome.ticket == ticket);
    outcome.expect("each ticket completes").result.clone()
}

/// Sends calls until so many were taken, turning whenever there is no room.
fn load(host: &mut Host, key: &str, tickets: std::ops::Range<u64>, within: Duration) {
    for ticket in tickets {
        while add(host, ticket, key, within).is_err() {
            host.turn(Duration::from_millis(1));
        }
    }
}

fn finish(host: &mut Host) {
    assert!(host.until(LONG, |host| host.router.waiting() == 0), "tickets are left");
    let tickets: BTreeSet<u64> = host.outcomes.iter().map(|outcome| outcome.ticket).collect();
    assert_eq!(tickets.len(), host.outcomes.len(), "a ticket completed twice");
}

fn sum(server: &Server, key: &str) -> i64 {
    let sum: Option<i64> = cmd("GET").arg(key).query(&mut server.connection()).unwrap();
    sum.unwrap_or(0)
}

#[test]
fn a_pipeline_is_answered_in_order_by_either_socket() {
    let server = Server::start(&[]);
    for (key, address) in [("tcp", tcp(&server)), ("unix", unix(&server))] {
        let mut host = host(&[&address], link());
        ready(&mut host);
        load(&mut host, key, 0..1000, LONG);
        finish(&mut host);
        for (place, outcome) in host.outcomes.iter().enumerate() {
            assert_eq!(outcome.ticket, place as u64);
            assert_eq!(outcome.result, Ok(vec![place as i64 + 1, 1]));
        }
        assert_eq!(host.connects, 1);
    }
}

#[test]
fn lost_scripts_fail_nobody_and_charge_nobody_twice() {
    let server = Server::start(&[]);
    let mut host = host(&[&tcp(&server)], LinkConfig { transmit_bytes: 32 * 1024, ..link() });
    ready(&mut host);
    let mut other = server.connection();
    thread::scope(|scope| {
        let flushing = scope.spawn(move || {
            for _ in 0..200 {
                let () = cmd("SCRIPT").arg("FLUSH").query(&mut other).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let mut next = 0;
        while !flushing.is_finished() {
            load(&mut host, "a", next..next + 100, LONG);
            next += 100;
        }
        finish(&mut host);
        assert_eq!(host.outcomes.len() as u64, next);
        assert!(host.outcomes.iter().all(|outcome| outcome.result.is_ok()), "somebody failed");
        assert_eq!(sum(&server, "a"), next as i64);
        assert_eq!(host.connects, 1);
    });
    let lost: u64 =
        server.info("errorstats", "errorstat_NOSCRIPT").trim_start_matches("count=").parse().unwrap();
    assert!(lost > 0, "no script was lost");
}

#[test]
fn who_we_are_is_said_first_and_a_refusal_is_told() {
    let server = Server::start(&["--requirepass", "right"]);
    let mut admin = server.connection();
    let () = cmd("AUTH").arg("right").query(&mut admin).unwrap();
    let () = cmd("ACL").arg(&["SETUSER", "gate", "on", ">key", "~*", "+@all"]).query(&mut admin).unwrap();

    let mut good = host(&[&tcp(&server)], LinkConfig { password: Some(b"right"), database: 3, ..link() });
    ready(&mut good);
    assert_eq!(ask(&mut good, "a"), Ok(vec![1, 1]));
    let () = cmd("SELECT").arg(3).query(&mut admin).unwrap();
    assert_eq!(cmd("GET").arg("a").query::<i64>(&mut admin).unwrap(), 1);

    let user = LinkConfig { username: Some(b"gate"), password: Some(b"key"), ..link() };
    let mut user = host(&[&unix(&server)], user);
    ready(&mut user);
    assert_eq!(ask(&mut user, "a"), Ok(vec![1, 1]), "another database");

    let mut wrong = host(&[&tcp(&server)], LinkConfig { password: Some(b"wrong"), ..link() });
    assert!(wrong.until(LONG, |host| host.closed.len() >= 3));
    assert!(!wrong.router.is_ready());
    assert!(wrong.closed.iter().all(|why| *why == "auth"), "{:?}", wrong.closed);
    assert!(wrong.router.last_error(0).starts_with(b"WRONGPASS"));
    let () = cmd("CONFIG").arg("SET").arg("requirepass").arg("wrong").query(&mut admin).unwrap();
    assert!(wrong.until(RECOVERY, |host| host.router.is_ready()), "the password is right now");

    // With all scripts, which are more than a server reads of somebody whom it does not know.
    for name in [Some(&b"tollgate"[..]), None] {
        let mut none = host(&[&tcp(&server)], LinkConfig { name, ..LinkConfig::default() });
        assert!(none.until(LONG, |host| host.closed.len() >= 5));
        assert!(none.closed.iter().all(|why| *why == "auth"), "{:?}", none.closed);
        assert_eq!(none.router.last_error(0), b"NOAUTH Authentication required.");
    }

    let mut far = host(&[&tcp(&server)], LinkConfig { password: Some(b"wrong"), database: 99, ..link() });
    assert!(far.until(LONG, |host| !host.closed.is_empty()));
    assert_eq!(far.closed[0], "database");
}

#[test]
fn killed_connections_fail_what_is_in_doubt_and_nothing_runs_twice() {
    let server = Server::start(&[]);
    let mut host = host(&[&tcp(&server)], link());
    ready(&mut host);
    let mut admin = server.connection();
    for round in 0..10u64 {
        load(&mut host, "a", round * 500..round * 500 + 500, LONG);
        let _: i64 =
            cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).query(&mut admin).unwrap();
        assert!(host.until(RECOVERY, |host| host.router.waiting() == 0 && host.router.is_ready()));
    }
    finish(&mut host);
    assert_eq!(host.outcomes.len(), 5000);
    let (mut done, mut doubt) = (0, 0);
    for outcome in &host.outcomes {
        match &outcome.result {
            Ok(_) => done += 1,
            Err(why) if why == "disconnected" => doubt += 1,
            Err(why) => assert_eq!(why, "not_ready"),
        }
    }
    let sum = sum(&server, "a");
    assert!((done..=done + doubt).contains(&sum), "{done} replies, {doubt} in doubt, {sum} executed");
    assert!(host.connects > 1);
}

#[test]
fn a_stopped_server_is_given_up_and_found_again() {
    let server = Server::start(&[]);
    let mut host = host(&[&tcp(&server)], link());
    ready(&mut host);
    server.stop();
    let mut refused = 0;
    for ticket in 0..400 {
        refused += u64::from(add(&mut host, ticket, "a", Duration::from_millis(5)).is_err());
        host.turn(Duration::from_millis(1));
        thread::sleep(Duration::from_millis(3));
    }
    assert!(refused > 0, "a dead connection was never given up");
    finish(&mut host);
    assert!(host.outcomes.len() as u64 + refused == 400);
    assert!(host.outcomes.iter().all(|outcome| outcome.result.is_err()));
    assert!(host.closed.iter().all(|why| *why == "timeout"));
    server.cont();
    assert!(host.until(RECOVERY, |host| host.router.is_ready()));
    assert!(ask(&mut host, "b").is_ok());
}

#[test]
fn a_short_stop_drops_late_replies_and_no_connection() {
    let server = Server::start(&[]);
    let mut host = host(&[&tcp(&server)], LinkConfig { stall_timeout: 10_000_000_000, ..link() });
    ready(&mut host);
    server.stop();
    load(&mut host, "a", 0..100, Duration::from_millis(20));
    finish(&mut host);
    assert!(host.outcomes.iter().all(|outcome| outcome.result == Err("timeout".into())));
    server.cont();
    assert_eq!(ask(&mut host, "b"), Ok(vec![1, 1]), "the replies before it are not its own");
    assert_eq!(sum(&server, "a"), 100);
    assert_eq!(host.connects, 1);
}

#[test]
fn a_restarted_server_is_empty_and_serves_at_once() {
    let mut server = Server::start(&[]);
    let mut host = host(&[&tcp(&server)], link());
    ready(&mut host);
    assert_eq!(ask(&mut host, "a"), Ok(vec![1, 1]));
    server.kill();
    assert!(host.until(SECOND, |host| !host.router.is_ready()));
    assert_eq!(add(&mut host, 1, "a", LONG), Err(Refused::NotConnected));
    host.until(SECOND, |_| false); // it tries, and waits longer each time
    let tries = host.connects;
    assert!((3..30).contains(&tries), "{tries} tries in a second");
    server.restart();
    assert!(host.until(RECOVERY, |host| host.router.is_ready()));
    assert_eq!(ask(&mut host, "a"), Ok(vec![1, 1]));
}

#[test]
fn a_replica_is_left_for_the_master() {
    let (replica, master) = (Server::start(&[]), Server::start(&[]));
    let mut host = host(&[&tcp(&replica), &tcp(&master)], link());
    ready(&mut host);
    assert_eq!(ask(&mut host, "a"), Ok(vec![1, 1]));
    let mut admin = replica.connection();
    let () = cmd("REPLICAOF").arg("127.0.0.1").arg(master.port()).query(&mut admin).unwrap();
    let mut outcome = ask(&mut host, "b");
    for _ in 0..100 {
        if outcome == Err("read_only".into()) {
            break;
        }
        outcome = ask(&mut host, "b"); // REPLICAOF takes effect, or its clients are cut first
        host.turn(Duration::from_millis(5));
    }
    assert_eq!(outcome, Err("read_only".into()));
    assert!(host.until(RECOVERY, |host| host.router.is_ready()));
    assert_eq!(ask(&mut host, "c"), Ok(vec![1, 1]));
    assert_eq!(sum(&master, "c"), 1);
}

#[test]
fn a_full_server_is_told_and_kept() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let mut host = host(&[&tcp(&server)], link());
    ready(&mut host);
    let mut admin = server.connection();
    let () = cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).query(&mut admin).unwrap();
    assert_eq!(ask(&mut host, "a"), Err("out_of_memory".into()));
    let () = cmd("CONFIG").arg(&["SET", "maxmemory", "0"]).query(&mut admin).unwrap();
    assert_eq!(ask(&mut host, "a"), Ok(vec![1, 1]));
    assert_eq!(host.connects, 1);
}

#[test]
fn something_else_at_our_key_is_that_keys_fault_alone() {
    let server = Server::start(&[]);
    let mut host = host(&[&tcp(&server)], link());
    ready(&mut host);
    let () = cmd("LPUSH").arg("list").arg(1).query(&mut server.connection()).unwrap();
    assert_eq!(ask(&mut host, "list"), Err("wrong_type".into()));
    assert_eq!(ask(&mut host, "a"), Ok(vec![1, 1]));
    assert_eq!(host.connects, 1);
}

#[test]
fn a_busy_server_is_told_and_kept() {
    let server = Server::start(&["--busy-reply-threshold", "10"]);
    let mut host = host(&[&tcp(&server)], LinkConfig { stall_timeout: 10_000_000_000, ..link() });
    ready(&mut host);
    let mut slow = server.connection();
    let mut admin = server.connection();
    thread::scope(|scope| {
        scope.spawn(move || cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut slow));
        let mut outcome = ask(&mut host, "a");
        for _ in 0..1000 {
            if outcome.is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
            outcome = ask(&mut host, "a");
        }
        let () = cmd("SCRIPT").arg("KILL").query(&mut admin).unwrap();
        assert_eq!(outcome, Err("busy".into()));
    });
    assert!(ask(&mut host, "a").is_ok());
    assert_eq!(host.connects, 1);
}

#[test]
fn a_server_that_loads_is_waited_for() {
    let options = [
        "--key-load-delay",
        "2000",
        "--loading-process-events-interval-bytes",
        "1024",
        "--dbfilename",
        "all.rdb",
    ];
    let mut server = Server::start(&options);
    let mut connection = server.connection();
    let fill = "for i = 1, 400 do redis.call('SET', 'k' .. i, string.rep('x', 900)) end";
    let () = cmd("EVAL").arg(fill).arg(0).query(&mut connection).unwrap();
    let () = cmd("SAVE").query(&mut connection).unwrap();
    let mut host = host(&[&tcp(&server)], link());
    ready(&mut host);
    server.kill();
    thread::scope(|scope| {
        let restarting = scope.spawn(|| server.restart());
        while !restarting.is_finished() {
            host.turn(Duration::from_millis(5));
        }
        restarting.join().unwrap();
    });
    assert!(host.closed.contains(&"loading"), "{:?}", host.closed);
    assert!(host.until(RECOVERY, |host| host.router.is_ready()));
    assert!(ask(&mut host, "a").is_ok());
}

#[test]
fn a_probe_says_whether_writes_are_taken() {
    let server = Server::start(&[]);
    let mut host = host(&[&tcp(&server)], link());
    ready(&mut host);
    let mut admin = server.connection();
    for (ticket, (limit, expected)) in
        [("0", Ok(vec![])), ("1", Err("out_of_memory".into()))].into_iter().enumerate()
    {
        let () = cmd("CONFIG").arg(&["SET", "maxmemory", limit]).query(&mut admin).unwrap();
        let now = host.now();
        host.router.probe(ticket as u64, b"probe", now + 1_000_000_000, now).unwrap();
        finish(&mut host);
        assert_eq!(host.outcomes[ticket].result, expected);
    }
    let ttl: i64 = cmd("PTTL").arg("probe").query(&mut admin).unwrap();
    assert!(ttl != -1, "every key has a time to live");
}

#[test]
fn the_calls_of_limits_are_sent_by_their_digests_and_are_loaded_again() {
    let server = Server::start(&[]);
    let mut host = host(&[&tcp(&server)], LinkConfig::default());
    ready(&mut host);
    let texts = [
        "10/s burst 3",
        "leaky_bucket 10/s burst 3",
        "fixed_window 3/m",
        "sliding_window 3/m",
        "sliding_log 3/m",
        "concurrency 3/m",
    ];
    let limits: Vec<Limit> = texts.iter().map(|text| text.parse().unwrap()).collect();
    let keys: Vec<Vec<u8>> = (0..limits.len()).map(|place| format!("{{t}}:{place}").into_bytes()).collect();
    let asks: Vec<Ask<'_>> =
        keys.iter().zip(&limits).map(|(key, limit)| Ask { key: key.as_slice(), limit }).collect();
    let mut calls: Vec<&[Ask<'_>]> = asks.chunks(1).collect();
    calls.push(&asks); // all of them at once
    for round in 0..2 {
        for asks in &calls {
            let () = cmd("SCRIPT").arg("FLUSH").query(&mut server.connection()).unwrap();
            let id = host.outcomes.len() as u64;
            let op = Op::Check { cost: 1, more: 0, share: 1, owed: 0, id };
            host.send(id, &Call { asks, op }, LONG).unwrap();
            finish(&mut host);
            let outcome = host.outcomes.last().unwrap().result.clone();
            let integers = outcome.unwrap_or_else(|why| panic!("{why}"));
            let mut decisions = [NOTHING; 6];
            let of = &mut asks.iter().map(|ask| ask.limit);
            decode(of, &integers, &mut decisions[..asks.len()]).unwrap();
            assert!(decisions[..asks.len()].iter().all(|decision| decision.allowed || round > 0));
        }
    }
    assert_eq!(host.connects, 1);
}
