//! The C ABI as its caller sees it: what the libraries export, what the header says of sizes, and
//! that no call, however wrong, does more than answer with a status.

use core::mem::{offset_of, size_of};
use std::ffi::CStr;
use std::fs;
use std::process::Command;
use std::ptr::{null, null_mut};

use tollgate::*;
use tollgate_tests::install::{Language, Linkage, Watch, all_ways, compile, prefix, root, succeed};

/// `tests/c/abuse_*.c` call every function as it must not be called.
#[test]
fn no_abuse_of_pointers_harms() {
    every_way_unharmed("tests/c/abuse_pointers.c");
}

#[test]
fn no_abuse_of_values_harms() {
    every_way_unharmed("tests/c/abuse_values.c");
}

#[test]
fn rules_are_refused_or_taken_whole() {
    every_way_unharmed("tests/c/abuse_rules.c");
}

#[test]
fn a_client_without_a_redis_is_none_the_worse() {
    every_way_unharmed("tests/c/abuse_client.c");
}

#[test]
fn a_shared_store_is_not_harmed_by_its_host_or_its_server() {
    every_way_unharmed("tests/c/abuse_redis.c");
}

fn every_way_unharmed(source: &str) {
    for (language, linkage, watch) in all_ways() {
        assert_eq!(compile(source, language, linkage, watch).run(), "unharmed: 0 failures\n");
    }
}

#[test]
fn the_libraries_export_exactly_the_functions_of_the_header() {
    let library = |name: &str| prefix().join("lib").join(name);
    let mut check = Command::new(root().join(".ci/check-symbols"));
    check.arg(prefix().join("include/tollgate.h")).arg(library("libtollgate.so"));
    let said = succeed(check.arg(library("libtollgate.a")));
    assert!(said.contains("exactly the header's"), "{said}");
}

#[test]
fn the_header_is_what_the_sources_say() {
    succeed(Command::new(env!("CARGO_BIN_EXE_header")).arg("--check"));
}

