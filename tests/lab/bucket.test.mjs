// The section Token bucket, as a person uses it. The numbers that are waited for were worked out by
// hand; where the real clock runs, what must hold at any speed is asked.

import assert from "node:assert/strict";
import { after, before, beforeEach, afterEach, test } from "node:test";

import { open as openSection, serve } from "./browser.mjs";
import { faultless, inspect, launch, open } from "./visit.mjs";

let server, browser, page;
before(async () => {
  [server, browser] = await Promise.all([serve(), launch()]);
});
after(async () => {
  await browser?.close();
  await server?.close();
});
beforeEach(async () => {
  page = await open(browser, server.url, "bucket?clock=paused");
});
afterEach(async () => {
  faultless(page);
  await page.close();
});

const press = (name) => page.getByRole("button", { name, exact: true }).click();
const figure = (name) => page.locator(`[data-figure="${name}"]`);
/** Waits until the figures are these: they change with the next frame. */
async function shows(figures) {
  const names = Object.keys(figures);
  let seen;
  for (let left = 100; left > 0; left--) {
    seen = Object.fromEntries(await Promise.all(names.map(async (name) => [name, await figure(name).textContent()])));
    if (names.every((name) => seen[name] === figures[name])) {
      return;
    }
    await page.waitForTimeout(30);
  }
  assert.deepEqual(seen, figures);
}
const set = (label, value) => page.getByRole("spinbutton", { name: label, exact: true }).fill(String(value));
const answer = () => page.getByLabel("The answer", { exact: true });

test("five of ten at once, and a second later exactly two of ten", async () => {
  await press("Send a burst of");
  await shows({ allowed: "5", rejected: "5", tokens: "0.00", next: "0.500 s", full: "2.500 s" });
  await press("+1 s");
  await shows({ tokens: "2.00", clock: "1.000 s" });
  await press("Send a burst of");
  await shows({ allowed: "7", rejected: "13", tokens: "0.00" });
  const statuses = await page.locator(".log strong").allTextContents();
  assert.deepEqual(statuses, [...Array(8).fill("429"), "200", "200", ...Array(5).fill("429"), ...Array(5).fill("200")]);
  // At most one text a second is told to a screen reader, and at last the latest.
  await page.waitForFunction(() => /2 allowed, 8 rejected/.test(document.getElementById("announcer").textContent));
});

test("the same as a scenario that is one press away", async () => {
  await press("The burst of ten");
  await shows({ allowed: "7", rejected: "13", clock: "1.000 s" });
  await page.getByText("ten at once, a second, ten again. Drag the time back to see it happen.").waitFor();
});

