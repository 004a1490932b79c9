//! Limits, and what is told of them in header fields.

#![expect(unreachable_pub, reason = "JavaScript reaches them")]

use js_sys::Array;
use tollgate_core::http::{self, FIELDS_SIZE, Family, PROBLEM_SIZE};
use tollgate_core::limit::{Algorithm, Anchor};
use tollgate_core::{Limit as Core, NEVER};
use wasm_bindgen::prelude::*;

use crate::value::{self, Result, refuse, refused};

/// A limit, read once.
#[wasm_bindgen]
#[derive(Clone, Copy, Debug)]
pub struct Limit(pub(crate) Core);

#[wasm_bindgen]
impl Limit {
    /// From a text such as `100/s burst 200`.
    #[wasm_bindgen(constructor)]
    pub fn new(text: &JsValue, algorithm: &JsValue) -> Result<Limit> {
        let text = value::text("limit", text)?;
        let algorithm = match algorithm.is_undefined() {
            true => Algorithm::TokenBucket,
            false => named(&value::text("algorithm", algorithm)?)?,
        };
        Core::parse(&text, algorithm).map(Limit).map_err(refused)
    }

    /// Its name.
    #[wasm_bindgen(getter)]
    pub fn algorithm(&self) -> String {
        self.0.algorithm().name().into()
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
        match self.0.anchor() {
            Anchor::Clock => "clock",
            Anchor::FirstRequest => "first_request",
            Anchor::CalendarMonth => "month",
        }
        .into()
    }

    /// The same with another burst.
    #[wasm_bindgen(js_name = withBurst)]
    pub fn with_burst(&self, burst: &JsValue) -> Result<Limit> {
        let burst = value::whole("burst", burst, 1, u64::from(u32::MAX))?;
        self.0.with_burst(burst).map(Limit).map_err(refused)
    }

    /// The same with another anchor.
    #[wasm_bindgen(js_name = withAnchor)]
    pub fn with_anchor(&self, anchor: &JsValue) -> Result<Limit> {
        let shown = value::shown(anchor);
        let anchor = match value::text("anchor", anchor)?.as_str() {
            "clock" => Anchor::Clock,
            "first_request" => Anchor::FirstRequest,
            _ => return Err(refuse(&format!("anchor: {shown} is none of clock, first_request"))),
        };
        self.0.with_anchor(anchor).map(Limit).map_err(refused)
    }

    /// As it is read.
    #[wasm_bindgen(js_name = toString)]
    #[expect(clippy::inherent_to_string, reason = "JavaScript's own")]
    pub fn to_string(&self) -> String {
        std::string::ToString::to_string(&self.0)
    }
}

/// A limit, or the text of one. An object of ours is read by its own text.
pub(crate) fn limit(value: &JsValue) -> Result<Core> {
    let text = match value.as_string() {
        Some(text) => text,
        None if value.is_object() => String::from(value.unchecked_ref::<js_sys::Object>().to_string()),
        None => {
            return Err(refuse(&format!("limit: {} is neither a Limit nor a string", value::shown(value))));
        }
    };
    text.parse().map_err(refused)
}

fn named(name: &str) -> Result<Algorithm> {
    Algorithm::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
        refuse(&format!("algorithm: {} is none of {}", value::shown(&name.into()), names.join(", ")))
    })
}

/// The six algorithms, in the order of their numbers.
#[wasm_bindgen]
pub fn algorithms() -> Array {
    Algorithm::ALL.iter().map(|algorithm| JsValue::from_str(algorithm.name())).collect()
}

/// The wait of what can never be admitted.
#[wasm_bindgen(js_name = NEVER)]
pub fn never() -> u64 {
    NEVER
}

/// The header fields of an answer, as pairs of name and value.
#[wasm_bindgen]
pub fn headers(name: &JsValue, limit: &Limit, decision: &JsValue, fields: &JsValue) -> Result<Array> {
    let name = value::text("name", name)?;
    let decision = value::read_decision(decision)?;
    let family = match fields.is_undefined() {
        true => Family::XRateLimit,
        false => family(&value::text("fields", fields)?)?,
    };
    let mut buffer = [0; FIELDS_SIZE];
    let item = core::iter::once(value::item(&name, &limit.0, &decision));
    let fields = http::fields_of(family, item, &mut buffer).map_err(refused)?;
    Ok(value::pairs(&fields, &buffer))
}

fn family(name: &str) -> Result<Family> {
    Family::ALL.into_iter().find(|family| family.name() == name).ok_or_else(|| {
        let names: Vec<_> = Family::ALL.iter().map(|family| family.name()).collect();
        refuse(&format!("fields: {} is none of {}", value::shown(&name.into()), names.join(", ")))
    })
}

/// The problem body of a denial.
#[wasm_bindgen]
pub fn problem(name: &JsValue, decision: &JsValue) -> Result<String> {
    let (name, decision) = (value::text("name", name)?, value::read_decision(decision)?);
    let mut buffer = [0; PROBLEM_SIZE];
    let len = http::problem(429, &name, &decision, &mut buffer).map_err(refused)?;
    Ok(String::from_utf8_lossy(buffer.get(..len).unwrap_or(&[])).into_owned())
}
