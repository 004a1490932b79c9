//! One bucket of any algorithm, that can be looked into.

use js_sys::{BigInt, BigUint64Array, Object, Uint8Array, Uint32Array};
use tollgate_core::account::{self, Account, View};
use tollgate_core::limit::Algorithm;
use wasm_bindgen::prelude::*;

use crate::limit::{Limit, limit};
use crate::value::{self, Result, cost, nanos, refuse, refused, set};

/// The most requests of one call of `checkAll`.
const MOST_AT_ONCE: usize = 1_000_000;
/// The most units that are listed one by one.
const MOST_LISTED: usize = 1000;

/// One key's account.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Bucket(Account);

#[wasm_bindgen]
impl Bucket {
    /// One that nobody has used.
    #[wasm_bindgen(constructor)]
    pub fn new(of: &JsValue) -> Result<Bucket> {
        Account::new(limit(of)?).map(Bucket).map_err(refused)
    }

    /// Charges a cost if it fits.
    pub fn check(&mut self, now: &JsValue, units: &JsValue) -> Result<Object> {
        let (now, units) = (nanos("now", now)?, cost(units)?);
        Ok(value::decision(&self.0.check(units, now)))
    }

    /// What a check would say.
    pub fn peek(&mut self, now: &JsValue, units: &JsValue) -> Result<Object> {
        let (now, units) = (nanos("now", now)?, cost(units)?);
        Ok(value::decision(&self.0.peek(units, now)))
    }

    /// Gives units back.
    pub fn refund(&mut self, units: &JsValue, charged_at: &JsValue) -> Result<()> {
        let (units, at) = (cost(units)?, nanos("chargedAt", charged_at)?);
        if self.0.limit().algorithm() == Algorithm::Concurrency {
            return Err(refuse("refund: units in flight are released by their hold"));
        }
        self.0.refund(units, at);
        Ok(())
    }

    /// A check that also tells the hold of what it took.
    pub fn acquire(&mut self, now: &JsValue, units: &JsValue) -> Result<Object> {
        let (now, units) = (nanos("now", now)?, cost(units)?);
        let (decision, hold) = self.0.acquire(units, now);
        let object = value::decision(&decision);
        set(&object, "hold", hold); // counted from 1
        Ok(object)
    }

    /// Gives back what a hold has taken.
    pub fn release(&mut self, hold: &JsValue) -> Result<bool> {
        Ok(self.0.release(value::hold(hold)?))
    }

    /// Another limit from now on.
    #[wasm_bindgen(js_name = setLimit)]
    pub fn set_limit(&mut self, to: &JsValue, now: &JsValue) -> Result<()> {
        let (to, now) = (limit(to)?, nanos("now", now)?);
        self.0.set_limit(to, now).map_err(refused)
    }

    /// What is stored, and what it means at that instant.
    pub fn state(&self, now: &JsValue) -> Result<Object> {
        let now = nanos("now", now)?.max(self.0.latest());
        let (limit, object) = (self.0.limit(), Object::new());
        set(&object, "algorithm", limit.algorithm().name());
        set(&object, "now", now);
        set(&object, "latest", self.0.latest());
        match self.0.view(now) {
            View::Bucket { tat, owed, parts, tat_parts } => {
                let parts = u128::from(parts.max(1));
                let full = u128::from(limit.burst()) * parts;
                let (has, names) = match limit.algorithm() {
                    Algorithm::LeakyBucket => (owed, ["level", "levelNumerator", "levelDenominator"]),
                    _ => (full.saturating_sub(owed), ["tokens", "tokensNumerator", "tokensDenominator"]),
                };
                set(&object, "tat", tat.at);
                set(&object, "tatPart", f64::from(tat.part));
                set(&object, "tatParts", tat_parts as f64); // below 2^32
                let [number, numerator, denominator] = names;
                // For drawing: the whole and the rest apart, so that a large count keeps its fraction.
                set(&object, number, (has / parts) as f64 + (has % parts) as f64 / parts as f64);
                set(&object, numerator, BigInt::from(has));
                set(&object, denominator, BigInt::from(parts));
            }
            View::Window(window) => {
                set(&object, "windowStart", window.end.saturating_sub(limit.period()));
                set(&object, "windowEnd", window.end);
                set(&object, "current", f64::from(window.count));
            }
            View::Windows(windows) => {
                let left = windows.end.saturating_sub(now) as f64 / limit.period() as f64;
                let weight = left.min(1.0);
                set(&object, "windowStart", windows.end.saturating_sub(limit.period()));
                set(&object, "windowEnd", windows.end);
                set(&object, "current", f64::from(windows.current));
                set(&object, "previous", f64::from(windows.previous));
                set(&object, "weight", weight);
                set(&object, "estimate", f64::from(windows.previous) * weight + f64::from(windows.current));
            }
            View::Units(units) => {
                let listed: Vec<u64> = self.0.units(now).take(MOST_LISTED).collect();
                set(&object, "used", units as f64);
                set(&object, "entries", BigUint64Array::from(listed.as_slice()));
            }
            _ => {}
        }
        Ok(object)
    }

    /// As if nobody had used it.
    pub fn reset(&mut self) {
        // The same limit was accepted before.
        if let Ok(account) = Account::new(*self.0.limit()) {
            self.0 = account;
        }
    }

    /// What it is held to.
    #[wasm_bindgen(getter)]
    pub fn limit(&self) -> Limit {
        Limit(*self.0.limit())
    }

    /// Bytes of a key of this limit in a gateway's table.
    #[wasm_bindgen(getter)]
    pub fn memory(&self) -> f64 {
        account::memory(self.0.limit()) as f64
    }

    /// Many requests, in their order.
    #[wasm_bindgen(js_name = checkAll)]
    pub fn check_all(&mut self, times: &JsValue, costs: &JsValue) -> Result<Object> {
        let times = times.dyn_ref::<BigUint64Array>().ok_or_else(|| {
            refuse(&format!("times: {} is not a BigUint64Array (nanoseconds)", value::shown(times)))
        })?;
        let count = times.length() as usize;
        if count > MOST_AT_ONCE {
            return Err(refuse(&format!("times: {count} requests are more than {MOST_AT_ONCE} at once")));
        }
        let costs = match costs.is_undefined() {
            true => vec![1; count],
            false => costs
                .dyn_ref::<Uint32Array>()
                .ok_or_else(|| refuse(&format!("costs: {} is not a Uint32Array", value::shown(costs))))?
                .to_vec(),
        };
        if costs.len() != count {
            return Err(refuse(&format!("costs: {} of them for {count} times", costs.len())));
        }
        let mut allowed = Vec::with_capacity(count);
        let (mut delays, mut waits) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut left = Vec::with_capacity(count);
        for (now, units) in times.to_vec().into_iter().zip(costs) {
            let decision = self.0.check(u64::from(units), now);
            allowed.push(u8::from(decision.allowed));
            delays.push(decision.delay);
            waits.push(decision.retry_after);
            left.push(decision.remaining as u32); // below 2^32, as all units
        }
        let object = Object::new();
        set(&object, "allowed", Uint8Array::from(allowed.as_slice()));
        set(&object, "delay", BigUint64Array::from(delays.as_slice()));
        set(&object, "retryAfter", BigUint64Array::from(waits.as_slice()));
        set(&object, "remaining", Uint32Array::from(left.as_slice()));
        Ok(object)
    }
}
