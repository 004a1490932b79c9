// The section Rules, as a person uses it: errors at their places, a log's numbers as the command line
// tells them, and the tester's answers as NGINX gives them.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { gzipSync } from "node:zlib";

import { sampleLog } from "../../wasm/www/sections/rules/sample-log.js";
import { EXAMPLES } from "../../wasm/www/sections/rules/examples.js";
import { ROOT, startNginx } from "./gateways.mjs";
import { violations } from "./browser.mjs";
import { faultless, inspect, launch, open } from "./visit.mjs";

let gateway, browser, folder;
before(async () => {
  folder = mkdtempSync(join(tmpdir(), "tollgate-lab-"));
  [gateway, browser] = await Promise.all([startNginx(), launch()]);
});
after(async () => {
  await browser?.close();
  await gateway?.stop();
  rmSync(folder, { recursive: true, force: true });
});

const tollgate = process.env.TOLLGATE ?? `${ROOT}target/release/tollgate`;
const editor = (page) => page.getByRole("textbox", { name: /Rules file/ });
async function write(page, text) {
  await editor(page).click();
  await page.keyboard.press("Control+a");
  await page.keyboard.insertText(text);
}
async function downloaded(page, name) {
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name }).click()]);
  return readFileSync(await file.path(), "utf8");
}
/** The same log and rules through the command. */
function commandSays(log, rules, format, top = 50, buckets = 72) {
  const [logFile, rulesFile] = [join(folder, "log"), join(folder, "rules.json")];
  writeFileSync(logFile, log);
  writeFileSync(rulesFile, rules);
  const options = ["--format", format, "--top", String(top), "--buckets", String(buckets)];
  return execFileSync(tollgate, ["replay", logFile, "--rules", rulesFile, ...options], { encoding: "utf8", maxBuffer: 1 << 26, stdio: ["ignore", "pipe", "ignore"] });
}
const replayed = (page) => page.waitForSelector(".results:not([hidden])", { timeout: 30_000 });

test("an_error_is_told_at_its_line_and_column", async () => {
  const page = await open(browser, gateway.url, "rules");
  await write(page, '{ "policies": [\n  { "name": "net", "limits": [ { "rate": "5/x" } ] } ],\n  "color": 1 }');
  const places = page.locator(".errors button");
  await assert.doesNotReject(page.waitForFunction(() => document.querySelectorAll(".errors li").length === 2));
  assert.deepEqual(await places.allTextContents(), ["Line 2, column 42", "Line 3, column 12"]);
  assert.match(await page.locator(".errors").textContent(), /expected a unit of time/);
  await places.nth(1).click();
  await page.keyboard.type("!");
  assert.match(await editor(page).textContent(), /"color": !1/, "the cursor is at the error");
  assert.ok(await page.getByRole("button", { name: "Send", exact: true }).isDisabled());
  faultless(page);
  await page.close();
});

test("tab_leaves_the_editor", async () => {
  const page = await open(browser, gateway.url, "rules");
  await editor(page).click();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.shadowRoot), null);
  assert.notEqual(await page.evaluate(() => document.activeElement.tagName), "BODY");
  faultless(page);
  await page.close();
});

test("every_example_is_right", async () => {
  const page = await open(browser, gateway.url, "rules");
  for (const { id } of EXAMPLES) {
    await page.getByLabel("Start from").selectOption(id);
    assert.match(await page.locator(".verdict").textContent(), /The rules are right/, id);
  }
  faultless(page);
  await page.close();
});

test("last_night_is_told_as_the_command_tells_it", async () => {
  const page = await open(browser, gateway.url, "rules?example=night");
  await page.getByRole("button", { name: "Try last night" }).click();
  await replayed(page);
  const expected = JSON.parse(commandSays(sampleLog(), EXAMPLES[0].text, "json"));
  assert.deepEqual(JSON.parse(await downloaded(page, "Download JSON")), expected);
  assert.equal(await downloaded(page, "Download CSV"), commandSays(sampleLog(), EXAMPLES[0].text, "csv"));
  assert.equal(await downloaded(page, "Download the rules"), EXAMPLES[0].text);
  const shown = await page.locator(".figure", { hasText: "Denied" }).locator("dd.number").textContent();
  assert.equal(shown, expected.denied.toLocaleString("en"));
  assert.match(await page.locator(".results .table-scroll", { hasText: "By key" }).textContent(), /ip=203\.0\.113\.66/);
  // What is told of the night is what the numbers say.
  await page.getByText("What was behind it").click();
  const story = await page.locator("details", { hasText: "What was behind it" }).textContent();
  const of = (address) => expected.keys.find(({ key }) => key[0].value === address);
  const [harvester, guesser] = ["203.0.113.66", "198.51.100.23"].map(of);
  const told = (value) => value.toLocaleString("en");
  assert.ok(story.includes(`${told(harvester.admitted)} of ${told(harvester.admitted + harvester.denied)}`));
  assert.ok(story.includes(`of ${told(guesser.admitted + guesser.denied)} attempts, ${told(guesser.admitted)}`));
  assert.deepEqual(expected.keys.filter(({ denied }) => denied > 0).map(({ key }) => key[0].value).sort(),
    [...Array.from({ length: 12 }, (_, i) => `10.0.0.${10 + i}`), "198.51.100.23", "203.0.113.66"]);
  faultless(page);
  await page.close();
});

