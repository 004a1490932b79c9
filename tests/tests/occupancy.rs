//! A table that is 80 % full of active keys refuses none and evicts none, at
//! any size and under any seed.

use tollgate_core::Limit;
use tollgate_core::key::Seed;
use tollgate_core::table::{Config, OwnedTable};

#[test]
fn four_keys_in_five_places_evict_nobody() {
    let limit: Limit = "1/h".parse().unwrap();
    for capacity in [1_240, 1_241, 2_000, 5_000, 54_400] {
        for seed in 0..if capacity > 10_000 { 4 } else { 40 } {
            let config = Config { capacity, rows: 0, row_entries: 0 };
            let owned = OwnedTable::new(config, Seed([seed, capacity])).unwrap();
            let table = owned.table().unwrap();
            let keys = capacity * 4 / 5;
            for round in 0..2 {
                for key in 0..keys {
                    let allowed = table.check(&key.to_le_bytes(), &limit, 1, 1_000_000_000).allowed;
                    assert_eq!(allowed, round == 0, "capacity {capacity}, seed {seed}, key {key}");
                }
            }
            assert_eq!(table.stats().evictions, 0, "capacity {capacity}, seed {seed}");
            assert_eq!(table.live(1_000_000_000), keys);
        }
    }
}

/// Rows are longer walks of single places, so fewer of them can be in use
/// before one is evicted: half of them always can.
#[test]
fn half_of_all_rows_can_be_in_use() {
    for text in ["sliding_log 1/h", "concurrency 1/h"] {
        let limit: Limit = text.parse().unwrap();
        for (rows, seed) in [(100, 1), (1_000, 2), (2_000, 3), (2_000, 4)] {
            let config = Config { capacity: 4, rows, row_entries: 1 };
            let owned = OwnedTable::new(config, Seed([seed, rows])).unwrap();
            let table = owned.table().unwrap();
            for round in 0..2 {
                for key in 0..rows / 2 {
                    let key = key.to_le_bytes();
                    let (now, cost) = (1_000_000_000, 1);
                    let allowed = match text.starts_with("concurrency") {
                        true => table.acquire(&key, &limit, cost, now).0.allowed,
                        false => table.check(&key, &limit, cost, now).allowed,
                    };
                    assert_eq!(allowed, round == 0, "{text}, {rows} rows");
                }
            }
            assert_eq!(table.stats().row_evictions, 0, "{text}, {rows} rows");
        }
    }
}
