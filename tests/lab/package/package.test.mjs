// The package for JavaScript, in Node: every vector, the seed check, and input of every wrong kind.
// TOLLGATE_PACKAGE names the built package, TOLLGATE_VECTORS the folder of vectors.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

import { parse, play } from "../vectors.mjs";

const home = process.env.TOLLGATE_PACKAGE;
const folder = process.env.TOLLGATE_VECTORS;
const load = (name) => import(pathToFileURL(join(home, name)));
const small = await load("node.js");
const compare = await load("node-compare.js");
const full = await load("node-full.js");
const SECOND = 1_000_000_000n;

const vectors = readdirSync(folder).filter((name) => name.endsWith(".json")).sort()
  .map((name) => parse(readFileSync(join(folder, name), "utf8")));

for (const [name, pack] of Object.entries({ tollgate: small, compare, full })) {
  test(`${name}: every step of every vector is exact`, (t) => {
    assert.ok(vectors.length > 0, `no vectors in ${folder}`);
    const steps = vectors.reduce((sum, vector) => sum + play(vector, pack), 0);
    t.diagnostic(`${vectors.length} vectors, ${steps} steps, each by bucket, all at once${pack.Limiter ? ", limiter" : ""}`);
  });

  test(`${name}: a wrong answer would be noticed`, () => {
    const spoilt = structuredClone(vectors[0]);
    spoilt.steps[3].remaining += 1;
    assert.throws(() => play(spoilt, pack), /step 3: remaining differs/);
  });

  test(`${name}: of a burst of 10 on 5 tokens 5 pass, and a second later exactly 2`, () => {
    const bucket = new pack.Bucket("2/s burst 5");
    const passed = (now) => Array.from({ length: 10 }, () => bucket.check(now)).filter(({ allowed }) => allowed).length;
    assert.equal(passed(100n * SECOND), 5);
    assert.equal(passed(101n * SECOND), 2);
  });

  test(`${name}: init may be awaited in Node too`, async () => {
    assert.equal(await pack.default(), undefined);
  });
}

// What is not legal is refused in words, and the object goes on as if it had not been asked.

const NOT_NUMBERS = [null, NaN, -1, 1.5, 2 ** 64, Infinity, "1", "x", true, {}, [], 1n, Symbol("x"), () => 1];
const NOT_NANOS = [null, undefined, NaN, 0, 1, -1n, 2n ** 64n, 2n ** 200n, "1", true, {}, [], Symbol("x")];
const NOT_LIMITS = [null, undefined, 1, 1n, true, "", "1", "0/s", "1/0s", "4294967296/s", "1/s burst 0", "hundred/s", "x".repeat(1e5), {}, [],
  { rate: 5 }, { rate: "1/s", burst: null }, { rate: "1/s", burst: 2 ** 64 }, { rate: "1/s", burst: NaN }, { rate: "1/s burst 2" },
  { rate: "1/s", algorithm: "leaky" }, { rate: "1/s", anchor: "first_request" }, { rate: "1/s", algorithm: "fixed_window", anchor: 1 },
  "concurrency 4294967295/s", Symbol("x"), () => 1];

function refused(what, call, about) {
  assert.throws(call, (error) => {
    assert.ok(error instanceof Error, `${what}: not an Error: ${error}`);
    assert.ok(!(error instanceof WebAssembly.RuntimeError), `${what}: a trap: ${error}`);
    assert.match(error.message, about, what);
    return true;
  }, what);
}

const told = (value) => { try { return JSON.stringify(value) ?? String(value); } catch { return String(value); } };

