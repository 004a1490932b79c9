// Rules, replay and cluster of the package, in Node: that they answer, refuse what is not legal in words,
// and go on. What they answer is the core's, and tested there.

import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const { Cluster, Replay, Rules } = await import(pathToFileURL(join(process.env.TOLLGATE_PACKAGE, "node-full.js")));
const SECOND = 1_000_000_000n;
const RULES = JSON.stringify({
  identity: { api_key: { header: "x-api-key", required: true } },
  policies: [
    { name: "orders", match: { path: "/api/orders/*" }, key: ["api_key"], limits: [{ rate: "1/s", burst: 2 }] },
    { name: "net", key: ["ip"], limits: [{ rate: "100/s" }] },
  ],
});

function refused(what, call, about = /./) {
  assert.throws(call, (error) => {
    assert.ok(error instanceof Error && !(error instanceof WebAssembly.RuntimeError), `${what}: ${error}`);
    assert.match(error.message, about, what);
    return true;
  }, what);
}

test("rules answer as a gateway would", () => {
  const rules = new Rules(RULES);
  const request = { path: "/api/orders/7?x=1", method: "POST", peer: "192.0.2.1", headers: { "X-Api-Key": "shop-a" } };
  const answers = [0, 1, 2].map(() => rules.check(request, SECOND));
  assert.deepEqual(answers.map(({ status }) => status), [200, 200, 429]);
  assert.deepEqual(answers[2].headers.at(-1), ["Retry-After", "1"]);
  assert.deepEqual(JSON.parse(answers[2].body)["violated-policies"], ["orders"]);
  assert.deepEqual(answers[2].policies.map(({ policy, outcome }) => [policy, outcome]), [["orders", "denied"], ["net", "spared"]]);
  const missing = rules.check({ ...request, headers: {} }, SECOND);
  assert.deepEqual([missing.status, missing.missingHeader, missing.allowed], [401, "x-api-key", false]);
  assert.equal(missing.headers[0][0], "WWW-Authenticate");
  rules.reset();
  assert.equal(rules.check(request, SECOND).status, 200);
});

test("rules refuse what is not legal, with line and column", () => {
  const text = '{\n  "policies": [ { "name": "a", "key": ["ip"], "limits": [ { "rate": "1/q" } ] } ],\n  "x": 1 }';
  const errors = Rules.errors(text);
  assert.deepEqual(errors.map(({ line }) => line), [2, 3]);
  assert.throws(() => new Rules(text), (error) => {
    assert.equal(error.name, "RulesError");
    assert.deepEqual(error.errors, errors);
    return error instanceof Error;
  });
  assert.deepEqual(Rules.errors(RULES), []);
  for (const wrong of [null, undefined, 1, {}, Symbol("x")]) {
    refused("new Rules", () => new Rules(wrong), /^(rules|text)/);
    refused("errors", () => Rules.errors(wrong), /^(rules|text)/);
  }
  const rules = new Rules(RULES);
  for (const request of [null, undefined, 1, "x", [], {}, { path: 1 }, { path: "/", peer: "x" }, { path: "/", peer: 1 }, { path: "/", headers: { a: 1 } }, { path: "/", headers: 1 }]) {
    refused(`check(${JSON.stringify(request)})`, () => rules.check(request, SECOND));
  }
  for (const now of [null, undefined, 1, -1n, 2n ** 64n]) {
    refused("now", () => rules.check({ path: "/" }, now), /^now: /);
  }
  for (const capacity of [null, 0, NaN, -1, 2 ** 64, "1"]) {
    refused("capacity", () => new Rules(RULES, { capacity }), /^(options\.)?capacity: /);
  }
  assert.equal(rules.check({ path: "/", peer: "192.0.2.1" }, SECOND).status, 200);
});

const LOG = Array.from({ length: 100 }, (_, i) =>
  `192.0.2.${i % 4} - - [30/Nov/2026:00:00:${String(i % 60).padStart(2, "0")} +0000] "GET /a/${i} HTTP/1.1" 200 5 "-" "x"\n`).sort((a, b) => (a.slice(15, 50) < b.slice(15, 50) ? -1 : 1)).join("");

