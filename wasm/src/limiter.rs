//! Many keys in fixed memory: the table that gateways count in.

use js_sys::{Array, Object, Uint8Array};
use tollgate_core::metrics::{Counters, Label, Top, TopKeys};
use tollgate_core::table::{Config, Hold, OwnedTable, Table};
use tollgate_core::{Decision, Limit as Core, Nanos};
use wasm_bindgen::prelude::*;

use crate::limit::Limit;
use crate::value::{self, Result, cost, nanos, refuse, refused, set, whole};

/// Keys that are followed of those denied most.
const TOP: usize = 64;
/// The largest table: a page's memory ends at 4 GiB.
const MOST_KEYS: u64 = 4_194_304;
/// Holds in flight that can be released.
const MOST_HOLDS: usize = 1 << 20;

/// A table, and what is counted of its answers.
#[wasm_bindgen]
pub struct Limiter {
    owned: OwnedTable,
    bytes: usize,
    counters: Counters,
    top: Box<TopKeys<TOP>>,
    /// Those in flight, by their number; the place of one that has ended is used again.
    holds: Vec<(u64, Hold)>,
    held: u64,
}

#[wasm_bindgen]
impl Limiter {
    /// An empty table.
    #[wasm_bindgen(constructor)]
    pub fn new(capacity: &JsValue, options: &JsValue) -> Result<Limiter> {
        let capacity = whole("capacity", capacity, 1, MOST_KEYS)?;
        value::object("options", options)?;
        let option = |name: &str, most: u64| {
            value::given(options, name).map_or(Ok(0), |given| whole(name, &given, 0, most))
        };
        let (rows, row_entries) = (option("rows", 65_536)?, option("rowEntries", 1_048_576)?);
        let config = Config { capacity, rows, row_entries };
        let bytes = config.size().map_err(refused)?;
        value::room("capacity", bytes)?;
        let owned = OwnedTable::new(config, value::seed()).map_err(refused)?;
        Ok(Limiter {
            owned,
            bytes,
            counters: Counters::default(),
            top: Box::default(),
            holds: Vec::new(),
            held: 0,
        })
    }

    /// Charges a cost to a key if it fits.
    pub fn check(&self, key: &JsValue, limit: &Limit, now: &JsValue, units: &JsValue) -> Result<Object> {
        self.ask(
            key,
            &limit.0,
            now,
            units,
            |table, key, limit, cost, now| table.check(key, limit, cost, now),
            true,
        )
    }

    /// What a check would say.
    pub fn peek(&self, key: &JsValue, limit: &Limit, now: &JsValue, units: &JsValue) -> Result<Object> {
        self.ask(
            key,
            &limit.0,
            now,
            units,
            |table, key, limit, cost, now| table.peek(key, limit, cost, now),
            false,
        )
    }

    /// Takes units in flight, of a concurrency limit.
    pub fn acquire(
        &mut self,
        key: &JsValue,
        limit: &Limit,
        now: &JsValue,
        units: &JsValue,
    ) -> Result<Object> {
        let mut held = Hold::default();
        let take = |table: &Table<'_>, key: &[u8], limit: &Core, cost: u64, now: Nanos| {
            let (decision, hold) = table.acquire(key, limit, cost, now);
            held = hold;
            decision
        };
        let object = self.ask(key, &limit.0, now, units, take, true)?;
        set(&object, "hold", self.keep(held, value::nanos("now", now)?));
        Ok(object)
    }

    /// Gives back what a hold has taken; false where there is none of that number.
    pub fn release(&mut self, hold: &JsValue) -> Result<bool> {
        let number = value::hold(hold)?;
        let Ok(place) = self.holds.binary_search_by_key(&number, |(kept, _)| *kept) else { return Ok(false) };
        let (_, held) = self.holds.remove(place);
        self.table()?.release(&held);
        Ok(true)
    }

    /// Gives units back.
    pub fn refund(&self, key: &JsValue, limit: &Limit, units: &JsValue, charged_at: &JsValue) -> Result<()> {
        let (key, units, at) = (bytes(key)?, cost(units)?, nanos("chargedAt", charged_at)?);
        let table = self.table()?;
        table.accepts(&limit.0).map_err(refused)?;
        table.refund(&key, &limit.0, units, at);
        Ok(())
    }

    /// Counters of the table.
    pub fn stats(&self, now: &JsValue) -> Result<Object> {
        let now = nanos("now", now)?;
        let (table, counted) = (self.table()?, self.counters.snapshot());
        let stats = table.stats();
        let object = Object::new();
        for (name, count) in [
            ("capacity", stats.capacity),
            ("bytes", self.bytes as u64),
            ("used", stats.used),
            ("live", table.live(now)),
            ("evictions", stats.evictions),
            ("rows", stats.rows),
            ("rowsUsed", stats.rows_used),
            ("rowEvictions", stats.row_evictions),
            ("allowed", counted.allowed),
            ("rejected", counted.rejected),
            ("delayed", counted.delayed),
        ] {
            set(&object, name, count as f64);
        }
        Ok(object)
    }

    /// The keys denied most.
    pub fn top(&self, count: &JsValue) -> Result<Array> {
        let count = if count.is_undefined() { 10 } else { whole("count", count, 0, TOP as u64)? };
        let mut room = [Top::default(); TOP];
        let found = self.top.top(&mut room).min(count as usize); // at most TOP
        let list = Array::new();
        for top in room.iter().take(found) {
            let object = Object::new();
            set(&object, "key", top.label.rest());
            set(&object, "count", top.count as f64);
            set(&object, "error", top.error as f64);
            list.push(&object);
        }
        Ok(list)
    }
}

impl Limiter {
    /// The number of a hold; 0 for none.
    fn keep(&mut self, held: Hold, now: Nanos) -> u64 {
        if self.holds.len() == self.holds.capacity() {
            self.holds.retain(|(_, held)| held.expires > now);
        }
        if held.units == 0 || self.holds.len() >= MOST_HOLDS {
            return 0; // beyond, holds end by themselves
        }
        self.held += 1; // one a request: never at its end
        self.holds.push((self.held, held));
        self.held
    }

    fn table(&self) -> Result<Table<'_>> {
        self.owned.table().ok_or_else(|| refuse("the table is gone"))
    }

    fn ask(
        &self,
        key: &JsValue,
        limit: &Core,
        now: &JsValue,
        units: &JsValue,
        ask: impl FnOnce(&Table<'_>, &[u8], &Core, u64, Nanos) -> Decision,
        is_counted: bool,
    ) -> Result<Object> {
        let (key, now, units) = (bytes(key)?, nanos("now", now)?, cost(units)?);
        let table = self.table()?;
        table.accepts(limit).map_err(refused)?;
        let decision = ask(&table, &key, limit, units, now);
        if is_counted {
            self.counters.record(&decision, false);
            if !decision.allowed {
                self.top.record(table.fingerprint(&key), || {
                    let mut label = Label::new("key");
                    label.push_bytes(&key);
                    label
                });
            }
        }
        Ok(value::decision(&decision))
    }
}

/// A key of text or of bytes.
fn bytes(key: &JsValue) -> Result<Vec<u8>> {
    match (key.as_string(), key.dyn_ref::<Uint8Array>()) {
        (Some(text), _) => Ok(text.into_bytes()),
        (None, Some(bytes)) => Ok(bytes.to_vec()),
        _ => Err(refuse(&format!("key: {} is neither a string nor a Uint8Array", value::shown(key)))),
    }
}
