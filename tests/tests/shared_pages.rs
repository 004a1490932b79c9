//! Pages of a host's shared data that somebody else has spoilt: whatever lies in them, each call has
//! a legal answer, and the pages stay within their size.

use proptest::prelude::*;
use tollgate_core::{Algorithm, Limit, Nanos};
use tollgate_tests::shared_pages::{Paged, Shared};

const SECOND: Nanos = 1_000_000_000;
const START: Nanos = 1_700_000_000 * SECOND;

/// One thing that happens to the bytes of a page.
#[derive(Clone, Debug)]
enum Spoil {
    Set(usize, u8),
    /// Eight bytes at once: a time or a number at its end.
    Long(usize, u64),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Double,
    Fill(u8),
}

fn spoil() -> impl Strategy<Value = Spoil> {
    // Most fields of a page's first rows lie below.
    let place = 0usize..600;
    let edge = prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(u64::MAX - 1), Just(1 << 63), any::<u64>()];
    prop_oneof![
        4 => (place.clone(), any::<u8>()).prop_map(|(at, byte)| Spoil::Set(at, byte)),
        4 => (place.clone(), edge).prop_map(|(at, number)| Spoil::Long(at, number)),
        1 => place.clone().prop_map(Spoil::Cut),
        1 => (place, prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, bytes)| Spoil::Insert(at, bytes)),
        1 => Just(Spoil::Double),
        1 => any::<u8>().prop_map(Spoil::Fill),
    ]
}

fn apply(spoil: &Spoil, bytes: &mut Vec<u8>) {
    match spoil {
        Spoil::Set(at, byte) => {
            if let Some(room) = bytes.get_mut(*at) {
                *room = *byte;
            }
        }
        Spoil::Long(at, number) => {
            if let Some(room) = bytes.get_mut(*at..*at + 8) {
                room.copy_from_slice(&number.to_le_bytes());
            }
        }
        Spoil::Cut(at) => bytes.truncate(*at),
        Spoil::Insert(at, more) => {
            let at = (*at).min(bytes.len());
            bytes.splice(at..at, more.iter().copied());
        }
        Spoil::Double => {
            let tail = bytes.get(12..4000.min(bytes.len())).unwrap_or(&[]).to_vec();
            bytes.extend(tail);
        }
        Spoil::Fill(byte) => {
            bytes.resize(3000, 0);
            let from = bytes.len().min(12);
            bytes[from..].fill(*byte);
        }
    }
}

fn limit(algorithm: Algorithm, rate: u64) -> Limit {
    Limit::new(algorithm, rate, SECOND).expect("a legal limit")
}

/// Nothing of a page that was written in a time to come holds the clock for ever.
#[test]
fn a_time_to_come_is_not_believed() {
    let shared = Shared::default();
    let mut key = Paged::new(shared.clone(), limit(Algorithm::TokenBucket, 1), b"key");
    assert!(key.check(1, START).allowed && !key.check(1, START).allowed);
    shared.change(|bytes| bytes[4..12].copy_from_slice(&(START + 3_600 * SECOND).to_le_bytes()));
    assert!(!key.check(1, START).allowed);
    assert!(key.check(1, START + SECOND).allowed);
}

proptest! {
    #[test]
    fn whatever_lies_in_a_page_each_call_has_a_legal_answer(
        spoils in prop::collection::vec(spoil(), 1..6),
        steps in prop::collection::vec((0usize..12, 0u64..8, 0u64..3 * SECOND), 1..12),
        rate in 1u64..20,
    ) {
        let shared = Shared::default();
        let mut keys: Vec<Paged> = (0..12)
            .map(|number| {
                let algorithm = Algorithm::ALL[number % Algorithm::ALL.len()];
                Paged::new(shared.clone(), limit(algorithm, rate), format!("key {number}").as_bytes())
            })
            .collect();
        for key in &mut keys {
            let _ = key.check(1, START);
        }
        let mut now = START;
        for (number, cost, pause) in steps {
            for spoil in &spoils {
                shared.change(|bytes| apply(spoil, bytes));
            }
            let key = &mut keys[number];
            let decision = key.check(cost, now);
            prop_assert!(decision.remaining <= key.limit().burst(), "{decision:?}");
            prop_assert!(!decision.allowed || decision.retry_after == 0, "{decision:?}");
            let same = key.check(0, now);
            prop_assert!(same.remaining <= key.limit().burst(), "{:?}", same);
            key.refund(u64::MAX, pause, now);
            key.set_limit(limit(key.limit().algorithm(), rate + cost));
            let _ = key.check(1, now);
            key.set_limit(limit(key.limit().algorithm(), rate));
            now += pause;
            prop_assert!(shared.longest() <= tollgate_core::pages::LONG_PAGE_SIZE);
        }
    }
}

/// Who is denied under a new limit waits at its rate, not at that of the limit that was before.
#[test]
fn a_raised_limit_admits_when_it_told_it_would_whoever_asks_meanwhile() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        let [slow, fast] =
            [Limit::new(algorithm, 1, 3_600 * SECOND), Limit::new(algorithm, 1, SECOND)].map(Result::unwrap);
        let mut key = Paged::new(Shared::default(), slow, b"key");
        assert!(key.check(1, START).allowed);
        key.set_limit(fast);
        let denied = key.check(1, START + SECOND);
        assert!(!denied.allowed && denied.retry_after <= SECOND, "{denied:?}");
        assert!(!key.check(1, START + SECOND + denied.retry_after - 1).allowed);
        assert!(key.check(1, START + SECOND + denied.retry_after).allowed, "{algorithm:?}");
    }
}
