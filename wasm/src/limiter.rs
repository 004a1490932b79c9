//! Many keys in fixed memory: the table that gateways count in.

use js_sys::{Array, Object, Uint8Array};
use tollgate_core::key::Seed;
use tollgate_core::metrics::{Counters, Label, Top, TopKeys};
use tollgate_core::table::{Config, Hold, OwnedTable, Table};
use tollgate_core::{Decision, Limit as Core, Nanos};
use wasm_bindgen::prelude::*;

use crate::limit::Limit;
use crate::value::{self, Result, cost, member, nanos, refuse, refused, set, whole};

/// Keys that are followed of those denied most.
const TOP: usize = 64;
/// The largest table: a page's memory ends at 4 GiB.
const MOST_KEYS: u64 = 16_777_216;

/// A table, and what is counted of its answers.
#[wasm_bindgen]
pub struct Limiter {
    owned: OwnedTable,
    bytes: usize,
    counters: Counters,
    top: Box<TopKeys<TOP>>,
    holds: Vec<Hold>,
}

#[wasm_bindgen]
impl Limiter {
    /// An empty table.
    #[wasm_bindgen(constructor)]
    pub fn new(capacity: &JsValue, options: &JsValue) -> Result<Limiter> {
        let capacity = whole("capacity", capacity, 1, MOST_KEYS)?;
        let option = |name: &str, most: u64| {
            let given = member(options, name);
            if given.is_undefined() { Ok(0) } else { whole(name, &given, 0, most) }
        };
        let (rows, row_entries) = (option("rows", 65_536)?, option("rowEntries", 1_048_576)?);
        let bits = || (js_sys::Math::random() * 4_294_967_296.0) as u64;
        let seed = Seed([bits() << 32 | bits(), bits() << 32 | bits()]);
        let config = Config { capacity, rows, row_entries };
        let (bytes, owned) =
            (config.size().map_err(refused)?, OwnedTable::new(config, seed).map_err(refused)?);
        Ok(Limiter { owned, bytes, counters: Counters::default(), top: Box::default(), holds: Vec::new() })
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
        if held.units > 0 {
            self.holds.push(held);
        }
        set(&object, "hold", if held.units > 0 { self.holds.len() as f64 } else { 0.0 });
        Ok(object)
    }

    /// Gives back what a hold has taken; false where there is none of that number.
    pub fn release(&mut self, hold: &JsValue) -> Result<bool> {
        let place = whole("hold", hold, 0, 9_007_199_254_740_991)?;
        let held = usize::try_from(place).ok().and_then(|place| self.holds.get_mut(place.checked_sub(1)?));
        let Some(held) = held.filter(|held| held.units > 0) else { return Ok(false) };
        let held = core::mem::take(held);
        if let Some(table) = self.owned.table() {
            table.release(&held);
        }
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
        set(&object, "capacity", stats.capacity as f64);
        set(&object, "bytes", self.bytes as f64);
        set(&object, "live", table.live(now) as f64);
        set(&object, "evictions", stats.evictions as f64);
        set(&object, "allowed", counted.allowed as f64);
        set(&object, "rejected", counted.rejected as f64);
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
