//! What a simulated cluster is held to, and may be changed while it runs.

use js_sys::Object;
use tollgate_core::Limit;
use tollgate_core::policy::Rules;
use tollgate_core::redis::script;
use tollgate_core::redis::sim::NetworkConfig;
use wasm_bindgen::prelude::*;

use crate::value::{self, Result, number, one_of, refused, set, whole};

const FALLBACKS: [&str; 3] = ["local", "allow", "deny"];
const SHAPES: [&str; 3] = ["steady", "random", "bursts"];
const SPREADS: [&str; 2] = ["even", "zipf"];
/// Of the breaker: failures, then milliseconds; with the most of each.
const BREAKER: [(&str, f64); 4] =
    [("failures", 1000.0), ("window", 3_600_000.0), ("openFor", 3_600_000.0), ("maxOpen", 3_600_000.0)];

/// All of it; times are milliseconds.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) limit: Limit,
    lease: u64,
    lease_ttl: u64,
    timeout: u64,
    fallback: usize,
    pub(super) breaker: [f64; 4],
    /// Requests a second, of all instances together.
    pub(super) offered: f64,
    pub(super) shape: usize,
    pub(super) keys: u32,
    pub(super) spread: usize,
    latency: f64,
    jitter: f64,
    loss: f64,
}

impl Settings {
    /// What holds where nothing is given.
    pub(super) fn new() -> Result<Settings> {
        Ok(Settings {
            limit: "100/s".parse().map_err(refused)?,
            lease: 10,
            lease_ttl: 1000,
            timeout: 5,
            fallback: 0,
            breaker: [5.0, 10_000.0, 100.0, 500.0],
            offered: 300.0,
            shape: 0,
            keys: 1,
            spread: 0,
            latency: 0.25,
            jitter: 0.25,
            loss: 0.0,
        })
    }

    /// Takes what is given; at the first thing that is not legal it stops.
    pub(super) fn read(&mut self, options: &JsValue) -> Result<()> {
        let given = |name: &str| value::given(options, name);
        if let Some(text) = given("limit") {
            let limit: Limit = value::text("limit", &text)?.parse().map_err(refused)?;
            script::accepts(&limit).map_err(refused)?;
            self.limit = limit;
        }
        for (name, room, least, most) in [
            ("lease", &mut self.lease, 0, 10_000),
            ("leaseTtl", &mut self.lease_ttl, 1, 3_600_000),
            ("timeout", &mut self.timeout, 1, 10_000),
        ] {
            if let Some(given) = given(name) {
                *room = whole(name, &given, least, most)?;
            }
        }
        for (name, room, most) in [
            ("offered", &mut self.offered, 50_000.0),
            ("latency", &mut self.latency, 10_000.0),
            ("jitter", &mut self.jitter, 10_000.0),
            ("loss", &mut self.loss, 1.0),
        ] {
            if let Some(given) = given(name) {
                *room = number(name, &given, 0.0, most)?;
            }
        }
        for (name, room, names) in [
            ("onStoreError", &mut self.fallback, &FALLBACKS[..]),
            ("shape", &mut self.shape, &SHAPES[..]),
            ("spread", &mut self.spread, &SPREADS[..]),
        ] {
            if let Some(given) = given(name) {
                *room = one_of(name, &given, names)?;
            }
        }
        if let Some(given) = given("keys") {
            self.keys = whole("keys", &given, 1, 10_000)? as u32; // in range
        }
        if let Some(breaker) = given("breaker") {
            value::object("breaker", &breaker)?;
            for ((name, most), room) in BREAKER.into_iter().zip(&mut self.breaker) {
                if let Some(given) = value::given(&breaker, name) {
                    *room = whole(&format!("breaker.{name}"), &given, 1, most as u64)? as f64;
                }
            }
        }
        Ok(())
    }

    /// The rules that say so.
    pub(super) fn rules(&self) -> Result<Rules> {
        let Settings { limit, lease, lease_ttl, timeout, fallback, .. } = self;
        let mut more = String::new();
        if limit.burst() != limit.limit() {
            more.push_str(&format!(r#", "burst": {}"#, limit.burst()));
        }
        if limit.anchor() == tollgate_core::Anchor::FirstRequest {
            more.push_str(r#", "anchor": "first_request""#);
        }
        let plain = limit.to_string();
        let rate = plain.split(' ').find(|word| word.contains('/')).unwrap_or(&plain);
        let leased = match lease {
            0 => String::new(),
            lease => format!(r#", "lease": {{ "max": {lease}, "ttl": "{lease_ttl}ms" }}"#),
        };
        let (algorithm, fallback) = (limit.algorithm().name(), FALLBACKS.get(*fallback).unwrap_or(&"local"));
        let text = format!(
            r#"{{ "identity": {{ "tenant": {{ "header": "x-tenant" }} }},
                 "policies": [ {{ "name": "shared", "key": ["tenant"], "store": "redis", "timeout": "{timeout}ms",
                   "on_store_error": "{fallback}",
                   "limits": [ {{ "algorithm": "{algorithm}", "rate": "{rate}"{more} }} ]{leased} }} ] }}"#
        );
        Rules::parse(&text, super::seed()).map_err(|errors| match errors.first() {
            Some(error) => value::refuse(&error.message),
            None => value::refuse("these settings make no rules"),
        })
    }

    /// How calls travel; the seed is the caller's.
    pub(super) fn network(&self) -> NetworkConfig {
        let nanos = |ms: f64| (ms * super::MS) as u64; // in range
        let loss = (self.loss * 1_000_000.0) as u32; // in range
        NetworkConfig { seed: 0, latency: nanos(self.latency), jitter: nanos(self.jitter), loss }
    }

    /// As a plain object.
    pub(super) fn told(&self) -> Object {
        let object = Object::new();
        set(&object, "limit", self.limit.to_string());
        for (name, number) in [
            ("lease", self.lease as f64),
            ("leaseTtl", self.lease_ttl as f64),
            ("timeout", self.timeout as f64),
            ("offered", self.offered),
            ("keys", f64::from(self.keys)),
            ("latency", self.latency),
            ("jitter", self.jitter),
            ("loss", self.loss),
        ] {
            set(&object, name, number);
        }
        for (name, names, place) in [
            ("onStoreError", &FALLBACKS[..], self.fallback),
            ("shape", &SHAPES[..], self.shape),
            ("spread", &SPREADS[..], self.spread),
        ] {
            set(&object, name, names.get(place).copied().unwrap_or_default());
        }
        let breaker = Object::new();
        for ((name, _), number) in BREAKER.into_iter().zip(self.breaker) {
            set(&breaker, name, number);
        }
        set(&object, "breaker", breaker);
        object
    }
}
