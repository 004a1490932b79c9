//! Limits, and what is told of them in header fields.

use js_sys::Array;
use tollgate_core::account;
use tollgate_core::http::{self, FIELDS_SIZE, Family, Item, PROBLEM_SIZE};
use tollgate_core::limit::{Algorithm, Anchor};
use tollgate_core::{Limit as Core, NEVER};
use wasm_bindgen::prelude::*;

use crate::value::{self, Result, given, one_of, refuse, refused, utf8, whole};

const MOST_BURST: u64 = 4_294_967_295;
const ANCHORS: [&str; 3] = ["clock", "first_request", "calendar_month"];

/// A limit, read once.
#[wasm_bindgen]
#[derive(Clone, Copy, Debug)]
pub struct Limit(pub(crate) Core);

#[wasm_bindgen]
impl Limit {
    /// From a text such as `100/s burst 200`, or its fields.
    #[wasm_bindgen(constructor)]
    pub fn new(of: &JsValue, algorithm: &JsValue) -> Result<Limit> {
        read(of, algorithm).map(Limit)
    }

    /// Its name.
    #[wasm_bindgen(getter)]
    pub fn algorithm(&self) -> String {
        self.0.algorithm().name().into()
    }

    /// Units and period, such as `100/s`.
    #[wasm_bindgen(getter)]
    pub fn rate(&self) -> String {
        let text = self.0.to_string();
        text.split(' ').find(|word| word.contains('/')).unwrap_or_default().into()
    }

    /// Units per period.
    #[wasm_bindgen(getter)]
    pub fn limit(&self) -> f64 {
        self.0.limit() as f64
    }

    /// In nanoseconds.
    #[wasm_bindgen(getter)]
    pub fn period(&self) -> u64 {
        self.0.period()
    }

    /// What a full bucket admits at once.
    #[wasm_bindgen(getter)]
    pub fn burst(&self) -> f64 {
        self.0.burst() as f64
    }

    /// Where windows begin.
    #[wasm_bindgen(getter)]
    pub fn anchor(&self) -> String {
        let [clock, first_request, month] = ANCHORS;
        match self.0.anchor() {
            Anchor::Clock => clock,
            Anchor::FirstRequest => first_request,
            Anchor::CalendarMonth => month,
        }
        .into()
    }

    /// Bytes of a key of this limit in a gateway's table.
    #[wasm_bindgen(getter)]
    pub fn memory(&self) -> f64 {
        account::memory(&self.0) as f64
    }

    /// The same numbers under another algorithm.
    #[wasm_bindgen(js_name = withAlgorithm)]
    pub fn with_algorithm(&self, algorithm: &JsValue) -> Result<Limit> {
        let algorithm = named(algorithm)?;
        let limit = Core::new(algorithm, self.0.limit(), self.0.period()).map_err(refused)?;
        let has_burst = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let limit = if has_burst { limit.with_burst(self.0.burst()).map_err(refused)? } else { limit };
        let is_window = algorithm == Algorithm::FixedWindow;
        if is_window {
            limit.with_anchor(self.0.anchor()).map(Limit).map_err(refused)
        } else {
            Ok(Limit(limit))
        }
    }

    /// The same with another burst.
    #[wasm_bindgen(js_name = withBurst)]
    pub fn with_burst(&self, burst: &JsValue) -> Result<Limit> {
        self.0.with_burst(whole("burst", burst, 1, MOST_BURST)?).map(Limit).map_err(refused)
    }

    /// The same with another anchor.
    #[wasm_bindgen(js_name = withAnchor)]
    pub fn with_anchor(&self, anchor: &JsValue) -> Result<Limit> {
        anchored(self.0, anchor).map(Limit)
    }

    /// As it is read.
    #[wasm_bindgen(js_name = toString)]
    #[expect(clippy::inherent_to_string, clippy::wrong_self_convention, reason = "JavaScript's own")]
    pub fn to_string(&self) -> String {
        ToString::to_string(&self.0)
    }
}