test("logs_in_other_formats_gzipped_and_pasted_are_told_as_the_command_tells_them", async () => {
  const page = await open(browser, gateway.url, "rules?example=night");
  const csv = `time,method,path,peer\n${Array.from({ length: 500 }, (_, i) => `${1_793_491_200 + i / 50},GET,/a,192.0.2.${i % 3}`).join("\n")}\nnonsense,GET,/a,192.0.2.1\n`;
  const json = Array.from({ length: 400 }, (_, i) => JSON.stringify({ msec: String(1_793_491_200 + i / 100), request_method: "POST", uri: "/login", remote_addr: "192.0.2.9" })).join("\n");
  for (const [name, log, bytes, requests] of [["a.csv", csv, Buffer.from(csv), "500"], ["b.json.gz", json, gzipSync(json), "400"]]) {
    await page.getByLabel(/An access log/).setInputFiles({ name, mimeType: "application/octet-stream", buffer: bytes });
    await page.waitForFunction((told) => document.querySelector(".figures .number")?.textContent === told, requests);
    assert.deepEqual(JSON.parse(await downloaded(page, "Download JSON")), JSON.parse(commandSays(log, EXAMPLES[0].text, "json")), name);
    if (name === "a.csv") {
      assert.match(await page.locator(".faults").textContent(), /Line 502/);
    }
  }
  const lines = sampleLog(1000);
  await page.getByLabel("Or paste lines").fill(lines);
  await page.getByRole("button", { name: "Replay what is pasted" }).click();
  await page.waitForFunction((told) => document.querySelector(".figures .number")?.textContent === told, "1,000");
  assert.deepEqual(JSON.parse(await downloaded(page, "Download JSON")), JSON.parse(commandSays(lines, EXAMPLES[0].text, "json")));
  faultless(page);
  await page.close();
});

test("a_replay_that_is_cancelled_says_so", async () => {
  const page = await open(browser, gateway.url, "rules?example=night");
  await page.getByRole("button", { name: "Try last night" }).click();
  await page.getByRole("button", { name: "Cancel" }).click();
  assert.equal(await page.locator(".told").textContent(), "Cancelled.");
  faultless(page);
  await page.close();
});

test("a_replay_runs_on_while_one_is_elsewhere_and_is_found_again", async () => {
  const page = await open(browser, gateway.url, "rules?example=night");
  await page.getByRole("button", { name: "Try last night" }).click();
  const tab = page.locator('#tabs a[href^="#rules"]');
  await page.locator('#tabs a[href^="#quiz"]').click();
  await page.waitForSelector('article[data-id="quiz"] .host:not([aria-busy])');
  await page.waitForFunction(() => /^The replay is over\. [\d,]+ of 100,000 requests/.test(document.getElementById("announcer").textContent), null, { timeout: 30_000 });
  assert.match(await tab.getAttribute("title"), /^The replay is over/);
  assert.deepEqual(await violations(page), []);
  await tab.click();
  await replayed(page);
  assert.equal(await tab.getAttribute("title"), null);
  assert.match(await page.locator(".told").textContent(), /of 100,000 requests would have been denied/);
  assert.deepEqual(JSON.parse(await downloaded(page, "Download JSON")), JSON.parse(commandSays(sampleLog(), EXAMPLES[0].text, "json")));
  const stale = page.getByText("The rules were changed since");
  assert.equal(await stale.isVisible(), false);
  await page.getByLabel("Start from").selectOption("search");
  await stale.waitFor();
  await page.getByRole("button", { name: "Again with these rules" }).click();
  await stale.waitFor({ state: "hidden", timeout: 30_000 });
  faultless(page);
  await page.close();
});

test("one_is_told_as_one", async () => {
  const page = await open(browser, gateway.url, "rules?example=night");
  await page.getByLabel("Or paste lines").fill(sampleLog(1000).split("\n")[0] + "\nnonsense\n");
  await page.getByRole("button", { name: "Replay what is pasted" }).click();
  await replayed(page);
  assert.match(await page.locator(".told").textContent(), /^0 of 1 request would have been denied \(0%\)\. 2 lines in \d+ ms\.$/);
  assert.match(await page.locator(".faults summary").textContent(), /: 1 line that cannot be read/);
  assert.match(await page.locator(".results .notices").textContent(), /^1 line was left out/);
  const cluster = await open(browser, gateway.url, "cluster?instances=1&lease=1&offered=100");
  await cluster.getByRole("button", { name: "+10 s" }).click();
  await cluster.getByText("It is closed: calls go to Redis.").waitFor();
  assert.equal(await cluster.locator(".slider", { hasText: "Lease, at most" }).locator("output").textContent(), "1 unit");
  for (const one of [page, cluster]) {
    faultless(one);
    await one.close();
  }
});

