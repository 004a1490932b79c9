//! A rules file, and requests that are asked of it as a gateway would ask.

use js_sys::{Array, Error, Object};
use tollgate_core::http::{self, LIST_SIZE, PROBLEM_SIZE};
use tollgate_core::limit::Algorithm;
use tollgate_core::policy::{
    self, Attributes, Explained, KeyField, KeyRoom, OnStoreError, Outcome, RuleError, Rules as Core,
    Selection, Store, check,
};
use tollgate_core::replay::path;
use tollgate_core::table::{Config, OwnedTable};
use tollgate_core::{Limit, Nanos};
use wasm_bindgen::prelude::*;

use crate::value::{self, Result, member, nanos, refuse, refused, set, whole};

/// The most keys that are counted.
const MOST_KEYS: u64 = 4_194_304;
/// Rows for logs and concurrency limits.
const ROWS: u64 = 256;

/// A rules file and a table of its own.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Rules {
    core: Core,
    config: Config,
    table: OwnedTable,
}

#[wasm_bindgen]
impl Rules {
    /// Reads a document.
    #[wasm_bindgen(constructor)]
    pub fn new(text: &JsValue, options: &JsValue) -> Result<Rules> {
        let text = value::text("text", text)?;
        value::object("options", options)?;
        let capacity = match value::given(options, "capacity") {
            Some(given) => whole("capacity", &given, 1, MOST_KEYS)?,
            None => 65_536,
        };
        let core = Core::parse_at(&text, value::seed(), 0).map_err(|errors| refused_rules(&errors))?;
        let limits = core.policies().iter().flat_map(|policy| policy.all_limits());
        let of_rows = limits
            .filter(|limit| matches!(limit.algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency));
        let row_entries = of_rows.map(Limit::limit).max().unwrap_or(0);
        let rows = if row_entries == 0 { 0 } else { ROWS };
        let config = Config { capacity, rows, row_entries };
        let table = OwnedTable::new(config, value::seed()).map_err(refused)?;
        Ok(Rules { core, config, table })
    }

    /// What is wrong with a document.
    pub fn errors(text: &JsValue) -> Result<Array> {
        let text = value::text("text", text)?;
        Ok(match Core::parse_at(&text, value::seed(), 0) {
            Ok(_) => Array::new(),
            Err(errors) => told_errors(&errors),
        })
    }

    /// What is legal and has no effect.
    pub fn notices(&self, has_store: &JsValue) -> Result<Array> {
        let has_store = if has_store.is_undefined() { true } else { value::boolean("hasStore", has_store)? };
        let notices = self.core.notices(has_store).map(|notice| {
            let object = Object::new();
            set(&object, "policy", notice.policy);
            set(&object, "message", notice.sentence.as_ref());
            object
        });
        Ok(notices.collect())
    }

    /// What the document says of its policies.
    pub fn policies(&self) -> Array {
        let all = self.core.policies();
        let policies = all.iter().enumerate().map(|(place, policy)| {
            let object = Object::new();
            set(&object, "name", policy.name());
            set(&object, "key", self.core.key_names(policy).map(|name| text(&name)).collect::<Array>());
            set(
                &object,
                "limits",
                policy.limits().iter().map(|limit| text(&limit.to_string())).collect::<Array>(),
            );
            set(&object, "overrides", policy.overrides().len() as f64);
            set(&object, "store", store(policy.store()));
            set(
                &object,
                "onStoreError",
                match policy.on_store_error() {
                    OnStoreError::Local => "local",
                    OnStoreError::Allow => "allow",
                    OnStoreError::Deny => "deny",
                },
            );
            set(&object, "isDryRun", policy.dry_run());
            set(&object, "hasPenalty", policy.penalty().is_some());
            set(&object, "isDefault", self.core.has_default() && place + 1 == all.len());
            object
        });
        policies.collect()
    }

    /// The header fields that the rules look at.
    #[wasm_bindgen(getter)]
    pub fn headers(&self) -> Array {
        self.core.headers().iter().map(|name| text(name)).collect()
    }

    /// Asks, and counts.
    pub fn check(&self, request: &JsValue, now: &JsValue) -> Result<Object> {
        let (request, now) = (Request::read(&self.core, request)?, nanos("now", now)?);
        request.with(|attributes| self.answer(attributes, now))
    }