/// The abuse tests are of every function: one that is new in the header has to be abused too.
#[test]
fn every_function_is_abused() {
    let header = fs::read_to_string(root().join("include/tollgate.h")).unwrap();
    let read = |name: &str| fs::read_to_string(root().join("tests/c").join(name)).unwrap();
    let files =
        ["abuse.h", "abuse_pointers.c", "abuse_values.c", "abuse_rules.c", "abuse_redis.c", "abuse_client.c"];
    let abuse: String = files.map(read).concat();
    let words = header.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(');
    let functions: Vec<&str> = words
        .filter(|word| word.starts_with("tollgate_"))
        .filter_map(|word| word.split_once('('))
        .map(|w| w.0)
        .collect();
    assert!(functions.len() > 30, "{functions:?}");
    for function in functions {
        assert!(abuse.contains(&format!("{function}(")), "{function} is not abused");
    }
}

/// What C makes of the header is what Rust made of its own types.
#[test]
fn sizes_and_offsets_are_the_same_on_both_sides() {
    let mut source = String::from("#include <stddef.h>\n#include <tollgate.h>\n");
    let mut same = |what: &str, value: usize| {
        source.push_str(&format!("typedef char same_{}[({what}) == {value} ? 1 : -1];\n", source.len()));
    };
    macro_rules! same {
        ($($type:ident { $($field:ident),* })*) => {$(
            same(concat!("sizeof(", stringify!($type), ")"), size_of::<$type>());
            $(same(
                concat!("offsetof(", stringify!($type), ", ", stringify!($field), ")"),
                offset_of!($type, $field),
            );)*
        )*};
    }
    same! {
        tollgate_limit_config { struct_size, algorithm, limit, period_ns, burst, anchor, reserved }
        tollgate_limit { opaque }
        tollgate_decision { limit, remaining, retry_after_ns, reset_after_ns, delay_ns, allowed, reserved }
        tollgate_table_config { struct_size, flags, capacity, rows, row_entries, seed }
        tollgate_table { opaque }
        tollgate_request { key, key_len, limit, cost }
        tollgate_hold { row, fingerprint, expires_ns, units }
        tollgate_table_stats { capacity, used, evictions, rows, rows_used, row_evictions }
        tollgate_bytes { data, len }
        tollgate_attributes { struct_size, reserved, route, method, host, path, peer, headers, header_count }
        tollgate_layer { policy, limit, outcome, overridden, decision, hold }
        tollgate_answer {
            allowed, status, count, tightest, delay_ns, policy, missing, overflow, source, degraded, reserved,
            limit, layers
        }
        tollgate_histogram_snapshot { count, sum_ns, p50_ns, p99_ns, p999_ns, at_most }
        tollgate_top_key { count, error, policy, key, reserved }
        tollgate_store_snapshot {
            calls, replies, lease_hits, denial_hits, prefetches, give_backs, timeouts, failures, key_failures,
            fallback_local, fallback_allow, fallback_deny, opened, open, waiting, connected, latency
        }
        tollgate_redis_config {
            struct_size, flags, addresses, address_count, username, password, region, database, workers,
            instances, instance, timeout_ns, waiting, keys, holds, reserved, seed
        }
        tollgate_redis_action { kind, link, address, reason, words }
        tollgate_redis_state { breaker, ready, links, whole, waiting, in_flight, held, trouble, words }
        tollgate_policy { name, name_len, limits, dry_run, overrides, shared, reserved }
        tollgate_http_field { name, name_len, value, value_len }
        tollgate_client_config {
            struct_size, connections, url, region, tls_authorities, tls_certificate, tls_key, connect_timeout_ns,
            timeout_ns, instances, instance, waiting, keys, holds, stores, capacity, rows, row_entries
        }
        tollgate_client_stats { breaker, connections, trouble, store }
        tollgate_counters { opaque }
        tollgate_counters_snapshot { allowed, rejected, delayed, rejected_dry_run, delayed_dry_run, errors }
    }
    source.push_str("int main(void) { return (int)tollgate_abi_version() - (int)TOLLGATE_ABI_VERSION; }\n");
    let path = "target/tests/sizes.c";
    prefix(); // makes the folder
    fs::write(root().join(path), source).unwrap();
    for language in [Language::C, Language::Cpp] {
        compile(path, language, Linkage::Static, Watch::Plain).run();
    }
}

/// In a debug build arithmetic that overflows panics: here, it would abort the caller.
#[test]
fn no_number_is_too_large_to_be_refused() {
    let numbers = [0, 1, 3, 4, 1 << 24, 1 << 32, 1 << 40, 1 << 60, u64::MAX - 3, u64::MAX - 1, u64::MAX];
    let mut memory = Memory([0; 1 << 16]);
    let size = size_of::<Memory>();
    for capacity in numbers {
        for rows in numbers {
            for row_entries in numbers {
                let struct_size = size_of::<tollgate_table_config>() as u32; // a few bytes
                let config = tollgate_table_config {
                    struct_size,
                    flags: 0,
                    capacity,
                    rows,
                    row_entries,
                    seed: [0; 2],
                };
                let (mut needed, mut align, mut most) = (0, 0, 0);
                let mut table = tollgate_table { opaque: [0; _] };
                let place = (&raw mut memory).cast();
                // SAFETY: the pointers lead to what their types say.
                let (laid_out, made, found) = unsafe {
                    tollgate_table_capacity(size, rows, row_entries, &raw mut most);
                    (
                        tollgate_table_layout(&raw const config, &raw mut needed, &raw mut align),
                        tollgate_table_init(place, size, &raw const config, &raw mut table),
                        tollgate_table_attach(place, size, &raw const config, &raw mut table),
                    )
                };
                assert_eq!(made == TOLLGATE_OK, laid_out == TOLLGATE_OK && needed <= size, "{config:?}");
                assert_eq!(found, if made == TOLLGATE_OK { TOLLGATE_OK } else { TOLLGATE_ERR_MISMATCH });
                memory.0[..8].fill(0); // so that the next finds no table of this one
            }
        }
    }
}

#[repr(C, align(64))]
struct Memory([u8; 1 << 16]);

#[test]
fn any_limit_that_is_made_decides_at_any_time_about_any_cost() {
    let numbers =
        [1, 2, 999, 1000, 1001, 1 << 31, u64::from(u32::MAX), 1 << 58, 316_224_000_000_000_000, u64::MAX];
    let times = [0, 1, 1 << 61, u64::MAX / 2, u64::MAX - 1, u64::MAX, 5];
    let mut memory = Memory([0; 1 << 16]);
    for (algorithm, (limit, (period_ns, burst))) in (0..6)
        .flat_map(|a| numbers.map(|l| (a, l)))
        .flat_map(|(a, l)| numbers.map(|p| (a, (l, p))))
        .flat_map(|(a, (l, p))| [0, 1, 7, u64::from(u32::MAX)].map(|b| (a, (l, (p, b)))))
    {
        let struct_size = size_of::<tollgate_limit_config>() as u32; // a few bytes
        let config =
            tollgate_limit_config { struct_size, algorithm, limit, period_ns, burst, anchor: 0, reserved: 0 };
        let mut made = tollgate_limit { opaque: [0; _] };
        let (mut bucket, mut decision) = (null_mut(), tollgate_decision::default());
        // SAFETY: the pointers lead to what their types say; the bucket's memory is there.
        unsafe {
            if tollgate_limit_init(&raw const config, &raw mut made, null_mut(), 0) != TOLLGATE_OK {
                continue;
            }
            let (place, size) = ((&raw mut memory).cast(), size_of::<Memory>());
            if tollgate_bucket_init(place, size, &raw const made, &raw mut bucket) != TOLLGATE_OK {
                continue; // no bucket holds it, or only a larger one
            }
            for (now, cost) in times.into_iter().flat_map(|now| numbers.map(|cost| (now, cost))) {
                let status = tollgate_bucket_check(bucket, cost, now, &raw mut decision);
                assert_eq!(status, TOLLGATE_OK);
                assert!(
                    decision.remaining <= if burst == 0 { limit } else { burst },
                    "{config:?} {decision:?}"
                );
                assert_eq!(tollgate_bucket_refund(bucket, cost, now), TOLLGATE_OK);
                assert_eq!(tollgate_bucket_set_limit(bucket, &raw const made, now), TOLLGATE_OK);
            }
        }
    }
}

#[test]
fn each_status_has_its_own_words() {
    let mut seen = Vec::new();
    for status in TOLLGATE_ERR_UNSUPPORTED..=TOLLGATE_OK {
        // SAFETY: a static string.
        let words = unsafe { CStr::from_ptr(tollgate_status_str(status)) };
        assert!(!seen.contains(&words) && words != c"unknown status", "{status}: {words:?}");
        seen.push(words);
    }
    // SAFETY: a static string; NULL where an argument is.
    unsafe {
        assert_eq!(CStr::from_ptr(tollgate_status_str(1)), c"unknown status");
        assert_eq!(CStr::from_ptr(tollgate_version()).to_str(), Ok(env!("CARGO_PKG_VERSION")));
        assert_eq!(tollgate_limit_describe(null(), null_mut()), TOLLGATE_ERR_NULL);
    }
}
