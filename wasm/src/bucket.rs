//! One bucket of any algorithm, that can be looked into.

use js_sys::{BigInt, BigUint64Array, Object, Uint8Array};
use tollgate_core::account::{Account, View};
use tollgate_core::limit::Algorithm;
use wasm_bindgen::prelude::*;

use crate::limit::{Limit, limit};
use crate::value::{self, Result, cost, nanos, refuse, refused, set};

/// The most requests of one call of `checkAll`.
const MOST_AT_ONCE: usize = 10_000_000;

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
        set(&object, "hold", hold as f64); // counted from 1
        Ok(object)
    }

    /// Gives back what a hold has taken.
    pub fn release(&mut self, hold: &JsValue) -> Result<bool> {
        Ok(self.0.release(value::whole("hold", hold, 0, 9_007_199_254_740_991)?))
    }

    /// Another limit from now on.
    #[wasm_bindgen(js_name = setLimit)]
    pub fn set_limit(&mut self, to: &JsValue, now: &JsValue) -> Result<()> {
        let (to, now) = (limit(to)?, nanos("now", now)?);
        self.0.set_limit(to, now).map_err(refused)
    }

    /// What is stored, and what it means at that instant.
    pub fn state(&self, now: &JsValue) -> Result<Object> {
        let now = nanos("now", now)?;
        let (limit, object) = (self.0.limit(), Object::new());
        set(&object, "algorithm", limit.algorithm().name());
        set(&object, "now", now);
        match self.0.view(now) {
            View::Bucket { tat, owed, parts } => {
                let is_leaky = limit.algorithm() == Algorithm::LeakyBucket;
                let full = u128::from(limit.burst()) * u128::from(parts);
                let has = if is_leaky { owed } else { full.saturating_sub(owed) };
                set(&object, "tat", tat.at);
                set(&object, "tokensNumerator", BigInt::from(has));
                set(&object, "tokensDenominator", BigInt::from(parts));
                // For drawing: the whole and the rest apart, so that a large count keeps its fraction.
                let (whole, rest) = (has / u128::from(parts.max(1)), has % u128::from(parts.max(1)));
                set(
                    &object,
                    if is_leaky { "level" } else { "tokens" },
                    whole as f64 + rest as f64 / parts as f64,
                );
            }
            View::Window(window) => {
                set(&object, "windowEnd", window.end);
                set(&object, "current", f64::from(window.count));
            }
            View::Windows(windows) => {
                let part = windows.end.saturating_sub(now) as f64 / limit.period() as f64;
                set(&object, "windowEnd", windows.end);
                set(&object, "current", f64::from(windows.current));
                set(&object, "previous", f64::from(windows.previous));
                let estimate = f64::from(windows.previous) * part.min(1.0) + f64::from(windows.current);
                set(&object, "estimate", estimate);
            }
            View::Units(units) => set(&object, "used", units as f64),
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
        self.0.memory() as f64
    }

    /// Many requests, in their order.
    #[wasm_bindgen(js_name = checkAll)]
    pub fn check_all(&mut self, times: &JsValue, costs: &JsValue) -> Result<Object> {
        let times = times
            .dyn_ref::<BigUint64Array>()
            .ok_or_else(|| refuse("times: is not a BigUint64Array (nanoseconds)"))?;
        let count = times.length() as usize;
        if count > MOST_AT_ONCE {
            return Err(refuse(&format!("times: {count} requests are more than {MOST_AT_ONCE} at once")));
        }
        let costs = match costs.is_undefined() {
            true => vec![1; count],
            false => costs
                .dyn_ref::<js_sys::Uint32Array>()
                .ok_or_else(|| refuse("costs: is not a Uint32Array"))?
                .to_vec(),
        };
        if costs.len() != count {
            return Err(refuse(&format!("costs: {} of them for {count} times", costs.len())));
        }
        let mut allowed = Vec::with_capacity(count);
        let (mut delays, mut waits) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (now, units) in times.to_vec().into_iter().zip(costs) {
            let decision = self.0.check(u64::from(units), now);
            allowed.push(u8::from(decision.allowed));
            delays.push(decision.delay);
            waits.push(decision.retry_after);
        }
        let object = Object::new();
        set(&object, "allowed", Uint8Array::from(allowed.as_slice()));
        set(&object, "delay", BigUint64Array::from(delays.as_slice()));
        set(&object, "retryAfter", BigUint64Array::from(waits.as_slice()));
        Ok(object)
    }
}