    /// What every policy makes of a request; counts nothing.
    pub fn explain(&self, request: &JsValue) -> Result<Array> {
        let request = Request::read(&self.core, request)?;
        Ok(request.with(|attributes| self.considered(attributes)))
    }

    /// Forgets all counts.
    pub fn reset(&mut self) {
        // The same layout was made before.
        if let Ok(table) = OwnedTable::new(self.config, value::seed()) {
            self.table = table;
        }
    }
}

impl Rules {
    fn answer(&self, request: &Attributes<'_>, now: Nanos) -> Result<Object> {
        let table = self.table.table().ok_or_else(|| refuse("the table is gone"))?;
        let client = self.core.client(request).map(|client| client.to_string());
        let object = Object::new();
        set(&object, "client", client);
        set(&object, "considered", self.considered(request));
        let mut room = KeyRoom::new();
        let selection = self.core.select(request, &mut room);
        if let Err(missing) = selection {
            let mut buffer = [0; PROBLEM_SIZE];
            let fields = http::missing_fields(missing.header, &mut buffer).map_err(refused)?;
            set(&object, "headers", value::pairs(&fields, &buffer));
            let len = http::missing_problem(missing.header, &mut buffer).map_err(refused)?;
            set(&object, "allowed", false);
            set(&object, "status", 401);
            set(&object, "body", body(&buffer, len));
            set(&object, "missingHeader", missing.header);
            set(&object, "delay", 0u64);
            set(&object, "policies", Array::new());
            return Ok(object);
        }
        let selection = selection.unwrap_or_default();
        let answer = check(&self.core, &table, &selection, now);
        let mut buffer = [0; LIST_SIZE];
        let fields = self.core.write_fields(&selection, &answer, &mut buffer).map_err(refused)?;
        set(&object, "headers", value::pairs(&fields, &buffer));
        set(&object, "allowed", answer.allowed);
        set(&object, "status", if answer.allowed { 200 } else { self.core.status_of(&answer) });
        let body = match answer.allowed {
            true => JsValue::NULL,
            false => {
                let len = self.core.write_problem(&selection, &answer, &mut buffer).map_err(refused)?;
                body(&buffer, len).into()
            }
        };
        set(&object, "body", body);
        set(&object, "missingHeader", JsValue::NULL);
        set(&object, "delay", answer.delay);
        set(&object, "policies", self.layers(&selection, &answer));
        Ok(object)
    }

    /// One for each limit that was asked.
    fn layers(&self, selection: &Selection<'_>, answer: &policy::Answer) -> Array {
        let all = selection.layers().zip(answer.decisions()).zip(answer.outcomes()).enumerate();
        let told = all.filter_map(|(place, ((layer, decision), outcome))| {
            let policy = self.core.policies().get(layer.policy)?;
            let object = Object::new();
            set(&object, "policy", policy.name());
            set(&object, "key", key(&self.core.key_fields(layer.policy, layer.key())));
            set(&object, "limit", layer.limit.to_string());
            set(&object, "isOverride", layer.overridden);
            set(&object, "isDryRun", policy.dry_run());
            set(&object, "cost", layer.cost as f64);
            set(
                &object,
                "outcome",
                match outcome {
                    Outcome::Admitted => "admitted",
                    Outcome::Denied => "denied",
                    Outcome::WouldDeny => "would_deny",
                    Outcome::Spared => "spared",
                },
            );
            set(&object, "decision", value::decision(decision));
            set(&object, "isTightest", answer.tightest == Some(place));
            Some(object)
        });
        told.collect()
    }

    fn considered(&self, request: &Attributes<'_>) -> Array {
        self.core.explain(request).iter().map(|explained| considered(explained, request)).collect()
    }
}

/// A request in owned memory.
struct Request {
    path: Vec<u8>,
    method: String,
    host: String,
    route: String,
    peer: Option<core::net::IpAddr>,
    headers: Vec<Option<String>>,
}

