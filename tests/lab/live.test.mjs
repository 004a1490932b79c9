// The section Live against real gateways: NGINX with the module and Envoy with the filter, started as
// `make run` and `make run-envoy` start them. What the model predicts is what they answer.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { serve, violations } from "./browser.mjs";
import { startEnvoy, startNginx } from "./gateways.mjs";
import { faultless, inspect, launch, open } from "./visit.mjs";

test("what_overlaps_is_put_in_order_together", async () => {
  const { inOrder, settled, together } = await import("../../wasm/www/sections/live/gateway.js");
  const one = (sent, answered, left) => ({ answer: { sent, answered, status: 200, headers: [["x-ratelimit-remaining", `${left}`]] } });
  const [early, late, long] = [one(1, 2, 9), one(20, 30, 6), one(5, 40, 8)];
  const between = one(21, 29, 7);
  assert.deepEqual(settled([early, late, long, between], 35), [early], "the long one is not over for all");
  const ready = settled([early, late, long, between], 41);
  assert.equal(ready.length, 4);
  const answers = inOrder(ready.map(({ answer }) => answer));
  assert.deepEqual(answers.map(({ sent }) => sent), [1, 5, 21, 20]);
  assert.deepEqual(answers.map((answer) => together(answer, answers)), [0, 2, 2, 2]);
});

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser?.close());

const told = (page) => page.locator(".told").textContent();
const answered = (page, count) => page.waitForFunction((many) => {
  const said = document.querySelector(".told")?.textContent ?? "";
  return Number.parseInt(said, 10) >= many;
}, count);
/** Where a token was just coming, or requests were under way together, who got it is chance: most are exact, and no other is off. */
async function isAsPredicted(page) {
  const said = await told(page);
  assert.doesNotMatch(said, /others\. Did/);
  const [, all, same = all] = /^(\d+) answers, (?:all|(\d+)) as predicted/.exec(said);
  assert.ok(Number(same) >= Number(all) / 2, said);
}
async function slide(page, label, value) {
  const slider = page.getByLabel(label, { exact: true });
  await slider.fill(String(value));
}

for (const [name, start] of [["NGINX", startNginx], ["Envoy", startEnvoy]]) {
  describe(name, () => {
    let gateway;
    before(async () => {
      gateway = await start();
    });
    after(() => gateway?.stop());

    test("is_found_by_the_page", async () => {
      const page = await open(browser, gateway.url, "live");
      assert.match(await page.locator("[data-section=live]").textContent(), new RegExp(`served by ${name}`));
      faultless(page);
      await page.close();
    });

    test("answers_a_burst_as_predicted", async () => {
      const page = await open(browser, gateway.url, "live");
      await page.getByRole("button", { name: "Send the burst" }).click();
      await answered(page, 10);
      assert.equal(await told(page), "10 answers, all as predicted.");
      assert.equal(await page.locator("tbody .yes").count(), 2, "two at once");
      assert.match(await page.locator(".raw").first().textContent(), /^HTTP\/1\.1 429[^]*Retry-After: 1/i);
      faultless(page);
      await page.close();
    });

    test("answers_a_stream_as_predicted", async () => {
      const page = await open(browser, gateway.url, "live?place=api%2Fstream");
      await slide(page, "Stream", 40);
      await slide(page, "Burst", 60);
      await page.getByRole("button", { name: "Send the burst" }).click();
      await answered(page, 60);
      await page.getByRole("button", { name: "Start the stream" }).click();
      await answered(page, 140);
      await page.getByRole("button", { name: "Stop the stream" }).click();
      await isAsPredicted(page);
    });

    test("answers_401_without_the_required_tenant_as_predicted", async () => {
      const page = await open(browser, gateway.url, "live?place=api%2Forders");
      await page.getByLabel("X-Tenant").fill("");
      await page.getByRole("button", { name: "Send one" }).click();
      await answered(page, 1);
      assert.equal(await told(page), "1 answer, as predicted.");
      assert.match(await page.locator(".raw").first().textContent(), /^HTTP\/1\.1 401/);
      faultless(page);
      await page.close();
    });

    test("a_key_that_no_header_field_can_carry_is_said_and_not_sent", async () => {
      const page = await open(browser, gateway.url, "live");
      const key = page.getByLabel("X-Api-Key");
      await page.waitForFunction(() => document.querySelector("fieldset input[type=text]").value.startsWith("lab-"));
      const before = await key.inputValue();
      await key.fill("schlüssel");
      await key.blur();
      await page.getByText(`“${before}” is still what is sent.`).waitFor();
      await page.getByRole("button", { name: "Send one" }).click();
      await answered(page, 1);
      assert.equal(await told(page), "1 answer, as predicted.");
      faultless(page);
      await page.close();
    });

    test("answers_two_limits_as_predicted", async () => {
      const page = await open(browser, gateway.url, "live?place=api%2Forders");
      await slide(page, "Burst", 15);
      await page.getByRole("button", { name: "Send the burst" }).click();
      await answered(page, 15);
      await isAsPredicted(page);
      faultless(page);
      await page.close();
    });

    if (name === "NGINX") {
      test("looks_and_reads_well_in_both_themes_and_sizes", async () => {
        await inspect(browser, gateway.url, "live?place=api%2Fstream", async (page) => {
          await slide(page, "Burst", 60);
          await page.getByRole("button", { name: "Send the burst" }).click();
          await answered(page, 60);
          await page.waitForTimeout(1000);
          await page.getByRole("button", { name: "Send the burst" }).click();
          await answered(page, 120);
        });
      });
    }
  });
}

test("a_plain_server_is_told_how_to_be_more", async () => {
  const server = await serve();
  const page = await open(browser, server.url, "live");
  assert.match(await page.locator(".how-to").textContent(), /make run .*make run-envoy/s);
  assert.deepEqual(await violations(page), []);
  faultless(page);
  await page.close();
  await server.close();
});
