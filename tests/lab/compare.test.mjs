// The section Compare against the same package in Node: each number of the table, for each preset.

import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";

import { PRESETS, TITLES } from "../../wasm/www/sections/compare/presets.js";
import { pkg, serve } from "./browser.mjs";
import { faultless, inspect, launch, open } from "./visit.mjs";

const { algorithms, Limit, Traffic } = await import(pathToFileURL(join(pkg, "node-compare.js")));

let server, browser;
before(async () => {
  [server, browser] = await Promise.all([serve(), launch()]);
});
after(async () => {
  await browser?.close();
  await server?.close();
});

/** The rows of the table: algorithm, then numbers. */
async function rows(page) {
  const cells = await page.locator('[aria-label="One row for each algorithm"] tbody tr').evaluateAll((list) =>
    list.map((row) => [...row.cells].map((cell) => cell.textContent)));
  return new Map(cells.map(([name, ...rest]) => [name, rest]));
}
const plain = (text) => Number(text.replace(/,/g, ""));

/** Waits until what was changed has been played. */
async function played(page) {
  await page.waitForTimeout(200);
  await page.waitForSelector('[data-section="compare"]:not([aria-busy])');
}

for (const { id, base, limit, unit, burst, key, traffic: own } of PRESETS) {
  test(`${id}: the table has the numbers of the package`, async () => {
    const page = await open(browser, server.url, `compare?preset=${id}`);
    const shown = await rows(page);
    const traffic = new Traffic({ preset: base ?? id, ...own });
    for (const algorithm of algorithms()) {
      const { totals, worst, memory } = traffic.play(new Limit(`${limit}/${unit} burst ${burst}`).withAlgorithm(algorithm), { key });
      const [admitted, denied, retries, gaveUp, delayed, , , most, times, bytes] = shown.get(TITLES[algorithm]);
      assert.deepEqual([admitted, denied, retries, gaveUp, delayed, most, bytes].map(plain),
        [totals.admitted, totals.denied, totals.retries, totals.gaveUp, totals.delayed, worst.admitted, memory], algorithm);
      assert.equal(times, (worst.admitted / limit).toFixed(2));
    }
    faultless(page);
    await page.close();
  });
}

test("around a boundary the fixed window admits twice the limit, and the log does not", async () => {
  const page = await open(browser, server.url, "compare?preset=window_boundary");
  const shown = await rows(page);
  assert.equal(shown.get("Fixed window")[8], "2.00");
  assert.equal(shown.get("Sliding log")[8], "1.00");
  assert.match(await page.locator(".sentences").textContent(), /The fixed window admitted 20 within one second.*2\.0× the limit/);
  await page.close();
});

test("a spike and an abuser: who gets through, with one limit for all and with one for each", async () => {
  const { base, limit, unit, burst, traffic: own } = PRESETS.find(({ id }) => id === "spike_abuser");
  const page = await open(browser, server.url, "compare");
  await page.getByRole("button", { name: "Cron spike and an abuser" }).click();
  await played(page);
  const traffic = new Traffic({ preset: base, ...own });
  const shown = () => page.locator('[aria-label="Attempts admitted, by client"] tbody tr').evaluateAll((list) => list.map((row) => [...row.cells].map((cell) => cell.textContent)));
  for (const algorithm of ["token_bucket", "fixed_window"]) {
    await page.getByLabel("Algorithm", { exact: true }).selectOption(algorithm);
    await played(page);
    const ways = ["all", "client"].map((key) => traffic.play(new Limit(`${limit}/${unit} burst ${burst}`).withAlgorithm(algorithm), { key }).byClient);
    const table = await shown();
    ways.forEach(({ admitted, denied }, way) => {
      const sum = (list) => list.slice(1).reduce((total, value) => total + value, 0);
      for (const [row, passed, asked] of [[0, admitted[0], admitted[0] + denied[0]], [1, sum(admitted), sum(admitted) + sum(denied)]]) {
        assert.ok(table[row][way + 1].startsWith(`${passed.toLocaleString("en")} of ${asked.toLocaleString("en")} (`), `${algorithm}: ${table[row]}`);
      }
    });
    assert.deepEqual(table.map(([name]) => name), ["Client 0, the abuser", "The other 59 clients together", "Of these, the best served", "Of these, the worst served"]);
  }
  const [, others] = await shown();
  assert.match(others[2], /\(100%\)/, "of the others all pass when each has a limit of its own");
  assert.doesNotMatch(others[1], /\(100%\)/);
  await page.waitForFunction(() => location.hash.includes("clients_of=fixed_window"));
  faultless(page);
  await page.close();
});

test("what cannot be played is said, and that what is shown was before", async () => {
  const page = await open(browser, server.url, "compare?preset=burst");
  await page.getByText("Change the traffic").click();
  await page.getByLabel("Steady part", { exact: true }).first().fill("1000");
  await page.getByLabel("Duration", { exact: true }).first().fill("120");
  await page.getByText("the page plays at most 100,000. Take a shorter time, or fewer. What is shown is still what was before.").waitFor();
  const every = page.getByLabel("Bursts every", { exact: true }).first();
  await every.fill("0.05");
  assert.match(await page.locator(".knob", { has: every }).locator(".error").textContent(), /^0\.05 is not 0 or a number from 0\.1 to 120\. 15 stays in force\.$/);
  faultless(page);
  await page.close();
});

test("a change is played, stands in the address, and comes back with it", async () => {
  const page = await open(browser, server.url, "compare?preset=window_boundary");
  await page.getByLabel("Limit", { exact: true }).first().fill("5");
  await played(page);
  const shown = await rows(page);
  assert.equal(shown.get("Sliding log")[7], "5");
  await page.waitForTimeout(400);
  assert.match(page.url(), /limit=5/);
  const again = await open(browser, server.url, page.url().split("#")[1]);
  assert.deepEqual(await rows(again), shown);
  faultless(page);
  await page.close();
  await again.close();
});

test("what is not legal is refused where it is typed, and the plots stay", async () => {
  const page = await open(browser, server.url, "compare?preset=steady");
  const before = await rows(page);
  const field = page.getByLabel("Limit", { exact: true }).first();
  await field.fill("0");
  assert.equal(await field.getAttribute("aria-invalid"), "true");
  await played(page);
  assert.deepEqual(await rows(page), before);
  faultless(page);
  await page.close();
});

test("all presets by click: a sentence tells each, and no two tell the same", async () => {
  const page = await open(browser, server.url, "compare");
  const told = new Set();
  for (const { id } of PRESETS) {
    await page.locator(`[data-preset="${id}"]`).click();
    await played(page);
    told.add(await page.locator(".sentences").textContent());
  }
  assert.equal(told.size, PRESETS.length);
  faultless(page);
  await page.close();
});

test("in both themes and sizes nothing stands out, and axe finds nothing", async () => {
  await inspect(browser, server.url, "compare?preset=window_boundary", async (page) => {
    await page.getByText("Change the traffic").click();
    await page.getByText("The numbers behind the plots").click();
  });
});
