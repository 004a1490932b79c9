//! The Lua scripts on a real Redis: the vectors, the pure functions' answers to any traffic, and
//! what every key must be.

use std::cell::RefCell;
use std::rc::Rc;

use tollgate_core::redis::script::Ask;
use tollgate_core::{Decision, Limit, Nanos};
use tollgate_tests::scripts::{Scripts, take};
use tollgate_tests::vectors::{self, Vector};

/// What `retry_after` and `reset_after` may add to the exact value.
const TOLERANCE: Nanos = 1_000_000;

/// Plays all vectors through what `answer` makes of a step.
fn play_all(way: &str, answer: impl Fn(&mut Scripts, &Vector, &Limit, u64) -> Decision) {
    let scripts = Rc::new(RefCell::new(Scripts::new(true)));
    let vectors = vectors::all();
    let mut failures = Vec::new();
    let mut steps = 0;
    for vector in &vectors {
        let limit = vector.limit();
        let played = vector.play(TOLERANCE, |cost, now| {
            let mut scripts = scripts.borrow_mut();
            scripts.at(now);
            answer(&mut scripts, vector, &limit, cost)
        });
        match played {
            Ok(count) => steps += count,
            Err(failure) => failures.push(failure),
        }
    }
    assert!(
        failures.is_empty(),
        "{way}: {} of {} differ\n{}",
        failures.len(),
        vectors.len(),
        failures.join("\n")
    );
    println!("{way}: {} vectors, {steps} steps", vectors.len());
}

#[test]
fn single_scripts_answer_every_step() {
    play_all("single scripts", |scripts, vector, limit, cost| {
        scripts.ask(&vector.name, limit, take(cost)).decisions[0]
    });
}

#[test]
fn several_limits_at_once_answer_every_step() {
    let wide: Limit = "4294967295/1us".parse().unwrap();
    play_all("multi", |scripts, vector, limit, cost| {
        let beside = format!("{}:beside", vector.name);
        let asks = [Ask { key: beside.as_bytes(), limit: &wide }, Ask { key: vector.name.as_bytes(), limit }];
        scripts.check(&asks, take(cost)).expect("an answer").decisions[1]
    });
}
