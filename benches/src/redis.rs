//! The token bucket's script on a real Redis, beside the two scripts that most
//! gateways run: a hash of tokens and time in milliseconds, and Spring Cloud
//! Gateway's two keys in whole seconds. All three get the same requests over
//! the same keys in rounds that take turns; a round in which one of them
//! admits another number than its limit says fails the run.
//!
//! Server time is what INFO commandstats says of EVALSHA; server CPU is that
//! of the whole process, parsing and replies included, at 16 calls a write.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use tollgate_core::Limit;
use tollgate_core::redis::script::{Ask, Call, Op, ScriptId};
use tollgate_tests::redis::Server;

use crate::Options;
use crate::measure::median;
use crate::report::Row;

/// The classic script: KEYS[1] a hash; capacity, tokens a second.
const CLASSIC: &str = r"
local capacity = tonumber(ARGV[1])
local refill = tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'ts')
local tokens = tonumber(bucket[1])
local ts = tonumber(bucket[2])
if tokens == nil or ts == nil then
  tokens = capacity
  ts = now
end
tokens = math.min(capacity, tokens + math.max(0, now - ts) * refill / 1000)
local allowed = 0
if tokens >= 1 then
  tokens = tokens - 1
  allowed = 1
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'ts', now)
redis.call('PEXPIRE', KEYS[1], 2 * math.ceil(capacity / refill * 1000))
return { allowed, math.floor(tokens) }
";

/// What Spring Cloud Gateway's RedisRateLimiter does: KEYS tokens and
/// timestamp; rate, capacity, nothing, how many.
const TWO_KEYS: &str = r"
local rate = tonumber(ARGV[1])
local capacity = tonumber(ARGV[2])
local now = redis.call('TIME')[1]
local requested = tonumber(ARGV[4])
local fill_time = capacity / rate
local ttl = math.floor(fill_time * 2)
local last_tokens = tonumber(redis.call('get', KEYS[1]))
if last_tokens == nil then
  last_tokens = capacity
end
local last_refreshed = tonumber(redis.call('get', KEYS[2]))
if last_refreshed == nil then
  last_refreshed = 0
end
local delta = math.max(0, now - last_refreshed)
local filled = math.min(capacity, last_tokens + (delta * rate))
local allowed = filled >= requested
local new_tokens = filled
local allowed_num = 0
if allowed then
  new_tokens = filled - requested
  allowed_num = 1
end
if ttl > 0 then
  redis.call('setex', KEYS[1], ttl, new_tokens)
  redis.call('setex', KEYS[2], ttl, now)
end
return { allowed_num, new_tokens }
";

/// Calls that are written at once.
const PIPELINE: usize = 16;
/// Keys that a round goes through; each is asked 16 times in it.
const KEYS: usize = 1_000;
/// Keys whose memory is measured.
const STORED: usize = 100_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Script {
    Ours,
    Classic,
    TwoKeys,
}

const ALL: [Script; 3] = [Script::Ours, Script::Classic, Script::TwoKeys];

pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    if options.wants("redis/token-bucket") {
        rows.extend(calls(options, "", "200/s burst 400", true));
        rows.extend(calls(options, "-denied", "1/h", false));
    }
    if options.wants("redis/memory-a-key") {
        rows.extend(memory());
    }
    rows
}

