use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

fn fingerprint(key: u64) -> Fingerprint {
    Fingerprint((key + 1) << 16 | 0xABCD)
}

fn label(key: u64) -> Label {
    let mut label = Label::new("policy");
    let _ = write!(label, "key={key}");
    label
}

fn top<const K: usize>(sketch: &TopKeys<K>) -> Vec<Top> {
    let mut room = [Top::default(); K];
    let len = sketch.top(&mut room);
    room[..len].to_vec()
}

/// The laws of the sketch, for one that one thread filled.
fn is_lawful<const K: usize>(sketch: &TopKeys<K>, keys: &[u64]) -> Result<(), TestCaseError> {
    let mut exact = BTreeMap::<u64, u64>::new();
    keys.iter().for_each(|key| *exact.entry(*key).or_default() += 1);
    let told = top(sketch);
    prop_assert!(told.is_sorted_by(|a, b| a.count >= b.count));
    prop_assert_eq!(told.iter().map(|t| t.count).sum::<u64>(), keys.len() as u64);
    for entry in &told {
        let hits = exact.get(&(entry.id - 1)).copied().unwrap_or(0);
        prop_assert!(entry.count >= hits && entry.count - hits <= entry.error, "{entry:?}: {hits}");
        prop_assert!(entry.error <= (keys.len() / K) as u64);
        prop_assert_eq!(entry.label, label(entry.id - 1));
    }
    for (key, hits) in exact {
        if hits > (keys.len() / K) as u64 {
            prop_assert!(told.iter().any(|t| t.id == key + 1), "{key} with {hits} hits is not there");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn frequent_keys_are_there_and_no_count_is_further_off_than_it_says(
        keys in prop::collection::vec(prop_oneof![3 => 0u64..6, 2 => 0u64..40, 1 => any::<u32>().prop_map(u64::from)], 0..800),
    ) {
        let (small, large) = (TopKeys::<8>::default(), TopKeys::<32>::default());
        for &key in &keys {
            small.record(fingerprint(key), || label(key));
            large.record(fingerprint(key), || label(key));
        }
        is_lawful(&small, &keys)?;
        is_lawful(&large, &keys)?;
        prop_assert_eq!((small.lost(), small.hits()), (0, keys.len() as u64));
    }

    #[test]
    fn no_bytes_make_a_label_that_is_not_printable(
        name in ".{0,70}",
        parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..4),
    ) {
        let mut made = Label::new(&name);
        parts.iter().for_each(|part| made.push_bytes(part));
        prop_assert!(made.as_str().chars().all(is_printable) && made.as_str().len() <= Label::SIZE);
        prop_assert!(!made.is_empty());
        let again = Label::from_words(&made.words());
        prop_assert_eq!(again.as_str(), made.as_str());
    }

    #[test]
    fn no_memory_makes_a_label_that_is_not_printable(words in any::<[u64; WORDS]>()) {
        prop_assert!(Label::from_words(&words).as_str().chars().all(is_printable));
    }
}

#[test]
fn what_is_written_into_a_label_is_escaped_and_cut() {
    let mut made = Label::new("a b");
    made.push_bytes(b"x\r\n\0\x1b[2J\xff\xc3\xb6");
    assert_eq!(made.as_str(), "a_b x\\u{d}\\u{a}\\u{0}\\u{1b}[2J\\xffö");
    assert_eq!((made.name(), made.rest()), ("a_b", "x\\u{d}\\u{a}\\u{0}\\u{1b}[2J\\xffö"));
    made.push_bytes(&vec![b'y'; 1 << 20]);
    assert!(made.as_str().ends_with("y…") && made.as_str().len() == Label::SIZE, "{made}");
    made.push_bytes(b"z");
    assert!(made.to_string().ends_with("y…"));
}

#[test]
fn counts_that_age_make_room_for_the_present() {
    let sketch = TopKeys::<4>::default();
    for key in 0..4 {
        (0..1000).for_each(|_| sketch.record(fingerprint(key), || label(key)));
    }
    (0..12).for_each(|_| sketch.age());
    (0..5).for_each(|_| sketch.record(fingerprint(9), || label(9)));
    assert_eq!(top(&sketch)[0].label, label(9));
}

#[test]
fn threads_find_the_frequent_keys() {
    let sketch = TopKeys::<16>::default();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let sketch = &sketch;
            scope.spawn(move || {
                for i in 0..20_000u64 {
                    // Half of the hits are three keys', the rest were never seen.
                    let key = if i % 2 == 0 { i / 2 % 3 } else { 1000 + thread * 1_000_000 + i };
                    sketch.record(fingerprint(key), || label(key));
                }
            });
        }
    });
    let told = top(&sketch);
    let total: u64 = told.iter().map(|t| t.count).sum();
    assert!(total + sketch.lost() == 80_000, "{total} and {} lost", sketch.lost());
    for key in 0..3 {
        let place = told.iter().position(|t| t.id == key + 1).expect("it has a sixth of all hits");
        assert!(place < 3, "{told:#?}");
        assert!(told[place].label == label(key), "a later hit writes the label again");
        assert!(told[place].count.abs_diff(13_333) <= 80_000 / 16 + sketch.lost(), "{told:#?}");
    }
    let ids: std::collections::BTreeSet<_> = told.iter().map(|t| t.id).collect();
    assert_eq!(ids.len(), told.len(), "a key stands there once");
}

/// What a process that is killed between the swap and the label leaves.
#[test]
fn an_entry_without_mark_or_label_is_of_use_again() {
    let sketch = TopKeys::<2>::default();
    let id = fingerprint(7).0 >> 16;
    assert!(sketch.entries[0].word.swap(Word::default(), Held { id, count: 1, error: 0 }.pack()).is_ok());
    assert!(top(&sketch)[0].label.is_empty());
    for _ in 0..RENEW {
        sketch.record(fingerprint(7), || label(7));
    }
    let told = top(&sketch);
    assert_eq!((told.len(), told[0].count, told[0].label), (1, RENEW + 1, label(7)));
    // A label that was being written when another key took the entry.
    sketch.entries[1].label[0].store(0xFFFF, Ordering::Relaxed);
    assert_eq!(top(&sketch)[0].label.name(), "");
    for key in 0..100 {
        sketch.record(fingerprint(key % 3), || label(key % 3));
    }
    assert!(top(&sketch).iter().all(|t| t.label == label(t.id - 1)), "{:#?}", top(&sketch));
}
