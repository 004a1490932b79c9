//! Values of JavaScript: what comes in is checked, what goes out is a plain object.

use js_sys::{Array, BigInt, Error, JSON, JsString, Number, Object, Reflect};
use tollgate_core::http::Fields;
#[cfg(feature = "limiter")]
use tollgate_core::key::Seed;
use tollgate_core::{Decision, Nanos};
use wasm_bindgen::prelude::*;

/// What a function answers that may refuse.
pub(crate) type Result<T> = core::result::Result<T, JsValue>;

/// The most units that a request may cost.
const MOST_COST: u64 = 4_294_967_295;
/// The largest number of which each smaller one is a whole number.
#[cfg(feature = "traffic")]
pub(crate) const MOST_EXACT: u64 = 9_007_199_254_740_991;

#[wasm_bindgen]
extern "C" {
    /// A decision as JavaScript sees it. It is made on every request: setters
    /// are one call each, and their names are JavaScript's own strings.
    #[wasm_bindgen(extends = Object)]
    type Told;

    #[wasm_bindgen(constructor, js_class = "Object")]
    fn new() -> Told;
    #[wasm_bindgen(method, structural, setter, js_name = allowed)]
    fn set_allowed(this: &Told, value: bool);
    #[wasm_bindgen(method, structural, setter, js_name = limit)]
    fn set_limit(this: &Told, value: f64);
    #[wasm_bindgen(method, structural, setter, js_name = remaining)]
    fn set_remaining(this: &Told, value: f64);
    #[wasm_bindgen(method, structural, setter, js_name = retryAfter)]
    fn set_retry_after(this: &Told, value: u64);
    #[wasm_bindgen(method, structural, setter, js_name = resetAfter)]
    fn set_reset_after(this: &Told, value: u64);
    #[wasm_bindgen(method, structural, setter, js_name = delay)]
    fn set_delay(this: &Told, value: u64);
}

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
    let found = if value.is_bigint() { u64::try_from(value.clone()).ok() } else { None };
    found.ok_or_else(|| {
        let shown = shown(value);
        refuse(&format!("{name}: {shown} is not a bigint from 0n to 18446744073709551615n (nanoseconds)"))
    })
}

/// Units of a request; 1 where nothing is given.
pub(crate) fn cost(value: &JsValue) -> Result<u64> {
    if value.is_undefined() { Ok(1) } else { whole("cost", value, 0, MOST_COST) }
}

/// The number of a hold.
pub(crate) fn hold(value: &JsValue) -> Result<u64> {
    let found = if value.is_bigint() { u64::try_from(value.clone()).ok() } else { None };
    found.ok_or_else(|| refuse(&format!("hold: {} is not the bigint of a hold", shown(value))))
}

/// A whole number in a range.
pub(crate) fn whole(name: &str, value: &JsValue, least: u64, most: u64) -> Result<u64> {
    match value.as_f64() {
        Some(number) if number % 1.0 == 0.0 && number >= least as f64 && number <= most as f64 => {
            Ok(number as u64)
        }
        _ => Err(refuse(&format!("{name}: {} is not a whole number from {least} to {most}", shown(value)))),
    }
}

/// A number in a range, with a fraction.
#[cfg(feature = "traffic")]
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

/// True or false.
pub(crate) fn boolean(name: &str, value: &JsValue) -> Result<bool> {
    value.as_bool().ok_or_else(|| refuse(&format!("{name}: {} is neither true nor false", shown(value))))
}

/// One of these names; its place among them.
pub(crate) fn one_of(name: &str, value: &JsValue, names: &[&str]) -> Result<usize> {
    let found = value.as_string().and_then(|text| names.iter().position(|known| *known == text));
    found.ok_or_else(|| {
        let mut words = format!("{name}: {} is none of ", shown(value));
        for (place, known) in names.iter().enumerate() {
            words.push_str(if place == 0 { "" } else { ", " });
            words.push_str(known);
        }
        refuse(&words)
    })
}

/// An object's members are asked for by name; nothing at all has none.
pub(crate) fn object(name: &str, value: &JsValue) -> Result<()> {
    if value.is_undefined() || (value.is_object() && !Array::is_array(value)) {
        return Ok(());
    }
    Err(refuse(&format!("{name}: {} is not an object", shown(value))))
}

/// A member of an object; undefined where there is none, or no object.
pub(crate) fn member(object: &JsValue, name: &str) -> JsValue {
    if object.is_object() {
        Reflect::get(object, &name.into()).unwrap_or_default()
    } else {
        JsValue::UNDEFINED
    }
}

/// A member that is given.
pub(crate) fn given(object: &JsValue, name: &str) -> Option<JsValue> {
    Some(member(object, name)).filter(|value| !value.is_undefined())
}

/// A value as an error tells it. JavaScript writes it: its numbers and quotes
/// are there already, and would be a tenth of the module.
pub(crate) fn shown(value: &JsValue) -> String {
    let short = |text: &JsString| String::from(text.slice(0, 40));
    if value.is_string() {
        return JSON::stringify(value).map_or_else(|_| "a string".into(), |text| short(&text));
    }
    if let Some(number) = value.as_f64() {
        return Number::from(number)
            .to_string_with_radix(10)
            .map_or_else(|_| "a number".into(), String::from);
    }
    if value.is_bigint() {
        let digits = value.unchecked_ref::<BigInt>().to_string(10);
        return digits.map_or_else(|_| "a bigint".into(), |digits| format!("{}n", short(&digits)));
    }
    match (value.is_null(), value.as_bool()) {
        (true, _) => "null".into(),
        (_, Some(told)) => if told { "true" } else { "false" }.into(),
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
    let told = Told::new();
    told.set_allowed(decision.allowed);
    told.set_limit(decision.limit as f64); // below 2^32, as all units
    told.set_remaining(decision.remaining as f64);
    told.set_retry_after(decision.retry_after);
    told.set_reset_after(decision.reset_after);
    told.set_delay(decision.delay);
    told.into()
}

/// A decision from a plain object.
pub(crate) fn read_decision(value: &JsValue) -> Result<Decision> {
    let units = |name: &str| whole(&format!("decision.{name}"), &member(value, name), 0, MOST_COST);
    let span = |name: &str| nanos(&format!("decision.{name}"), &member(value, name));
    Ok(Decision {
        allowed: boolean("decision.allowed", &member(value, "allowed"))?,
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
        pairs.push(&Array::of2(&field.name.into(), &utf8(value).into()));
    }
    pairs
}

/// What the core wrote, which is UTF-8.
pub(crate) fn utf8(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes).unwrap_or("")
}

/// A secret of one table.
#[cfg(feature = "limiter")]
pub(crate) fn seed() -> Seed {
    let bits = || (js_sys::Math::random() * 4_294_967_296.0) as u64; // below 2^32
    Seed([bits() << 32 | bits(), bits() << 32 | bits()])
}

/// Is there so much memory? What does not fit is refused; it would end the
/// module otherwise.
#[cfg(feature = "limiter")]
pub(crate) fn room(name: &str, bytes: usize) -> Result<()> {
    let mut room: Vec<u8> = Vec::new();
    let found = room.try_reserve_exact(bytes);
    found.map_err(|_| refuse(&format!("{name}: there is no room for {bytes} bytes")))
}
