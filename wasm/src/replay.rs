//! A log, asked of the rules: what `tollgate replay` does, in pieces.

use js_sys::{JSON, Uint8Array};
use tollgate_core::policy::Rules;
use tollgate_core::replay::{Format, Options, Replay as Core};
use wasm_bindgen::prelude::*;

use crate::rules;
use crate::value::{self, Result, refuse, refused, whole};

/// The most keys that are counted at the same time.
const MOST_KEYS: u64 = 4_194_304;
/// Keys of a report.
const MOST_TOP: u64 = 10_000;

/// A replay that is under way.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Replay {
    core: Core,
    is_finished: bool,
    is_broken: bool,
}

#[wasm_bindgen]
impl Replay {
    /// A replay of a log that has yet to come.
    #[wasm_bindgen(constructor)]
    pub fn new(text: &JsValue, options: &JsValue) -> Result<Replay> {
        let text = value::text("rules", text)?;
        let given = |name: &str| value::given(options, name);
        let number = |name: &str, otherwise: u64, most: u64| match given(name) {
            Some(given) => whole(name, &given, 1, most),
            None => Ok(otherwise),
        };
        let word =
            |name: &str| given(name).map_or_else(|| Ok(String::new()), |given| value::text(name, &given));
        let format = word("format")?;
        let options = Options {
            format: match format.as_str() {
                "" | "auto" => Format::Auto,
                "combined" => Format::Combined,
                "json" => Format::Json,
                "csv" => Format::Csv,
                _ => {
                    let shown = value::shown(&format.into());
                    return Err(refuse(&format!("format: {shown} is none of auto, combined, json, csv")));
                }
            },
            capacity: number("capacity", 262_144, MOST_KEYS)?,
            buckets: number("buckets", 60, 10_000)? as usize, // in range
            route: word("route")?,
            host: word("host")?,
        };
        let parsed =
            Rules::parse_at(&text, value::seed(), 0).map_err(|errors| rules::refused_rules(&errors))?;
        let core = Core::new(parsed, &options, value::seed()).map_err(refused)?;
        Ok(Replay { core, is_finished: false, is_broken: false })
    }

    /// Takes the next bytes of the log; the lines so far.
    pub fn push(&mut self, bytes: &JsValue) -> Result<f64> {
        let bytes = bytes
            .dyn_ref::<Uint8Array>()
            .ok_or_else(|| refuse(&format!("bytes: {} is not a Uint8Array", value::shown(bytes))))?;
        if self.is_finished || self.is_broken {
            return Err(refuse("push: the log is at its end; a new Replay begins another"));
        }
        let pushed = self.core.push(&bytes.to_vec());
        self.is_broken = pushed.is_err();
        pushed.map_err(refused)?;
        Ok(self.lines())
    }

    /// The end of the log.
    pub fn finish(&mut self) -> Result<()> {
        if self.is_finished || self.is_broken {
            return Ok(());
        }
        self.is_finished = true;
        self.core.finish().map_err(refused)
    }

    /// What came out so far.
    pub fn report(&self, top: &JsValue) -> Result<JsValue> {
        JSON::parse(&self.json(top)?)
    }

    /// The same as text.
    pub fn json(&self, top: &JsValue) -> Result<String> {
        let mut text = serde_json::to_string_pretty(&self.core.report(keys(top)?)).map_err(refused)?;
        text.push('\n');
        Ok(text)
    }

    /// The same as one table.
    pub fn csv(&self, top: &JsValue) -> Result<String> {
        Ok(self.core.report(keys(top)?).csv())
    }

    /// Lines that were read.
    #[wasm_bindgen(getter)]
    pub fn lines(&self) -> f64 {
        self.core.lines() as f64
    }
}

fn keys(top: &JsValue) -> Result<usize> {
    if top.is_undefined() { Ok(10) } else { Ok(whole("top", top, 0, MOST_TOP)? as usize) } // in range
}