/// A limit, its text, or its fields; a limit has those fields as well.
pub(crate) fn limit(value: &JsValue) -> Result<Core> {
    read(value, &JsValue::UNDEFINED)
}

fn read(value: &JsValue, algorithm: &JsValue) -> Result<Core> {
    let otherwise = if algorithm.is_undefined() { Algorithm::TokenBucket } else { named(algorithm)? };
    if let Some(text) = value.as_string() {
        return Core::parse(&text, otherwise).map_err(refused);
    }
    if !value.is_object() {
        let shown = value::shown(value);
        return Err(refuse(&format!(
            "limit: {shown} is neither a text, nor a Limit, nor an object with a rate"
        )));
    }
    let rate = value::text("limit.rate", &value::member(value, "rate"))?;
    if rate.contains(' ') {
        return Err(refuse(
            "limit.rate: expected units/period and no more, such as 100/s; algorithm, burst and anchor are \
             fields of their own",
        ));
    }
    let algorithm = given(value, "algorithm").map_or(Ok(otherwise), |name| named(&name))?;
    let mut limit = Core::parse(&rate, algorithm).map_err(refused)?;
    if let Some(burst) = given(value, "burst") {
        limit = limit.with_burst(whole("limit.burst", &burst, 1, MOST_BURST)?).map_err(refused)?;
    }
    match given(value, "anchor") {
        Some(anchor) => anchored(limit, &anchor),
        None => Ok(limit),
    }
}

fn anchored(limit: Core, anchor: &JsValue) -> Result<Core> {
    let anchor = match one_of("anchor", anchor, &ANCHORS)? {
        0 => Anchor::Clock,
        1 => Anchor::FirstRequest,
        _ => Anchor::CalendarMonth,
    };
    limit.with_anchor(anchor).map_err(refused)
}

fn named(name: &JsValue) -> Result<Algorithm> {
    let place = one_of("algorithm", name, &Algorithm::ALL.map(Algorithm::name))?;
    Ok(Algorithm::ALL.get(place).copied().unwrap_or(Algorithm::TokenBucket)) // there is one
}

/// The six algorithms, in the order of their numbers.
#[wasm_bindgen]
pub fn algorithms() -> Array {
    Algorithm::ALL.iter().map(|algorithm| JsValue::from_str(algorithm.name())).collect()
}

/// The wait of what can never be admitted.
#[wasm_bindgen]
pub fn never() -> u64 {
    NEVER
}

/// The header fields of an answer, as pairs of name and value.
#[wasm_bindgen]
pub fn headers(name: &JsValue, limit: &Limit, decision: &JsValue, family: &JsValue) -> Result<Array> {
    let name = value::text("name", name)?;
    let decision = value::read_decision(decision)?;
    let place = match family.is_undefined() {
        true => None,
        false => Some(one_of("family", family, &Family::ALL.map(Family::name))?),
    };
    let family = place.and_then(|place| Family::ALL.get(place).copied()).unwrap_or_default();
    let mut buffer = [0; FIELDS_SIZE];
    let item = core::iter::once(Item { name: &name, limit: &limit.0, decision: &decision });
    let fields = http::fields_of(family, item, &mut buffer).map_err(refused)?;
    Ok(value::pairs(&fields, &buffer))
}

/// The problem body of a denial.
#[wasm_bindgen]
pub fn problem(name: &JsValue, limit: &Limit, decision: &JsValue, status: &JsValue) -> Result<String> {
    let (name, decision) = (value::text("name", name)?, value::read_decision(decision)?);
    let status = if status.is_undefined() { 429 } else { whole("status", status, 400, 599)? };
    let mut buffer = [0; PROBLEM_SIZE];
    let item = core::iter::once(Item { name: &name, limit: &limit.0, decision: &decision });
    let len = http::problem_of(status as u16, item, &mut buffer).map_err(refused)?; // at most 599
    Ok(utf8(buffer.get(..len).unwrap_or(&[])).into())
}
