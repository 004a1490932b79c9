//! The Lua scripts on a real Redis under a clock that the test sets: the one line of each script
//! that reads the time reads a key instead, and nothing else is changed.

use redis::Value;
use tollgate_core::limiter::MAX_LAYERS;
use tollgate_core::redis::script::{self, Ask, Call, Op, ScriptId};
use tollgate_core::time::SECOND;
use tollgate_core::{Decision, Limit, Nanos};

use crate::redis::Server;

/// The scripts of one server.
pub struct Scripts {
    /// The server.
    pub server: Server,
    /// A connection to it.
    pub connection: redis::Connection,
    /// With the test's clock: the milliseconds that each key of the last call had to live behind
    /// it, −2 where there was none. They live on: this clock does not run.
    pub ttls: Vec<i64>,
    /// Milliseconds that these keys have to live when the next call comes.
    pub lives: Vec<(String, u64)>,
    has_clock: bool,
    digests: Vec<String>,
    id: u64,
}

/// What a check of several limits answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// One for each limit.
    pub decisions: Vec<Decision>,
    /// Units on top of the cost.
    pub granted: u64,
}

impl Answer {
    /// Did all admit?
    #[must_use]
    pub fn allowed(&self) -> bool {
        self.decisions.iter().all(|decision| decision.allowed)
    }
}

/// A check of this cost and nothing else.
#[must_use]
pub fn take(cost: u64) -> Op {
    Op::Check { cost, more: 0, share: 1, owed: 0, id: 0 }
}

impl Scripts {
    /// A server of its own, with the test's clock or with Redis's.
    ///
    /// # Panics
    /// When a script does not load.
    #[must_use]
    pub fn new(has_clock: bool) -> Scripts {
        let server = Server::start(&[]);
        let mut connection = server.connection();
        let load = |script: &ScriptId| -> String {
            let line = |line: &str| match line.contains("call('TIME')") && has_clock {
                true => "local t = call('HMGET', '{now}', 's', 'n') local s, n = t[1], t[2] + 0".to_owned(),
                false => line.to_owned(),
            };
            let whole = script.source();
            let lines: Vec<String> = whole.lines().map(line).collect();
            let source = if has_clock { lines.join("\n") } else { whole };
            redis::cmd("SCRIPT").arg("LOAD").arg(source).query(&mut connection).expect("it compiles")
        };
        let digests: Vec<String> = ScriptId::ALL.iter().map(load).collect();
        if !has_clock {
            for (script, digest) in ScriptId::ALL.iter().zip(&digests) {
                assert_eq!(script.sha1().as_slice(), digest.as_bytes());
            }
        }
        let mut scripts =
            Scripts { server, connection, ttls: Vec::new(), lives: Vec::new(), has_clock, digests, id: 0 };
        if has_clock {
            scripts.at(0);
        }
        scripts
    }

    /// Sets the clock.
    ///
    /// # Panics
    /// When Redis is gone.
    pub fn at(&mut self, now: Nanos) {
        let mut set = redis::cmd("HSET");
        set.arg("{now}").arg("s").arg(now / SECOND).arg("n").arg(now % SECOND);
        let _: Value = set.query(&mut self.connection).expect("HSET");
    }

    /// Runs a call.
    ///
    /// # Errors
    /// What Redis says.
    ///
    /// # Panics
    /// A reply of anything but integers.
    pub fn call(&mut self, call: &Call<'_>) -> redis::RedisResult<Vec<i64>> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.digests[call.script() as usize]);
        call.arguments(&mut |argument| {
            command.arg(argument);
        });
        if !self.has_clock {
            return Ok(integers(&command.query(&mut self.connection)?));
        }
        let mut all = redis::pipe();
        all.atomic();
        for (key, left) in self.lives.drain(..) {
            all.cmd("PEXPIRE").arg(key).arg(left.max(1)).ignore();
        }
        all.add_command(command);
        for ask in call.asks {
            all.cmd("PTTL").arg(ask.key);
            all.cmd("PEXPIRE").arg(ask.key).arg(100u64 * 86_400_000).ignore();
        }
        let replies: Vec<Value> = all.query(&mut self.connection)?;
        self.ttls = replies[1..].iter().flat_map(integers).collect();
        Ok(integers(&replies[0]))
    }

    /// Runs a check of several limits.
    ///
    /// # Errors
    /// What Redis says.
    ///
    /// # Panics
    /// A reply that is no answer.
    pub fn check(&mut self, asks: &[Ask<'_>], op: Op) -> redis::RedisResult<Answer> {
        self.id += 1;
        let op = match op {
            Op::Check { cost, more, share, owed, id: 0 } => {
                Op::Check { cost, more, share, owed, id: self.id }
            }
            other => other,
        };
        let integers = self.call(&Call { asks, op })?;
        let mut decisions =
            vec![
                Decision { allowed: false, limit: 0, remaining: 0, retry_after: 0, reset_after: 0, delay: 0 };
                MAX_LAYERS
            ];
        let granted = script::decode(&mut asks.iter().map(|ask| ask.limit), &integers, &mut decisions)
            .unwrap_or_else(|error| panic!("{error}: {integers:?} of {op:?}"));
        decisions.truncate(asks.len());
        Ok(Answer { decisions, granted })
    }

    /// Asks one limit.
    ///
    /// # Panics
    /// When Redis refuses.
    pub fn ask(&mut self, key: &str, limit: &Limit, op: Op) -> Answer {
        self.check(&[Ask { key: key.as_bytes(), limit }], op).expect("an answer")
    }

    /// Gives back to one limit.
    ///
    /// # Panics
    /// When Redis refuses.
    pub fn give_back(&mut self, key: &str, limit: &Limit, units: u64, age: Nanos, id: u64) {
        let asks = [Ask { key: key.as_bytes(), limit }];
        let reply = self.call(&Call { asks: &asks, op: Op::GiveBack { units, age, id } });
        assert_eq!(reply.expect("an answer"), [1]);
    }

    /// One word command about a key, with these arguments.
    ///
    /// # Panics
    /// When Redis refuses.
    pub fn command<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        command.query(&mut self.connection).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Milliseconds that the key has to live; −1 for ever, −2 there is none.
    pub fn pttl(&mut self, key: &str) -> i64 {
        self.command(&["PTTL", key])
    }
}

fn integers(reply: &Value) -> Vec<i64> {
    match reply {
        Value::Int(integer) => vec![*integer],
        Value::Array(values) => values.iter().flat_map(integers).collect(),
        other => panic!("not an integer: {other:?}"),
    }
}
