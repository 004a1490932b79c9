//! What a request costs in calls: each call into the host, and from there into the VM, takes about as
//! long as a decision. Envoy itself tells them, in its log.

use std::collections::BTreeMap;

use tollgate_tests::envoy::{Envoy, Setup};

use super::support::by_user;

/// Calls of the host that one request takes which a lease admits: what time it is, who asks, and the
/// three fields of the response. More than these are a step back; whoever needs fewer says so here.
const ADMITTED: usize = 5;
/// The same that a remembered denial answers: what time it is, who asks, whether by gRPC, and the
/// answer with its fields.
const DENIED: usize = 4;
/// Without a lease: a page that is read, and written.
const EXCHANGE: usize = 2;
/// Calls of the VM: a request begins, shows its fields, those of its response and its body, and ends;
/// and for each value that is handed over, memory.
const OF_THE_VM: usize = 6;

/// Requests until a key is in its steady state.
const WARM: usize = 100;

#[test]
fn a_request_takes_as_few_calls_as_it_can() {
    let many = by_user(r#"{ "rate": "1000000/s" }"#);
    let none = by_user(r#"{ "rate": "1/d" }"#);
    let without = many.replacen('{', r#"{ "embedded": { "lease": 0 }, "#, 1);
    for (what, plugin, most) in [
        ("a lease", &many, ADMITTED),
        ("a remembered denial", &none, DENIED),
        ("without a lease", &without, ADMITTED + EXCHANGE),
    ] {
        let mut setup = Setup::new(plugin);
        setup.traced = true;
        let envoy = setup.start();
        let mut conn = envoy.connect();
        for _ in 0..2 * WARM {
            conn.request("GET", "/", &[("x-user", "a")]);
            assert!(conn.response_to("GET").is_some());
        }
        let usual = usual(&envoy);
        println!("{what}: {} calls of the host, {} of the VM: {usual:?}", usual.host.len(), usual.vm.len());
        assert!(usual.host.len() <= most, "{what}: {usual:?}");
        assert!(usual.vm.len() <= OF_THE_VM + EXCHANGE / 2, "{what}: {usual:?}");
    }
}

/// The calls of one request, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Calls {
    host: Vec<String>,
    vm: Vec<String>,
}

/// What most requests of the second half take.
fn usual(envoy: &Envoy) -> Calls {
    let calls = calls(&envoy.log());
    assert!(calls.len() >= 2 * WARM - 1, "{} requests are in the log", calls.len());
    let mut times: BTreeMap<&Calls, usize> = BTreeMap::new();
    for calls in &calls[WARM..] {
        *times.entry(calls).or_default() += 1;
    }
    let (usual, count) = times.into_iter().max_by_key(|(_, count)| *count).expect("some");
    assert!(count > WARM / 2, "no two are alike: {count}");
    usual.clone()
}

/// The calls of each request that has ended, by what a traced log tells: `[thread][trace][wasm] …
/// [host->vm] function(context, …)`, and so on for each way.
fn calls(log: &str) -> Vec<Calls> {
    let mut under_way: BTreeMap<u64, Calls> = BTreeMap::new();
    let mut ended = Vec::new();
    // Of each thread: the context that was called, and how deep.
    let mut threads: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("][trace][wasm]")) {
        let thread = line.split("][").nth(1).unwrap_or_default();
        let (context, depth) = threads.entry(thread).or_default();
        let Some((_, told)) = line.split_once("wasm_vm.cc").and_then(|(_, rest)| rest.split_once("] "))
        else {
            continue;
        };
        let name = |text: &str| text.split('(').next().unwrap_or_default().to_owned();
        if let Some(call) = told.strip_prefix("[host->vm] ") {
            if *depth == 0 {
                let mut arguments = call.split(['(', ',', ')']).skip(1).map(|text| text.trim().parse());
                *context = arguments.next().and_then(Result::ok).unwrap_or(0);
                let parent: u64 = arguments.next().and_then(Result::ok).unwrap_or(0);
                if call.starts_with("proxy_on_context_create") && parent > 0 {
                    under_way.insert(*context, Calls::default());
                }
            }
            *depth += 1;
            if let Some(calls) = under_way.get_mut(context) {
                calls.vm.push(name(call));
            }
        } else if let Some(call) = told.strip_prefix("[vm->host] ") {
            if let Some(calls) = under_way.get_mut(context) {
                calls.host.push(name(call));
            }
        } else if told.starts_with("[host<-vm]") {
            *depth = depth.saturating_sub(1);
            if *depth == 0 && told.contains("proxy_on_done") {
                ended.extend(under_way.remove(context));
            }
        }
    }
    ended
}
