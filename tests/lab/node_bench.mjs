// Decisions a second in Node, as JSON: `node tests/lab/node_bench.mjs [ROUNDS]`. The package's keyed limiter
// beside two that are written in JavaScript, in turns: `limiter`, a token bucket to which a map by key is
// added here, and `rate-limiter-flexible` in memory, whose answers are promises, as its callers await them.
//
// Each decides for 10,000 keys in turn, by the time of the clock, and has room for all: what is counted is
// checked. Medians of the rounds.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

import { pkg, root } from "./browser.mjs";

const ROUNDS = Number(process.argv[2] ?? 5);
const DECISIONS = 200_000;
const KEYS = Array.from({ length: 10_000 }, (_, i) => `client ${i}`);

const need = createRequire(join(root, "target/lab/test-npm/package.json"));
const { Limit, Limiter } = await import(pathToFileURL(join(pkg, "node.js")));
const { RateLimiter } = need("limiter");
const { RateLimiterMemory } = need("rate-limiter-flexible");

/** Each makes its own limiter, and gives back what decides for a key. */
const ways = {
  tollgate() {
    const [limiter, limit] = [new Limiter(65_536), new Limit("100/s burst 200")];
    return { decide: (key) => limiter.check(key, limit, process.hrtime.bigint()).allowed, end: () => limiter.free() };
  },
  limiter() {
    const buckets = new Map();
    return {
      decide(key) {
        let bucket = buckets.get(key);
        if (!bucket) {
          bucket = new RateLimiter({ tokensPerInterval: 200, interval: 2000 });
          buckets.set(key, bucket);
        }
        return bucket.tryRemoveTokens(1);
      },
      end() {},
    };
  },
  "rate-limiter-flexible"() {
    const limiter = new RateLimiterMemory({ points: 200, duration: 2 });
    return { decide: (key) => limiter.consume(key), end() {} };
  },
};

const seconds = Object.fromEntries(Object.keys(ways).map((name) => [name, []]));
for (let round = 0; round <= ROUNDS; round++) {
  for (const [name, make] of Object.entries(ways)) {
    const { decide, end } = make();
    const isAsync = decide(KEYS[0]) instanceof Promise;
    let allowed = 0;
    const from = performance.now();
    for (let i = 0; i < DECISIONS; i++) {
      const answer = decide(KEYS[i % KEYS.length]);
      allowed += (isAsync ? await answer : answer) ? 1 : 0; // a promise is refused where the key is
    }
    const took = (performance.now() - from) / 1000;
    end();
    assert.equal(allowed, DECISIONS, name);
    if (round > 0) { // the first warms up
      seconds[name].push(took);
    }
  }
}
const median = (list) => list.sort((a, b) => a - b)[Math.floor(list.length / 2)];
console.log(JSON.stringify(Object.fromEntries(Object.entries(seconds).map(([name, list]) => [name, DECISIONS / median(list)]))));
process.exit(0); // one of the peers keeps timers for its keys