/// Server time and CPU of a call. Admitted: each key is asked within its
/// burst and refills between rounds.
fn calls(options: &Options, ending: &str, limit: &str, is_admitted: bool) -> Vec<Row> {
    let limit: Limit = limit.parse().expect("a limit");
    let mut redis = Redis::start();
    let pipelines: Vec<Vec<Vec<u8>>> =
        ALL.iter().map(|&script| (0..KEYS).map(|n| redis.pipeline(script, n, &limit)).collect()).collect();
    if !is_admitted {
        for script in ALL {
            for key in 0..KEYS {
                let _ = redis.call(script, &redis.pipeline(script, key, &limit));
            }
        }
    }
    let rounds = options.rounds(20);
    let (mut times, mut cpu) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for round in 0..=rounds {
        for turn in 0..ALL.len() {
            let index = (turn + round) % ALL.len();
            redis.command(&[b"CONFIG", b"RESETSTAT"]);
            let before = redis.cpu();
            let mut admitted = 0;
            for pipeline in &pipelines[index] {
                admitted += redis.call(ALL[index], pipeline);
            }
            let spent = redis.cpu() - before;
            let calls = KEYS * PIPELINE;
            assert_eq!(admitted, if is_admitted { calls } else { 0 }, "a script that miscounts");
            let stats = redis.server.info("commandstats", "cmdstat_evalsha");
            let usec = stats.split(',').find_map(|field| field.strip_prefix("usec_per_call="));
            let usec: f64 = usec.and_then(|usec| usec.parse().ok()).expect("INFO commandstats");
            if round > 0 {
                times[index].push(usec);
                cpu[index].push(spent as f64 / calls as f64 / 1_000.0);
            }
        }
    }
    let [ours, classic, two_keys] = times.each_mut().map(|times| median(times));
    let [ours_cpu, classic_cpu, two_keys_cpu] = cpu.each_mut().map(|cpu| median(cpu));
    let row = |name: &str, what: &str, ours, peer, peer_name, goal| {
        let row = Row::new(&format!("redis/token-bucket{ending}-{name}"), what, "us", ours, peer, peer_name);
        // What goals are set for is a request that is admitted.
        if is_admitted { row.goal(goal) } else { row }
    };
    let (time, work) = ("server time of a call, INFO commandstats", "server CPU of a call, 16 at once");
    vec![
        row("usec", time, ours, classic, "classic", 0.6),
        row("usec-scg", time, ours, two_keys, "two keys", 0.5),
        row("cpu", work, ours_cpu, classic_cpu, "classic", 0.6),
        row("cpu-scg", work, ours_cpu, two_keys_cpu, "two keys", 0.5),
    ]
}

/// Bytes of a key with all that belongs to it, by what the server's allocator
/// gives out for 100,000 of them.
fn memory() -> Vec<Row> {
    let limit: Limit = "1/s burst 200".parse().expect("a limit");
    let mut bytes = [0.0; 3];
    let mut reported = [0.0; 3];
    for (index, script) in ALL.into_iter().enumerate() {
        let mut redis = Redis::start();
        let before = redis.used_memory();
        // Some requests at once, and one later: the fractions that real traffic leaves.
        for round in [3, 1, 1] {
            for start in (0..STORED).step_by(100) {
                let calls: Vec<u8> = (start..start + 100)
                    .flat_map(|key| redis.one(script, key, &limit).repeat(round))
                    .collect();
                assert_eq!(
                    redis.call_many(script, &calls, 100 * round),
                    100 * round,
                    "a script that miscounts"
                );
            }
        }
        bytes[index] = (redis.used_memory() - before) / STORED as f64;
        for key in keys(script, 77_777) {
            let usage = redis.command(&[b"MEMORY", b"USAGE", key.as_bytes()]);
            reported[index] +=
                usage.strip_prefix(':').and_then(|n| n.parse::<f64>().ok()).expect("MEMORY USAGE");
        }
    }
    let row = |name: &str, what: &str, values: [f64; 3], peer: usize, peer_name| {
        Row::new(&format!("redis/memory-a-key{name}"), what, "bytes", values[0], values[peer], peer_name)
    };
    let (all, own) = ("used_memory of 100,000 keys with their TTL, by one", "MEMORY USAGE of one key");
    vec![
        row("", all, bytes, 1, "classic").goal(0.67),
        row("-usage", own, reported, 1, "classic").goal(0.67),
        row("-scg", all, bytes, 2, "two keys"),
    ]
}

