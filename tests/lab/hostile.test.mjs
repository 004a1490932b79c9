// Addresses that somebody else wrote, and files that are not what their names say.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

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
  assert.equal((await page.textContent("main")).includes("<script>"), false);
  assert.deepEqual(page.faults, []);
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
