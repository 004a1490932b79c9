// What the page's first section costs, as JSON: `node tests/lab/frames.mjs [SECONDS]`.
//
// While requests stream into the bucket, each frame draws it, its curve and the figures. `interval`: from
// one frame to the next; `work`: what the page's own code takes of it. `first_load_bytes`: what a first
// visit fetches before the section stands, compressed as a server would send it; `wasm_bytes` of that.

import assert from "node:assert/strict";

import { launch, open, serve } from "./browser.mjs";

const SECONDS = Number(process.argv[2] ?? 5);
const PER_SECOND = 50;
const at = (sorted, part) => sorted[Math.min(Math.floor(sorted.length * part), sorted.length - 1)];
const spread = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  return { median: at(sorted, 0.5), p95: at(sorted, 0.95), max: sorted.at(-1) };
};

const server = await serve();
const browser = await launch({ offline: false });
let result;
try {
  const page = await browser.page();
  await page.addInitScript(() => {
    globalThis.frames = [];
    const real = requestAnimationFrame.bind(globalThis);
    globalThis.requestAnimationFrame = (callback) => real((time) => {
      const from = performance.now();
      callback(time);
      // Plots are drawn in a microtask that the callback queued: this one comes after it.
      queueMicrotask(() => globalThis.frames.push([time, performance.now() - from]));
    });
  });
  await open(page, server.url, `#bucket?capacity=20&refill=20&stream=${PER_SECOND}`);
  await page.waitForSelector(".uplot");
  const bytes = [...server.sent].reduce((sum, [, size]) => sum + size, 0);
  const wasm = [...server.sent].reduce((sum, [name, size]) => sum + (name.endsWith(".wasm") ? size : 0), 0);

  const hold = page.getByRole("button", { name: "Hold to stream" });
  await hold.focus();
  await page.keyboard.down("Space");
  await page.waitForTimeout(1500); // until the curve is there and the code is compiled
  await page.evaluate(() => { globalThis.frames = []; });
  await page.waitForTimeout(SECONDS * 1000);
  const frames = await page.evaluate(() => globalThis.frames);
  await page.keyboard.up("Space");
  const sent = await page.evaluate(() => ["allowed", "rejected"].reduce((sum, name) => sum + Number(document.querySelector(`[data-figure="${name}"]`).textContent.replaceAll(",", "")), 0));
  assert.ok(sent > PER_SECOND * SECONDS * 0.8, `only ${sent} requests were sent`);
  assert.deepEqual(page.faults.filter((fault) => !fault.includes("Service Worker registration blocked")), []);

  // Several callbacks may share a frame: their work is added up.
  const work = new Map();
  for (const [time, took] of frames) {
    work.set(time, (work.get(time) ?? 0) + took);
  }
  const times = [...work.keys()];
  result = {
    frames: times.length, interval_ms: spread(times.slice(1).map((time, i) => time - times[i])), work_ms: spread([...work.values()]),
    first_load_bytes: bytes, wasm_bytes: wasm,
  };
} finally {
  await browser.close();
  await server.close();
}
console.log(JSON.stringify(result));