/// The keys of one tenant.
fn keys(script: Script, number: usize) -> Vec<String> {
    let key = format!("rl:{{tenant-{number:05}}}:route");
    match script {
        Script::Ours => vec![key],
        // The classic script's key has the same name; other scripts' states need another server or name.
        Script::Classic => vec![key.replace("rl:", "rc:")],
        Script::TwoKeys => vec![
            format!("request_rate_limiter.{{tenant-{number:05}}}.tokens"),
            format!("request_rate_limiter.{{tenant-{number:05}}}.timestamp"),
        ],
    }
}

struct Redis {
    server: Server,
    stream: BufReader<UnixStream>,
    digests: [String; 3],
}

impl Redis {
    fn start() -> Redis {
        let server = Server::start(&[]);
        let stream = BufReader::new(UnixStream::connect(server.socket()).expect("the server's socket"));
        let mut redis = Redis { server, stream, digests: Default::default() };
        redis.digests = [&ScriptId::TokenBucket.source(), CLASSIC, TWO_KEYS].map(|source| {
            let lines = redis.command(&[b"SCRIPT", b"LOAD", source.as_bytes()]);
            assert!(lines.starts_with('$'), "{lines}");
            redis.line()
        });
        redis
    }

    /// One call of a token.
    fn one(&self, script: Script, number: usize, limit: &Limit) -> Vec<u8> {
        let keys = keys(script, number);
        let digest = &self.digests[script as usize];
        let mut words: Vec<Vec<u8>> = vec![b"EVALSHA".to_vec(), digest.clone().into_bytes()];
        if script == Script::Ours {
            let op = Op::Check { cost: 1, more: 0, share: 1, owed: 0, id: 1 << 40 };
            let asks = [Ask { key: keys[0].as_bytes(), limit }];
            Call { asks: &asks, op }.arguments(&mut |argument| words.push(argument.to_vec()));
        } else {
            words.push(keys.len().to_string().into_bytes());
            words.extend(keys.into_iter().map(String::into_bytes));
            let rate = limit.limit() as f64 / (limit.period() as f64 / 1e9);
            let numbers = match script {
                Script::Classic => vec![limit.burst().to_string(), rate.to_string()],
                _ => vec![rate.to_string(), limit.burst().to_string(), String::new(), "1".to_owned()],
            };
            words.extend(numbers.into_iter().map(String::into_bytes));
        }
        encoded(&words)
    }

    fn pipeline(&self, script: Script, number: usize, limit: &Limit) -> Vec<u8> {
        self.one(script, number, limit).repeat(PIPELINE)
    }

    fn call(&mut self, script: Script, pipeline: &[u8]) -> usize {
        self.call_many(script, pipeline, PIPELINE)
    }

    /// How many of so many calls were admitted.
    fn call_many(&mut self, script: Script, calls: &[u8], count: usize) -> usize {
        self.stream.get_mut().write_all(calls).expect("Redis reads");
        (0..count).filter(|_| self.is_admitted(script)).count()
    }

    fn is_admitted(&mut self, script: Script) -> bool {
        let first = self.line();
        if script == Script::Ours {
            assert!(first.starts_with(':'), "{first}");
            return !first.starts_with(":-");
        }
        assert_eq!(first, "*2");
        let allowed = self.line();
        let _ = self.line();
        allowed == ":1"
    }

    fn command(&mut self, words: &[&[u8]]) -> String {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        self.stream.get_mut().write_all(&encoded(&words)).expect("Redis reads");
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("Redis answers");
        line.trim_end().to_owned()
    }

    fn used_memory(&self) -> f64 {
        self.server.info("memory", "used_memory").parse().expect("a number")
    }

    /// Nanoseconds that the server's main thread has run.
    fn cpu(&self) -> u64 {
        let path = format!("/proc/{}/schedstat", self.server.pid());
        let text = fs::read_to_string(&path).expect("a running server");
        text.split_whitespace().next().and_then(|spent| spent.parse().ok()).expect("nanoseconds")
    }
}

fn encoded(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}