impl Request {
    fn read(rules: &Core, given: &JsValue) -> Result<Request> {
        if !given.is_object() {
            return Err(refuse(&format!("request: {} is not an object", value::shown(given))));
        }
        let word = |name: &str, otherwise: &str| match value::given(given, name) {
            Some(told) => value::text(&format!("request.{name}"), &told),
            None => Ok(otherwise.to_owned()),
        };
        let target = value::text("request.path", &member(given, "path"))?;
        let mut scratch = Vec::new();
        let path = path(target.as_bytes(), &mut scratch).to_vec();
        let peer = match word("peer", "")?.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| {
                refuse(&format!(
                    "request.peer: {} is not an IPv4 or IPv6 address",
                    value::shown(&text.into())
                ))
            })?),
        };
        let fields = member(given, "headers");
        value::object("request.headers", &fields)?;
        let mut headers = vec![None; rules.headers().len()];
        if fields.is_object() {
            for pair in Object::entries(fields.unchecked_ref::<Object>()).iter() {
                let pair = Array::from(&pair);
                let name = pair.get(0).as_string().unwrap_or_default();
                let told = value::text(&format!("request.headers.{name}"), &pair.get(1))?;
                let place = rules.headers().iter().position(|known| known.eq_ignore_ascii_case(&name));
                if let Some(room) = place.and_then(|place| headers.get_mut(place)) {
                    *room = Some(told);
                }
            }
        }
        Ok(Request {
            path,
            method: word("method", "GET")?,
            host: word("host", "")?,
            route: word("route", "")?,
            peer,
            headers,
        })
    }

    fn with<R>(&self, ask: impl FnOnce(&Attributes<'_>) -> R) -> R {
        let headers: Vec<_> = self.headers.iter().map(|told| told.as_deref().map(str::as_bytes)).collect();
        ask(&Attributes {
            route: self.route.as_bytes(),
            method: self.method.as_bytes(),
            host: self.host.as_bytes(),
            path: &self.path,
            peer: self.peer,
            headers: &headers,
        })
    }
}

fn considered(explained: &Explained<'_>, request: &Attributes<'_>) -> Object {
    let (policy, object) = (explained.policy, Object::new());
    set(&object, "policy", policy.name());
    set(&object, "applies", explained.mismatches.is_empty());
    let sentences = explained.mismatches.iter().map(|mismatch| text(&mismatch.sentence(request)));
    set(&object, "whyNot", sentences.collect::<Array>());
    set(&object, "missingHeader", explained.missing.map_or(JsValue::NULL, |missing| text(missing.header)));
    set(&object, "key", key(&explained.key));
    set(&object, "limits", explained.limits.iter().map(|limit| text(&limit.to_string())).collect::<Array>());
    set(&object, "isOverride", explained.overridden);
    set(&object, "cost", explained.cost as f64);
    set(&object, "store", store(policy.store()));
    set(&object, "isDryRun", policy.dry_run());
    set(&object, "hasPenalty", policy.penalty().is_some());
    let notices = policy.notices(true).map(|notice| text(&notice.sentence));
    set(&object, "notices", notices.collect::<Array>());
    object
}

fn key(fields: &[KeyField<'_>]) -> Array {
    let parts = fields.iter().map(|field| {
        let object = Object::new();
        set(&object, "part", field.name.as_ref());
        set(&object, "value", field.value.to_string());
        object
    });
    parts.collect()
}

fn store(store: Store) -> &'static str {
    match store {
        Store::Local => "local",
        Store::Redis => "redis",
    }
}

fn text(text: &str) -> JsValue {
    JsValue::from_str(text)
}

fn body(buffer: &[u8], len: usize) -> String {
    String::from_utf8_lossy(buffer.get(..len).unwrap_or(&[])).into_owned()
}

fn told_errors(errors: &[RuleError]) -> Array {
    let mut order: Vec<&RuleError> = errors.iter().collect();
    order.sort_by_key(|error| (error.line, error.column));
    let told = order.into_iter().map(|error| {
        let object = Object::new();
        set(&object, "line", error.line as f64);
        set(&object, "column", error.column as f64);
        set(&object, "path", error.path.as_str());
        set(&object, "message", error.message.as_str());
        object
    });
    told.collect()
}

/// The error that a document which is not legal throws: the first in words,
/// and all of them.
pub(crate) fn refused_rules(errors: &[RuleError]) -> JsValue {
    let first = errors.iter().min_by_key(|error| (error.line, error.column));
    let words = first.map_or_else(|| "the rules cannot be used".to_owned(), ToString::to_string);
    let error = Error::new(&words);
    error.set_name("RulesError");
    set(&error, "errors", told_errors(errors));
    error.into()
}