test("a log replays the same wherever it is cut", () => {
  const rules = '{ "policies": [ { "name": "net", "key": ["ip"], "limits": [ { "rate": "10/m" } ] } ] }';
  const bytes = new TextEncoder().encode(LOG);
  const whole = new Replay(rules);
  whole.push(bytes);
  whole.finish();
  const report = whole.report();
  assert.equal(report.requests, 100);
  assert.ok(report.denied > 0 && report.admitted + report.denied === 100);
  assert.deepEqual(JSON.parse(whole.json()), report);
  for (const size of [1, 7, 64, 1000]) {
    const pieces = new Replay(rules);
    for (let at = 0; at < bytes.length; at += size) {
      pieces.push(bytes.subarray(at, at + size));
    }
    pieces.finish();
    assert.equal(pieces.json(), whole.json());
    assert.equal(pieces.csv(), whole.csv());
    assert.equal(pieces.lines, 100);
  }
  refused("after the end", () => whole.push(bytes), /at its end/);
  for (const wrong of [null, undefined, 1, "x", [1], new ArrayBuffer(1)]) {
    refused("push", () => new Replay(rules).push(wrong), /^bytes: /);
  }
  refused("rules", () => new Replay("{"), /./);
  for (const options of [{ format: "xml" }, { capacity: 0 }, { capacity: 2 ** 40 }, { buckets: NaN }, { route: 1 }]) {
    refused(JSON.stringify(options), () => new Replay(rules, options), /^(format|capacity|buckets|route): /);
  }
});

test("a cluster is the same each time, and admits no more than its limit while Redis is well", () => {
  const options = { instances: 5, limit: "100/s", offered: 300, lease: 10, seed: 7 };
  const [one, other] = [new Cluster(options), new Cluster(options)];
  let sample;
  for (let i = 0; i < 200; i += 1) {
    sample = one.step(16);
    assert.deepEqual(other.step(16), sample);
    assert.ok(sample.hottest.admitted <= sample.hottest.allowed, `${sample.hottest.admitted} of ${sample.hottest.allowed}`);
  }
  assert.ok(sample.total.admitted > 300 && sample.total.denied > 0);
  assert.ok(sample.total.calls < sample.total.offered, "leases and denials in memory spare Redis");
  one.outage("refused");
  for (let i = 0; i < 60; i += 1) {
    sample = one.step(16);
  }
  assert.ok(sample.isOut && sample.breakers.some((state) => state > 0) && sample.total.fallback > 0);
  one.heal();
  for (let i = 0; i < 120; i += 1) {
    sample = one.step(16);
  }
  assert.ok(!sample.isOut && sample.breakers.every((state) => state === 0));
});

test("a cluster refuses what is not legal, and goes on", () => {
  const cluster = new Cluster();
  for (const options of [null, 1, { instances: 0 }, { instances: 201 }, { limit: "x" }, { lease: -1 }, { offered: NaN }, { loss: 2 }, { keys: 0 }, { onStoreError: "x" }, { shape: 1 }, { seed: -1 }]) {
    refused(`new Cluster(${JSON.stringify(options)})`, () => new Cluster(options));
  }
  for (const settings of [null, 1, { limit: 1 }, { lease: 1.5 }, { latency: -1 }, { timeout: 0 }, { breaker: 1 }]) {
    refused(`set(${JSON.stringify(settings)})`, () => cluster.set(settings));
  }
  for (const ms of [null, undefined, 0, -1, NaN, 1001, "1", 1n]) {
    refused(`step(${String(ms)})`, () => cluster.step(ms));
  }
  refused("outage", () => cluster.outage("x"));
  refused("outage", () => cluster.outage("lost", -1));
  const { settings } = cluster;
  cluster.set({ lease: 0, latency: 2 });
  assert.deepEqual(cluster.settings, { ...settings, lease: 0, latency: 2 });
  assert.equal(cluster.step(1000).now, 1000);
});
