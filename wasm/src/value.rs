//! Values of JavaScript: what comes in is checked, what goes out is a plain object.

use js_sys::{Array, BigInt, Error, JSON, JsString, Number, Object, Reflect};
use tollgate_core::http::{Fields, Item};
use tollgate_core::{Decision, Nanos};
use wasm_bindgen::prelude::*;

/// What a function answers that may refuse.
pub(crate) type Result<T> = core::result::Result<T, JsValue>;

/// The most units that a request may cost.
const MOST_COST: u64 = 4_294_967_295;

/// An `Error` with these words.
pub(crate) fn refuse(words: &str) -> JsValue {
    Error::new(words).into()
}

/// The words of the core's own error.
pub(crate) fn refused(error: impl core::fmt::Display) -> JsValue {
    refuse(&error.to_string())
}

/// An instant or a span in nanoseconds.
pub(crate) fn nanos(name: &str, value: &JsValue) -> Result<Nanos> {
    u64::try_from(value.clone()).map_err(|_| {
        refuse(&format!(
            "{name}: {} is not a bigint from 0n to 18446744073709551615n (nanoseconds)",
            shown(value)
        ))
    })
}

/// Units of a request; 1 where nothing is given.
pub(crate) fn cost(value: &JsValue) -> Result<u64> {
    if value.is_undefined() { Ok(1) } else { whole("cost", value, 0, MOST_COST) }
}

/// A whole number in a range.
pub(crate) fn whole(name: &str, value: &JsValue, least: u64, most: u64) -> Result<u64> {
    match value.as_f64() {
        Some(number) if number.fract() == 0.0 && number >= least as f64 && number <= most as f64 => {
            Ok(number as u64)
        }
        _ => Err(refuse(&format!("{name}: {} is not a whole number from {least} to {most}", shown(value)))),
    }
}

/// A number in a range, with a fraction.
#[cfg(feature = "full")]
pub(crate) fn number(name: &str, value: &JsValue, least: f64, most: f64) -> Result<f64> {
    match value.as_f64() {
        Some(number) if number >= least && number <= most => Ok(number),
        _ => {
            let [least, most] = [least, most].map(|end| shown(&end.into()));
            Err(refuse(&format!("{name}: {} is not a number from {least} to {most}", shown(value))))
        }
    }
}

/// A text.
pub(crate) fn text(name: &str, value: &JsValue) -> Result<String> {
    value.as_string().ok_or_else(|| refuse(&format!("{name}: {} is not a string", shown(value))))
}

/// A member of an object; undefined where there is none, or no object.
pub(crate) fn member(object: &JsValue, name: &str) -> JsValue {
    if object.is_object() {
        Reflect::get(object, &name.into()).unwrap_or_default()
    } else {
        JsValue::UNDEFINED
    }
}

/// A value as an error tells it. JavaScript writes it: its numbers and quotes
/// are there already, and would be a tenth of the module.
pub(crate) fn shown(value: &JsValue) -> String {
    let short = |text: &JsString| String::from(text.slice(0, 40));
    if value.is_string() {
        return JSON::stringify(value).map_or_else(|_| "a string".into(), |text| short(&text));
    }
    if let Some(number) = value.as_f64() {
        return Number::from(number).to_string_with_radix(10).map_or_else(|_| "a number".into(), String::from);
    }
    if value.is_bigint() {
        let digits = value.unchecked_ref::<BigInt>().to_string(10);
        return digits.map_or_else(|_| "a bigint".into(), |digits| format!("{}n", short(&digits)));
    }
    match (value.is_null(), value.is_undefined()) {
        (true, _) => "null".into(),
        (_, true) => "undefined".into(),
        _ => value.js_typeof().as_string().unwrap_or_default(),
    }
}

/// Gives a plain object a member.
pub(crate) fn set(object: &Object, name: &str, value: impl Into<JsValue>) {
    // Of an object that was made here: it cannot fail.
    let _ = Reflect::set(object, &JsValue::from_str(name), &value.into());
}

/// A decision as a plain object.
pub(crate) fn decision(decision: &Decision) -> Object {
    let object = Object::new();
    set(&object, "allowed", decision.allowed);
    set(&object, "limit", decision.limit as f64); // below 2^32, as all units
    set(&object, "remaining", decision.remaining as f64);
    set(&object, "retryAfter", decision.retry_after);
    set(&object, "resetAfter", decision.reset_after);
    set(&object, "delay", decision.delay);
    object
}

/// A decision from a plain object.
pub(crate) fn read_decision(value: &JsValue) -> Result<Decision> {
    let units = |name: &str| whole(&format!("decision.{name}"), &member(value, name), 0, MOST_COST);
    let span = |name: &str| nanos(&format!("decision.{name}"), &member(value, name));
    Ok(Decision {
        allowed: member(value, "allowed")
            .as_bool()
            .ok_or_else(|| refuse("decision.allowed: is neither true nor false"))?,
        limit: units("limit")?,
        remaining: units("remaining")?,
        retry_after: span("retryAfter")?,
        reset_after: span("resetAfter")?,
        delay: span("delay")?,
    })
}

/// Header fields as pairs of name and value.
pub(crate) fn pairs(fields: &Fields, buffer: &[u8]) -> Array {
    let pairs = Array::new();
    for field in fields.as_slice() {
        let value = buffer.get(field.start..field.end).unwrap_or(&[]);
        pairs.push(&Array::of2(&field.name.into(), &String::from_utf8_lossy(value).as_ref().into()));
    }
    pairs
}

/// One item of an answer: kept here so that both modules write the same.
pub(crate) fn item<'a>(name: &'a str, limit: &'a tollgate_core::Limit, decision: &'a Decision) -> Item<'a> {
    Item { name, limit, decision }
}
