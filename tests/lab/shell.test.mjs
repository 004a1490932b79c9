// The page around the sections: addresses, themes, the keyboard, the policy, a sub-folder, and what is
// left when the network goes.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { POLICY, launch, open, root, serve, site } from "./browser.mjs";

const SECTIONS = ["bucket", "compare", "cluster", "rules", "live", "quiz"];

let server, browser;
before(async () => {
  [server, browser] = await Promise.all([serve(), launch()]);
});
after(async () => {
  await browser?.close();
  await server?.close();
});

test("each tab opens its section, tells where one is, and stays silent", async () => {
  const page = await browser.page();
  await open(page, server.url, "");
  assert.equal(await page.locator("h1").textContent(), "Token bucket");
  for (const id of SECTIONS.slice(1)) {
    await page.locator(`#tabs a[href^="#${id}"]`).click();
    await page.waitForSelector(`article[data-id="${id}"] .host:not([aria-busy])`);
    assert.equal(await page.locator("#tabs a[aria-current=page]").count(), 1);
    assert.match(page.url(), new RegExp(`#${id}`));
    assert.equal(await page.locator("h1").count(), 1);
    assert.equal(await page.evaluate(() => document.activeElement.tagName), "H1");
  }
  await page.goBack();
  await page.waitForSelector('article[data-id="live"] .host:not([aria-busy])');
  assert.deepEqual(page.faults, []);
  await page.close();
});

test("an address that names nothing opens the first section", async () => {
  const page = await browser.page();
  await page.goto(`${server.url}#nowhere?x=%E0%A4%A`);
  await page.waitForSelector('article[data-id="bucket"] .host:not([aria-busy])');
  assert.deepEqual(page.faults, []);
  await page.close();
});

test("where the tabs do not fit, a mark shows on which side there are more", async () => {
  const page = await browser.page({ width: 320 });
  await open(page, server.url, "#bucket");
  const mark = (to) => page.locator(`.more[data-to="${to}"]`);
  await mark(1).waitFor({ state: "visible" });
  assert.equal(await mark(-1).isVisible(), false);
  const quiz = page.locator('#tabs a[href^="#quiz"]');
  const isInSight = () => quiz.evaluate((link) => {
    const box = link.getBoundingClientRect();
    return document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2) === link;
  });
  assert.equal(await isInSight(), false);
  while (await mark(1).isVisible()) {
    await mark(1).click();
    await page.waitForTimeout(500);
  }
  assert.equal(await isInSight(), true);
  assert.equal(await mark(-1).isVisible(), true);
  // By the keyboard: the link that has the focus is not beneath a mark.
  for (let i = 0; i < 3; i++) {
    await page.locator("#tabs a").nth(i).focus();
    await page.waitForTimeout(200);
    assert.equal(await page.evaluate(() => {
      const box = document.activeElement.getBoundingClientRect();
      return document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2) === document.activeElement;
    }), true);
  }
  await page.setViewportSize({ width: 1440, height: 900 });
  await mark(-1).waitFor({ state: "hidden" });
  await mark(1).waitFor({ state: "hidden" }); // the other one may have been hidden before: the first tab has the focus
  assert.deepEqual(page.faults, []);
  await page.close();
});

test("the theme is the system's until another is chosen, and the choice is kept", async () => {
  const page = await browser.page({ theme: "dark" });
  await open(page, server.url, "#quiz");
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  assert.equal(await theme(), "dark");
  await page.locator("#theme").click();
  assert.equal(await theme(), "light");
  await page.reload();
  assert.equal(await theme(), "light");
  await page.evaluate(() => localStorage.clear());
  assert.deepEqual(page.faults, []);
  await page.close();
});

test("the first Tab reaches the link past the tabs, and it leads into the section", async () => {
  const page = await browser.page();
  await open(page, server.url, "#quiz");
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "content");
  assert.match(page.url(), /#quiz/);
  await page.close();
});

test("one policy: in the page, in the servers of the demos, and in these tests", () => {
  const meta = /http-equiv="Content-Security-Policy" content="([^"]*)"/.exec(readFileSync(join(site, "index.html"), "utf8"))[1];
  const header = /Content-Security-Policy "([^"]*)"/.exec(readFileSync(join(root, "wasm/demo/lab.conf.in"), "utf8"))[1];
  assert.equal(header, POLICY);
  assert.equal(header, `${meta}; frame-ancestors 'none'`); // a <meta> cannot say the last
});

test("the policy holds: an inline script does not run, and that would be noticed", async () => {
  const page = await browser.page();
  await open(page, server.url, "#quiz");
  await page.evaluate(() => {
    const script = document.createElement("script");
    script.textContent = "globalThis.ran = true";
    document.body.append(script);
  });
  assert.equal(await page.evaluate(() => globalThis.ran), undefined);
  assert.notDeepEqual(page.faults, []);
  await page.close();
});

test("who goes on is not called back by a state that was still to be written", async () => {
  const page = await browser.page();
  await open(page, server.url, "#bucket");
  await page.locator('[data-id="bucket"] input[type="number"]').first().fill("7");
  // The address is written between the new address and the word of it.
  await page.evaluate(() => {
    location.hash = "#quiz";
    dispatchEvent(new Event("pagehide"));
  });
  await page.waitForSelector('article[data-id="quiz"] .host:not([aria-busy])');
  assert.deepEqual(page.faults, []);
  await page.close();
});

test("in a sub-folder every section opens", async () => {
  const below = await serve(site, { under: "/some/where/" });
  const page = await browser.page();
  for (const id of SECTIONS) {
    await open(page, below.url, `#${id}`);
  }
  assert.deepEqual(page.faults, []);
  await page.close();
  await below.close();
});

test("after one visit every section opens without a network", async () => {
  const once = await serve();
  const page = await browser.page();
  await open(page, once.url, "#quiz");
  await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
  await once.close(); // nobody listens there from now on
  await page.reload();
  for (const id of SECTIONS) {
    await open(page, once.url, `#${id}`);
  }
  await page.locator('[data-id="quiz"] h1').waitFor();
  await open(page, once.url, "#bucket?capacity=5&refill=2&do=b10&clock=paused");
  assert.equal(await page.locator('[data-figure="allowed"]').textContent(), "5");
  // Whether a gateway serves the page is asked of the network each time, and Chromium says when it is away.
  assert.deepEqual(page.faults.filter((fault) => !/Failed to load resource: net::ERR_/.test(fault)), []);
  await page.close();
});