for (const [name, { Bucket, Limit, Limiter, headers, problem, never }] of Object.entries({ tollgate: small, full })) {
  test(`${name}: a bucket refuses what is not legal, and stays as it was`, () => {
    const bucket = new Bucket("2/s burst 5");
    bucket.check(SECOND, 2);
    const before = told(Object.entries(bucket.peek(SECOND)).map(String));
    for (const cost of NOT_NUMBERS) {
      for (const call of ["check", "peek", "acquire"]) {
        refused(`${call}(now, ${told(String(cost))})`, () => bucket[call](SECOND, cost), /^cost: .* is not a whole number from 0 to 4294967295$/);
      }
      refused(`refund(${String(cost)})`, () => bucket.refund(cost, SECOND), /^cost: /);
    }
    for (const now of NOT_NANOS) {
      for (const call of ["check", "peek", "acquire", "state"]) {
        refused(`${call}(${String(now)})`, () => bucket[call](now), /^now: .* is not a bigint from 0n to 18446744073709551615n \(nanoseconds\)$/);
      }
      refused(`refund(1, ${String(now)})`, () => bucket.refund(1, now), /^chargedAt: /);
      refused(`setLimit(…, ${String(now)})`, () => bucket.setLimit("1/s", now), /^now: /);
    }
    for (const limit of NOT_LIMITS) {
      refused(`setLimit(${told(String(limit?.rate ?? typeof limit))})`, () => bucket.setLimit(limit, SECOND), /^(limit|burst|period|algorithm|anchor)/);
      refused("new Bucket", () => new Bucket(limit), /^(limit|burst|period|algorithm|anchor)/);
    }
    for (const hold of [null, undefined, 1, -1n, 2n ** 64n, "1", {}]) {
      refused(`release(${String(hold)})`, () => bucket.release(hold), /^hold: /);
    }
    for (const times of [null, undefined, 1, [1n], new Uint8Array(1), {}]) {
      refused(`checkAll(${String(times)})`, () => bucket.checkAll(times), /^times: /);
    }
    const times = new BigUint64Array(2);
    for (const costs of [null, 1, [1, 1], new Uint32Array(1), new Uint8Array(2)]) {
      refused(`checkAll(…, ${String(costs)})`, () => bucket.checkAll(times, costs), /^costs: /);
    }
    assert.equal(told(Object.entries(bucket.peek(SECOND)).map(String)), before);
    assert.equal(bucket.peek(SECOND).remaining, 2);
  });

  test(`${name}: a limit refuses what is not legal, in the core's own words`, () => {
    for (const limit of NOT_LIMITS.filter((limit) => limit !== "concurrency 4294967295/s")) {
      refused(`new Limit(${told(typeof limit)})`, () => new Limit(limit), /^(limit|burst|period|algorithm|anchor)/);
    }
    for (const [text, words] of [
      ["30/q", "limit text: expected a unit of time (ns, us, ms, s, m, h or d) at byte 3"],
      ["0/s", "limit: 0 is outside 1 to 4294967295 units per period"],
      ["fixed_window 5/s burst 6", "burst: fixed_window has no burst apart from its limit; leave it out"],
    ]) {
      assert.throws(() => new Limit(text), { name: "Error", message: words });
    }
    const limit = new Limit("10/s");
    for (const burst of [...NOT_NUMBERS, undefined, 0]) {
      refused(`withBurst(${String(burst)})`, () => limit.withBurst(burst), /^burst: .* is not a whole number from 1 to 4294967295$/);
    }
    for (const wrong of [null, undefined, 1, "x", {}]) {
      refused("withAlgorithm", () => limit.withAlgorithm(wrong), /^algorithm: .* is none of token_bucket, /);
      refused("withAnchor", () => limit.withAnchor(wrong), /^anchor: .* is none of clock, /);
      if (wrong !== undefined) {
        refused("algorithm", () => new Limit("10/s", wrong), /^algorithm: /);
      }
    }
    assert.equal(String(limit), "10/s");
    for (const text of ["100/s burst 200", "leaky_bucket 10/s", "fixed_window 5/m anchor first_request", "700/1.5s", "fixed_window 5/month"]) {
      assert.equal(String(new Limit(text)), text);
      assert.equal(String(new Limit(new Limit(text))), text, "its fields say it all");
    }
  });

  test(`${name}: a keyed limiter refuses what is not legal, and stays as it was`, () => {
    const limiter = new Limiter(16);
    const limit = new Limit("2/s burst 5");
    limiter.check("a", limit, SECOND);
    for (const key of [null, undefined, 1, 1n, {}, [1], true]) {
      refused(`check(${String(key)})`, () => limiter.check(key, limit, SECOND), /^key: .* is neither a string nor a Uint8Array$/);
    }
    for (const wrong of [null, undefined, "1/s", {}, new Bucket("1/s")]) {
      refused("another limit", () => limiter.check("a", wrong, SECOND), /expected instance of Limit/);
    }
    for (const cost of NOT_NUMBERS) {
      refused("cost", () => limiter.check("a", limit, SECOND, cost), /^cost: /);
    }
    for (const now of NOT_NANOS) {
      refused("now", () => limiter.check("a", limit, now), /^now: /);
      refused("stats", () => limiter.stats(now), /^now: /);
    }
    for (const capacity of [...NOT_NUMBERS, undefined, 0, 4_194_305, 2 ** 32]) {
      refused(`new Limiter(${String(capacity)})`, () => new Limiter(capacity), /^capacity: /);
    }
    refused("rows", () => new Limiter(16, { rows: -1 }), /^rows: /);
    refused("rows that are too many", () => new Limiter(16, { rows: 65_536, rowEntries: 1_048_576 }), /^(capacity|rows|the table)/);
    refused("options", () => new Limiter(16, "rows"), /^options: /);
    refused("no rows", () => limiter.check("a", new Limit("sliding_log 3/s"), SECOND), /needs rows/);
    refused("top", () => limiter.top(65), /^count: /);
    assert.equal(limiter.peek("a", limit, SECOND, 0).remaining, 4);
    assert.equal(limiter.stats(SECOND).allowed, 1);
  });

  test(`${name}: what is freed says so`, () => {
    const bucket = new Bucket("1/s");
    bucket.free();
    refused("freed", () => bucket.check(0n), /null pointer|freed/);
  });

  test(`${name}: header fields and the problem are as gateways write them`, () => {
    const limit = new Limit("1/s burst 2");
    const bucket = new Bucket(limit);
    const decisions = [0, 1, 2].map(() => bucket.check(SECOND));
    assert.deepEqual(headers("api", limit, decisions[2]),
      [["X-RateLimit-Limit", "2"], ["X-RateLimit-Remaining", "0"], ["X-RateLimit-Reset", "2"], ["Retry-After", "1"]]);
    assert.deepEqual(headers("api", limit, decisions[0], "ratelimit"),
      [["RateLimit-Policy", '"api";q=1;w=1'], ["RateLimit", '"api";r=1;t=1']]);
    assert.equal(problem("api", limit, decisions[0]), "");
    assert.equal(JSON.parse(problem("api", limit, decisions[2])).retry_after, 1);
    assert.equal(JSON.parse(problem("api", limit, decisions[2], 503)).status, 503);
    for (const wrong of [null, undefined, {}, { ...decisions[0], retryAfter: 1 }, { ...decisions[0], remaining: NaN }]) {
      refused("decision", () => headers("api", limit, wrong), /^decision\./);
      refused("decision", () => problem("api", limit, wrong), /^decision\./);
    }
    refused("family", () => headers("api", limit, decisions[0], "all"), /^family: "all" is none of off, x-ratelimit/);
    refused("status", () => problem("api", limit, decisions[0], 200), /^status: /);
    assert.equal(never(), 2n ** 64n - 1n);
  });
}

