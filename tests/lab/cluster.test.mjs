// The section Cluster, as a person uses it: what the page tells is checked against the laws.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { startNginx } from "./gateways.mjs";
import { faultless, inspect, launch, open } from "./visit.mjs";

let gateway, browser;
before(async () => {
  [gateway, browser] = await Promise.all([startNginx(), launch()]);
});
after(async () => {
  await browser?.close();
  await gateway?.stop();
});

const number = (text) => Number(text.replace(/[^\d.]/g, ""));
const figure = async (page, label) => number(await page.locator(".figure", { hasText: label }).locator("dd.number").textContent());
/** Lets ten seconds of virtual time pass; the clock of the page stands otherwise. */
async function pass(page) {
  const from = number(await page.locator(".clock .number").textContent());
  await page.getByRole("button", { name: "+10 s" }).click();
  await page.waitForFunction((at) => Number(document.querySelector(".clock .number").textContent.replace(" s", "")) >= at + 10, from);
}
const answeredBy = async (page, who) =>
  number(await page.locator("tr", { has: page.getByRole("rowheader", { name: who }) }).locator("td").first().textContent());

test("healthy_instances_together_keep_the_limit_exactly_and_spare_redis", async () => {
  const page = await open(browser, gateway.url, "cluster?limit=100&burst=100&offered=1000&instances=20");
  await pass(page);
  const [admitted, allowed] = [await figure(page, "Admitted"), await figure(page, "The law allows")];
  assert.equal(allowed, 100 + 100 * 10, "burst + limit × time");
  assert.ok(admitted <= allowed, `${admitted} of ${allowed}`);
  assert.ok(admitted >= allowed - 2, `${admitted} of ${allowed}: all of the limit is given out`);
  assert.ok(await figure(page, "Calls saved") > 0);
  assert.match(await page.locator(".told").textContent(), /Redis is well/);
  faultless(page);
  await page.close();
});

test("leases_save_nine_of_ten_calls_within_the_limit", async () => {
  const page = await open(browser, gateway.url, "cluster?preset=healthy");
  await pass(page);
  const offered = await page.locator(".figure", { hasText: "Admitted" }).locator(".note").textContent();
  assert.equal(await figure(page, "Admitted"), number(offered), "all that is offered is within the limit");
  const calls = await figure(page, "Calls to Redis");
  assert.ok(calls > 0 && calls < 900, `${calls} calls for 9,000 requests`);
  assert.ok(await answeredBy(page, /A lease/) > 8000);
  faultless(page);
  await page.close();
});

test("without_leases_every_request_asks", async () => {
  const page = await open(browser, gateway.url, "cluster?lease=0");
  await pass(page);
  const asked = await answeredBy(page, /Redis: it was asked/);
  assert.ok(asked >= 8990, `${asked} of 9,000`);
  assert.equal(await answeredBy(page, /A lease/), 0);
  faultless(page);
  await page.close();
});

test("redis_dies_with_deny_and_nothing_is_admitted_after_the_breakers_open", async () => {
  const page = await open(browser, gateway.url, "cluster?onStoreError=deny&offered=1500");
  await pass(page);
  await page.getByLabel("Redis", { exact: true }).selectOption("refused");
  await pass(page); // leases in hand are spent, breakers open
  assert.match(await page.locator(".told").textContent(), /All 20 breakers are open/);
  assert.equal(await page.locator(".breakers li[data-state=closed]").count(), 0);
  const admitted = await figure(page, "Admitted");
  await pass(page);
  assert.equal(await figure(page, "Admitted"), admitted);
  faultless(page);
  await page.close();
});

test("redis_comes_back_and_breakers_close", async () => {
  const page = await open(browser, gateway.url, "cluster?offered=1500");
  await page.getByLabel("Redis", { exact: true }).selectOption("refused");
  await pass(page);
  assert.ok(await page.locator(".breakers li[data-state=open]").count() > 0);
  await page.getByLabel("Redis", { exact: true }).selectOption("");
  await pass(page);
  assert.equal(await page.locator(".breakers li[data-state=closed]").count(), 20);
  assert.match(await page.locator(".told").textContent(), /Redis is well/);
  faultless(page);
  await page.close();
});

test("scenarios_run_in_their_own_time_and_say_what_happens", async () => {
  const page = await open(browser, gateway.url, "cluster");
  const expected = { "Slow Redis": /Redis takes 12 ms/, "Redis dies": /does not answer/, "Lossy network": /decided without Redis|Redis is well/, "No leases": /Without leases/, "Over the limit": /denied from memory/ };
  await page.getByLabel("Pace").selectOption("20");
  for (const [name, told] of Object.entries(expected)) {
    await page.getByRole("button", { name, exact: true }).click();
    assert.equal(await page.getByRole("button", { name, exact: true }).getAttribute("aria-pressed"), "true");
    await page.waitForFunction(() => Number.parseFloat(document.querySelector(".clock .number").textContent) > 8);
    assert.match(await page.locator(".told").textContent(), told, name);
  }
  await page.getByRole("button", { name: "Pause" }).click();
  faultless(page);
  await page.close();
});

test("looks_and_reads_well_in_both_themes_and_sizes", async () => {
  await inspect(browser, gateway.url, "cluster?preset=dies", async (page) => {
    await page.getByRole("button", { name: "Redis dies" }).click();
    await pass(page);
    await page.getByRole("button", { name: "Pause" }).click();
  });
});