test("an answer has the fields of a gateway, and the arithmetic behind it", async () => {
  await press("Send a burst of");
  await press("+0.1 s");
  await press("Send one");
  await shows({ rejected: "6", tokens: "0.20" });
  const lines = (await answer().textContent()).split("\n");
  assert.deepEqual(lines.slice(0, 5), ["HTTP/1.1 429 Too Many Requests", "X-RateLimit-Limit: 5", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 3", "Retry-After: 1"]);
  assert.equal(JSON.parse(lines[7]).status, 429);
  const reasons = await page.locator(".reasons").innerText();
  for (const part of [/full again at 2\.500 s/, /0\.100 s/, /0\.2: elapsed × 2\/s/, /0\.2 tokens: a denial changes nothing/]) {
    assert.match(reasons, part);
  }
  // The first of them was allowed; a press shows its answer.
  await page.locator(".log button").last().click();
  await page.getByRole("heading", { name: "Request 1, at 0.000 s" }).waitFor();
  assert.match(await answer().textContent(), /^HTTP\/1\.1 200 OK\nX-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4\nX-RateLimit-Reset: 1$/);
  await page.getByLabel("Header fields").selectOption("off");
  await page.waitForFunction(() => document.querySelector(".why pre").textContent === "HTTP/1.1 200 OK");
});

test("a third of a second is rounded up, and the refill is exact", async () => {
  await set("Capacity", 3);
  await set("Refill", 3);
  await set("Requests of a burst", 4);
  await press("Send a burst of");
  await shows({ allowed: "3", rejected: "1", next: "0.334 s", full: "1.000 s" });
  for (let i = 0; i < 3; i++) {
    await press("+0.1 s");
  }
  await shows({ tokens: "0.90" });
  await press("Send one");
  await press("+0.1 s");
  await shows({ tokens: "1.20", next: "now", rejected: "2" });
  await press("Send one");
  await shows({ allowed: "4", tokens: "0.20" });
});

test("the past can be visited, and begun anew from there", async () => {
  await press("The burst of ten");
  const scrubber = page.getByRole("slider", { name: "Time" });
  await scrubber.fill("500");
  await shows({ clock: "0.500 s", tokens: "1.00", allowed: "5", rejected: "5" });
  await press("Back to the end");
  await shows({ clock: "1.000 s", allowed: "7", rejected: "13" });
  await scrubber.fill("500");
  await press("Send one");
  await shows({ clock: "0.500 s", tokens: "0.00", allowed: "6", rejected: "5" });
  await scrubber.fill("3000");
  await shows({ clock: "3.000 s", tokens: "5.00", full: "now" });
});

test("what was spent stays spent when the limit changes", async () => {
  await set("Requests of a burst", 4);
  await press("Send a burst of");
  await shows({ tokens: "1.00" });
  await set("Capacity", 10);
  await shows({ tokens: "6.00" });
});

test("what is not legal stays marked beside what would be legal, and the last good value is in force", async () => {
  const capacity = page.getByRole("spinbutton", { name: "Capacity", exact: true });
  const told = page.locator(".knob", { has: capacity }).locator(".error");
  for (const [typed, why] of [["0", "0 is not a whole number from 1 to 1,000. 5 stays in force."], ["2.5", "2.5 is not a whole number"], ["", "Here belongs a whole number from 1 to 1,000"]]) {
    await capacity.fill(typed);
    await capacity.blur();
    assert.equal(await capacity.inputValue(), typed, "it is not taken back behind one's back");
    assert.equal(await capacity.getAttribute("aria-invalid"), "true");
    assert.ok((await told.textContent()).startsWith(why), await told.textContent());
    await page.waitForFunction((said) => document.getElementById("announcer").textContent.startsWith(said), why);
  }
  assert.equal(await capacity.getAttribute("aria-describedby").then((ids) => ids.split(" ").includes("")), false);
  await set("Requests of a burst", 1001);
  await page.getByText("1001 is not a whole number from 1 to 1,000. 10 stays in force.").first().waitFor();
  await press("Send a burst of");
  await shows({ allowed: "5", rejected: "5" });
  await capacity.fill("7");
  assert.equal(await told.textContent(), "");
  assert.equal(await capacity.getAttribute("aria-invalid"), "false");
});

test("beyond twenty thousand requests it goes on, and the past can be visited", async () => {
  await set("Requests of a burst", 1000);
  await page.evaluate(() => {
    const button = (name) => [...document.querySelectorAll("button")].find(({ textContent }) => textContent === name);
    for (let i = 0; i < 22; i++) {
      button("Send a burst of").click();
      button("+1 s").click();
    }
  });
  await shows({ allowed: "47", rejected: "21,953", clock: "22.000 s" }); // 5, and 21 times 2
  await page.getByRole("slider", { name: "Time" }).fill("21500");
  await shows({ allowed: "47", rejected: "21,953", tokens: "1.00" });
  await page.getByRole("slider", { name: "Time" }).fill("2500");
  await shows({ allowed: "9", rejected: "2,991", tokens: "1.00" });
  assert.match(await page.locator(".log button").first().textContent(), /^2\.000 s429/);
  await page.getByRole("heading", { name: "Request 3000, at 2.000 s" }).waitFor();
  await page.getByRole("button", { name: "Share link" }).click();
  await page.getByText("It holds the settings; what was done is too long for it.").first().waitFor();
});

test("where no more is kept, the buttons say so", async () => {
  await set("Requests of a burst", 1000);
  await page.evaluate(() => {
    const button = [...document.querySelectorAll("button")].find(({ textContent }) => textContent === "Send a burst of");
    for (let i = 0; i < 1000; i++) {
      button.click();
    }
  });
  await page.locator(".error", { hasText: "1,000,000 requests are as many as are kept" }).waitFor();
  for (const name of ["Send one", "Send a burst of", "Hold to stream"]) {
    assert.ok(await page.getByRole("button", { name, exact: true }).isDisabled(), name);
  }
  await shows({ allowed: "5", rejected: "999,995" });
  await press("Reset");
  await shows({ allowed: "0", rejected: "0" });
  assert.ok(await page.getByRole("button", { name: "Send one", exact: true }).isEnabled());
});

test("the space bar streams while it is held, and no more is admitted than burst and refill", async () => {
  await set("Streams at", 50);
  await page.getByRole("button", { name: "Hold to stream" }).focus();
  await page.keyboard.down("Space");
  await page.waitForFunction(() => Number(document.querySelector('[data-figure="rejected"]').textContent) >= 30);
  await page.keyboard.up("Space");
  await press("Paused");
  await page.waitForTimeout(100);
  const [allowed, rejected, seconds] = await Promise.all(["allowed", "rejected", "clock"].map(async (name) => Number.parseFloat(await figure(name).textContent())));
  assert.ok(allowed <= 5 + 2 * seconds, `${allowed} in ${seconds} s`);
  assert.ok(allowed + rejected <= 1 + 50 * seconds, `${allowed + rejected} sent in ${seconds} s`);
  assert.ok(allowed >= 5);
  await page.waitForTimeout(200);
  assert.equal(Number(await figure("rejected").textContent()), rejected, "it stopped");
});

test("the address holds what was done", async () => {
  await set("Capacity", 4);
  await press("Send a burst of");
  await press("+0.1 s");
  await press("Send one");
  await shows({ allowed: "4", rejected: "7", tokens: "0.20" });
  await page.waitForFunction(() => location.hash.includes("do=b10_w0.1_b1"));
  const shared = page.url();
  await page.close();
  page = await browser.page();
  await openSection(page, server.url, shared.slice(shared.indexOf("#")));
  await shows({ allowed: "4", rejected: "7", tokens: "0.20", clock: "0.100 s" });
});

test("in both themes and sizes", () =>
  inspect(browser, server.url, "bucket?do=b10_w1_b10_w0.35&clock=paused", async (one) => {
    await one.waitForFunction(() => document.querySelectorAll(".log li").length === 20 && document.querySelector(".uplot"));
  }));
