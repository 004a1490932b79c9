// A replay of 100,000 lines in the page, measured: `node tests/lab/replay_bench.mjs` prints JSON.
// `wall_ms` is from the drop of the file to the report on the page, `replay_ms` what of it the replay
// took, `longest_gap_ms` the longest time between two frames meanwhile: the page is not to stand still.
// `longest_work_ms` is the longest that the page's own code took at once: what of a gap is of its making,
// and not of a machine whose cores are busy.
// Medians of the rounds; `worst_gap_ms` is the longest of all.

import assert from "node:assert/strict";

import { sampleLog } from "../../wasm/www/sections/rules/sample-log.js";
import { serve } from "./browser.mjs";
import { launch, open } from "./visit.mjs";

const ROUNDS = Number(process.argv[2] ?? 5);
const log = Buffer.from(sampleLog(100_000));
const [server, browser] = [await serve(), await launch()];
const rounds = [];
for (let round = 0; round < ROUNDS; round++) {
  const page = await open(browser, server.url, "rules?example=night");
  await page.evaluate(() => {
    globalThis.work = 0;
    const timed = (run) => (...of) => {
      const from = performance.now();
      try {
        return run(...of);
      } finally {
        globalThis.work = Math.max(globalThis.work, performance.now() - from);
      }
    };
    const { set, get } = Object.getOwnPropertyDescriptor(Worker.prototype, "onmessage");
    Object.defineProperty(Worker.prototype, "onmessage", { get, set(listener) { set.call(this, timed(listener)); } });
    const next = globalThis.requestAnimationFrame.bind(globalThis);
    globalThis.requestAnimationFrame = (run) => next(timed(run));
    const queue = globalThis.queueMicrotask.bind(globalThis); // plots are drawn there
    globalThis.queueMicrotask = (run) => queue(timed(run));
    globalThis.longest = 0;
    let last = performance.now();
    const frame = (now) => {
      globalThis.longest = Math.max(globalThis.longest, now - last);
      last = now;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  await page.waitForTimeout(500);
  // The file is in the page's hands before time runs: a drop, made by the page itself.
  await page.evaluate(async (text) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([text], "access.log"));
    globalThis.transfer = transfer;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }, log.toString());
  const wall = await page.evaluate(async () => {
    globalThis.longest = globalThis.work = 0;
    const from = performance.now();
    document.querySelector(".drop").dispatchEvent(new DragEvent("drop", { dataTransfer: globalThis.transfer, bubbles: true, cancelable: true }));
    while (document.querySelector(".results").hidden) {
      await new Promise((resolve) => requestAnimationFrame(resolve));
    }
    return performance.now() - from;
  });
  await page.waitForTimeout(100);
  const told = await page.locator(".told").textContent();
  assert.match(told, /of 100,000 requests would have been denied/);
  rounds.push({ wall_ms: wall, replay_ms: Number(/in (\d+) ms/.exec(told)[1]), longest_gap_ms: await page.evaluate(() => globalThis.longest),
    longest_work_ms: await page.evaluate(() => globalThis.work) });
  await page.close();
}
await browser.close();
await server.close();
const median = (name) => rounds.map((one) => one[name]).sort((a, b) => a - b)[Math.floor(rounds.length / 2)];
const worst = Math.max(...rounds.map((one) => one.longest_gap_ms));
console.log(JSON.stringify({ wall_ms: median("wall_ms"), replay_ms: median("replay_ms"), longest_gap_ms: median("longest_gap_ms"), longest_work_ms: median("longest_work_ms"), worst_gap_ms: worst }));
