// Addresses that somebody else wrote, and files that are not what their names say.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { QUESTIONS } from "../../wasm/www/sections/quiz/questions.js";
import { launch, open, serve } from "./browser.mjs";

let server, browser, page;

before(async () => {
  server = await serve();
  browser = await launch();
});

after(async () => {
  await browser?.close();
  await server?.close();
});

test("no address freezes a section or keeps it from opening", async () => {
  page = await browser.page();
  for (const hash of [
    "#cluster?instances=1e9", "#cluster?instances=-1", "#cluster?keys=NaN", "#cluster?limit=0&onStoreError=foo",
    "#bucket?capacity=-1", "#bucket?capacity=1e308&do=b999999999", "#compare?rate=1e300&preset=none",
    "#rules?rules=%00", "#quiz?%3Cscript%3E",
  ]) {
    await open(page, server.url, hash);
    assert.equal(await page.locator("text=This section did not open").count(), 0, hash);
  }
  assert.equal(await page.locator("main script").count(), 0, "it is shown as text");
  assert.deepEqual(page.faults, []);
  await page.close();
});

test("what of an address is not understood is said once, and taken out of it", async () => {
  page = await browser.page();
  const cases = {
    "#bucket?capacity=-1&refill=3&clock=paused": ["capacity=-1” is not a whole number from 1 to 1,000", "#bucket?refill=3&clock=paused"],
    "#bucket?do=b3_w1_b9999_b2&clock=paused": ["do=b3_w1_b9999_b2” has as step 3 “b9999”", "#bucket?capacity=5&refill=2&unit=s&do=b3_w1&clock=paused"],
    "#compare?preset=none&rate=1e300&limit=7": ["preset=none” is none of steady, burst,", "#compare?preset=window_boundary&limit=7"],
    "#compare?every=0.05": ["every=0.05” is not 0 or a number from 0.1 to 120", "#compare?preset=window_boundary"],
    "#cluster?instances=1e9&lease=7": ["instances=1e9” is not a whole number from 1 to 100", "#cluster?lease=7"],
    "#rules?example=dry&colour=red": ["“colour” means nothing here", "#rules?example=dry"],
    "#quiz?a=1--x": ["a=1--x” is not one answer", "#quiz?a=1---------"],
    "#live?place=api%2Fnowhere": ["place=api/nowhere” is none of api/,", "#live"],
    "#nowhere?x=%E0%A4%A": ["names a section that is not here, “nowhere”: this is Token bucket", "#bucket"],
  };
  for (const [hash, [told, corrected]] of Object.entries(cases)) {
    await page.goto("about:blank");
    await page.goto(server.url + hash);
    await page.locator(".misread", { hasText: told }).waitFor();
    await page.waitForFunction(() => /^(Of the address|The address names)/.test(document.getElementById("announcer").textContent));
    await page.waitForFunction((right) => location.hash === right, corrected);
    await page.reload();
    await page.waitForSelector("article .host:not([aria-busy])");
    assert.equal(await page.locator(".misread").count(), 0, hash);
  }
  await page.close();
});

test("every link of the lab is understood", async () => {
  page = await browser.page();
  for (const { see } of QUESTIONS) {
    await open(page, server.url, `#${see[1]}`);
    assert.equal(await page.locator(".misread").count(), 0, see[1]);
    await page.waitForTimeout(400); // the address follows at most four times a second
    assert.equal(decodeURIComponent(new URL(page.url()).hash).split("?")[0], `#${see[1].split("?")[0]}`);
    assert.equal(await page.evaluate(() => location.hash.includes("do=")), see[1].includes("do="), "what is shown stays in the address");
  }
  await page.close();
});

test("a file that is no rules file is refused in words, and the rules stay", async () => {
  page = await browser.page();
  await open(page, server.url, "#rules");
  const opened = 'input[accept=".json,application/json"]';
  const verdict = () => page.textContent(".verdict");
  const [right, rules] = [await verdict(), await page.textContent(".editor")];
  assert.match(right, /^The rules are right/);
  const file = (name, buffer) => page.setInputFiles(opened, { name, mimeType: "application/json", buffer });
  await file("binary.json", Buffer.from([0, 1, 2, 255]));
  await page.waitForSelector('.verdict:has-text("binary.json is not a text file")');
  await file("large.json", Buffer.alloc(2_000_001, "x"));
  await page.waitForSelector('.verdict:has-text("larger than 2 MB")');
  assert.equal(await page.textContent(".editor"), rules);
  const policies = Array.from({ length: 300 }, (_, place) => `{"name":"p${place}","limits":[{"rate":"1/s"}]}`);
  await file("long.json", Buffer.from(`{"policies":[${policies.join(",")}]}`));
  await page.waitForSelector('.verdict:has-text("too long for the address")');
  await page.waitForTimeout(500); // the address follows at most four times a second
  assert.ok(page.url().length < 200, page.url().length);
  assert.deepEqual(page.faults, []);
  await page.close();
});

test("the figures of one log do not stand below the error of another", async () => {
  page = await browser.page();
  await open(page, server.url, "#rules");
  await page.click("text=Replay what is pasted");
  assert.match(await page.textContent("p.told"), /paste some lines/);
  await page.fill("textarea[placeholder^='192.0.2.1']", '192.0.2.1 - - [01/Nov/2026:02:10:00 +0000] "GET / HTTP/1.1" 200 5 "-" "x"\n');
  await page.click("text=Replay what is pasted");
  await page.waitForSelector(".results:not([hidden])");
  await page.setInputFiles('input[accept*=".gz"]', { name: "cut.log.gz", mimeType: "application/gzip", buffer: Buffer.from([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1]) });
  await page.waitForSelector('p.told:has-text("cut.log.gz:")');
  assert.equal(await page.isVisible(".results"), false);
  assert.deepEqual(page.faults, []);
  await page.close();
});