test("the state of a bucket is exact to the part of a token", () => {
  const bucket = new small.Bucket("2/s burst 5");
  for (let i = 0; i < 10; i += 1) {
    bucket.check(SECOND);
  }
  const state = bucket.state(SECOND + SECOND / 4n);
  assert.equal(state.tokensNumerator * 2n, state.tokensDenominator);
  assert.equal(state.tokens, 0.5);
  assert.equal(state.tat, SECOND + (5n * SECOND) / 2n);
  assert.equal(state.latest, SECOND);
});

test("a hold is released once, and a check of a concurrency limit holds as well", () => {
  for (const one of [new small.Bucket("concurrency 2/10s")]) {
    const { allowed, hold } = one.acquire(0n, 2);
    assert.ok(allowed && hold > 0n);
    assert.deepEqual([...one.state(0n).entries], [10n * SECOND, 10n * SECOND]);
    assert.equal(one.acquire(0n).hold, 0n);
    assert.deepEqual([one.release(hold), one.release(hold)], [true, false]);
  }
  const limiter = new small.Limiter(16, { rows: 4, rowEntries: 4 });
  const limit = new small.Limit("concurrency 2/10s");
  const { hold } = limiter.acquire("a", limit, 0n, 2);
  assert.equal(limiter.acquire("a", limit, 0n).allowed, false);
  assert.deepEqual([limiter.release(hold), limiter.release(hold)], [true, false]);
  assert.equal(limiter.acquire("a", limit, 0n, 2).allowed, true);
});

test("memory is what was configured, and who is denied most is told", () => {
  const limiter = new small.Limiter(64);
  const limit = new small.Limit("1/m");
  for (let i = 0; i < 1000; i += 1) {
    limiter.check(`key ${i}`, limit, SECOND);
    limiter.check("greedy", limit, SECOND);
  }
  const { capacity, evictions, rejected } = limiter.stats(SECOND);
  assert.equal(capacity, 64);
  assert.ok(evictions > 0 && rejected > 0);
  assert.equal(limiter.top(1)[0].key, "greedy");
});

test("traffic is the same each time, and a fixed window admits twice its limit around a boundary", () => {
  for (const { Traffic } of [compare, full]) {
    const traffic = new Traffic({ preset: "window_boundary" });
    const period = Number(traffic.options.every);
    const outcome = traffic.play(`fixed_window ${traffic.options.burst}/${period}s`);
    assert.equal(outcome.worst.admitted, 2 * traffic.options.burst);
    assert.deepEqual(new Traffic({ preset: "window_boundary" }).play(outcome.limit), outcome);
    for (const algorithm of compare.algorithms().filter((name) => name !== "concurrency")) {
      for (const preset of ["steady", "burst", "retry_storm", "retry_jitter", "cron_spike", "abuser"]) {
        const { totals, offered, admitted, denied } = new Traffic({ preset }).play(`${algorithm} 10/s`, { key: "client" });
        const sum = (list) => list.reduce((all, one) => all + one, 0);
        assert.equal(sum(offered), totals.attempts);
        assert.equal(sum(admitted), totals.admitted);
        assert.equal(sum(denied), totals.denied);
        assert.equal(totals.requests + totals.retries, totals.attempts);
      }
    }
    const attempts = (preset) => new Traffic({ preset }).play("10/s").totals.attempts;
    assert.ok(attempts("retry_storm") > 2 * attempts("retry_jitter"), "jitter and Retry-After spare the limiter");
    for (const wrong of [null, 1, "steady", { preset: "x" }, { seconds: 0 }, { rate: NaN }, { clients: 1.5 }, { seed: -1 }, { every: 0.01 }, { pair: 1 }]) {
      refused(`new Traffic(${told(wrong)})`, () => new Traffic(wrong), /^(options|preset|seconds|rate|clients|seed|every|pair): /);
    }
    refused("play", () => traffic.play("1/s", { key: "x" }), /^key: /);
    refused("play", () => traffic.play(null), /^limit: /);
  }
});