test("a_replay_is_read_out_when_it_begins_and_ends_and_not_between", async () => {
  const page = await open(browser, gateway.url, "rules?example=night");
  await page.getByRole("button", { name: "To the log, below" }).click();
  assert.equal(await page.evaluate(() => document.activeElement.id), "rules-log");
  await page.evaluate(() => {
    globalThis.read = [];
    const status = document.querySelector(".told[role=status]");
    new MutationObserver(() => globalThis.read.push(status.textContent)).observe(status, { childList: true, characterData: true, subtree: true });
  });
  await page.getByRole("button", { name: "Try last night" }).click();
  await replayed(page);
  const read = await page.evaluate(() => globalThis.read);
  assert.equal(read.length, 2, read.join(" | "));
  assert.match(read[0], /^Reading last night's log/);
  faultless(page);
  await page.close();
});

test("of_many_policies_those_that_deny_most_are_shown_and_it_is_said", async () => {
  const page = await open(browser, gateway.url, "rules");
  const policies = Array.from({ length: 150 }, (_, i) => ({ name: `p${i}`, match: { path: `/${i}` }, key: ["ip"], limits: [{ rate: "1/m" }] }));
  await write(page, JSON.stringify({ policies }));
  await page.getByText("The rules are right: 150 policies").waitFor();
  const [line] = sampleLog(1000).split("\n");
  await page.getByLabel("Or paste lines").fill(`${line.replace(/"GET \S+/, '"GET /149')}\n`.repeat(3));
  await page.getByRole("button", { name: "Replay what is pasted" }).click();
  await replayed(page);
  const rows = page.locator('[aria-label="By policy"] tbody tr');
  assert.equal(await rows.count(), 100);
  assert.match(await rows.last().textContent(), /^p149312/); // three came, one was admitted, two were denied
  await page.getByText("Of 150 policies the 100 that deny most are shown").waitFor();
  faultless(page);
  await page.close();
});

test("a_line_that_is_no_header_field_is_said_and_nothing_is_asked", async () => {
  const page = await open(browser, gateway.url, "rules?example=keys");
  await page.getByLabel(/Header fields/).fill("X-Api-Key: shop-a\nshop-a");
  await page.getByRole("button", { name: "Send", exact: true }).click();
  assert.match(await page.locator(".answer").textContent(), /^“shop-a” is no header field/);
  assert.equal(await page.locator(".request ~ .raw").textContent(), "", "no other request's answer stands there");
  faultless(page);
  await page.close();
});

test("the_tester_answers_as_nginx_does", async () => {
  const page = await open(browser, gateway.url, "rules");
  const rules = readFileSync(`${ROOT}wasm/demo/rules.json`, "utf8");
  await write(page, rules);
  const key = `test-${process.pid}-${Date.now()}`;
  const cases = [
    ["/api/", { "X-Api-Key": key }], ["/api/", { "X-Api-Key": key }], ["/api/", { "X-Api-Key": key }],
    ["/api/orders", {}], ["/api/orders", { "X-Tenant": key }],
  ];
  // At once, as the tester's clock stands.
  const answers = [];
  for (const [path, headers] of cases) {
    const real = await fetch(new URL(path, gateway.url), { headers });
    answers.push([real, await real.text()]);
  }
  for (const [path, headers] of cases) {
    const [real, body] = answers.shift();
    await page.getByLabel("Method").selectOption("GET");
    await page.getByLabel("Path").fill(path);
    await page.getByLabel("Peer address").fill("127.0.0.1");
    await page.getByLabel(/Header fields/).fill(Object.entries(headers).map((pair) => pair.join(": ")).join("\n"));
    await page.getByRole("button", { name: "Send", exact: true }).click();
    const told = (await page.locator(".raw").textContent()).trim();
    const lines = told.split("\n");
    assert.equal(lines[0], `HTTP/1.1 ${real.status}`, path);
    const fields = lines.slice(1, lines.includes("") ? lines.indexOf("") : undefined).map((line) => line.split(": "));
    assert.ok(fields.length > 0);
    for (const [name, ...value] of fields) {
      assert.equal(value.join(": "), real.headers.get(name), `${path} ${name}`);
    }
    if (real.status !== 200) {
      assert.equal(lines.at(-1), body.trim(), path);
    }
  }
  assert.doesNotMatch(await page.locator(".policies").textContent(), new RegExp(`api_key = ${key}`), "a secret is shown as its digest");
  faultless(page);
  await page.close();
});

test("looks_and_reads_well_in_both_themes_and_sizes", async () => {
  await inspect(browser, gateway.url, "rules?example=night", async (page) => {
    await page.getByRole("button", { name: "Send 10" }).click();
    await page.getByRole("button", { name: "Try last night" }).click();
    await replayed(page);
  });
});
