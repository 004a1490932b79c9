// The quiz: each right answer is taken as right, each wrong one is not, each has its reason, and what
// is said to be seen in the lab is there.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { QUESTIONS } from "../../wasm/www/sections/quiz/questions.js";
import { serve } from "./browser.mjs";
import { faultless, inspect, launch, open } from "./visit.mjs";

let server, browser;
before(async () => {
  [server, browser] = await Promise.all([serve(), launch()]);
});
after(async () => {
  await browser?.close();
  await server?.close();
});

test("every answer is judged, with its reason", async () => {
  const page = await open(browser, server.url, "quiz");
  for (const { id, answers, right } of QUESTIONS) {
    const question = page.locator(`[data-question="${id}"]`);
    assert.equal(await question.locator(".reason").isVisible(), false);
    for (const [i, [text, reason]] of answers.entries()) {
      await question.getByText(text, { exact: true }).click();
      assert.equal(await question.locator(".reason strong").textContent(), i === right ? "Right." : "Not quite.");
      assert.ok((await question.locator(".reason").textContent()).includes(reason));
    }
    await question.locator("input").nth(right).check();
  }
  assert.equal(await page.locator(".score").textContent(), `${QUESTIONS.length} of ${QUESTIONS.length} right`);
  await page.waitForTimeout(400); // the address follows
  assert.equal(new URL(page.url()).hash, `#quiz?a=${QUESTIONS.map(({ right }) => right).join("")}`);
  await page.reload();
  await page.getByText(`${QUESTIONS.length} of ${QUESTIONS.length} right`).waitFor();
  await page.getByRole("button", { name: "Begin anew" }).click();
  assert.equal(await page.locator(".reason:visible").count(), 0);
  faultless(page);
  await page.close();
});

test("by keyboard alone a question is answered, and the reason is announced", async () => {
  const page = await open(browser, server.url, "quiz");
  await page.locator('[data-question="burst"] input').first().focus();
  await page.keyboard.press("ArrowDown"); // to the second, which is right
  await page.waitForFunction(() => /^Right\./.test(document.getElementById("announcer").textContent));
  await page.close();
});

test("each question leads to a place in the lab that shows it", async () => {
  const page = await open(browser, server.url, "quiz");
  for (const { id, right, see } of QUESTIONS) {
    const question = page.locator(`[data-question="${id}"]`);
    await question.locator("input").nth(right).check();
    await question.getByRole("link", { name: see[0] }).click();
    const [place] = see[1].split("?");
    await page.waitForSelector(`article[data-id="${place}"] .host:not([aria-busy])`);
    if (place === "bucket") {
      const figure = async (name) => Number((await page.locator(`[data-figure="${name}"]`).textContent()).replace(/,/g, ""));
      const counts = [await figure("allowed"), await figure("rejected")];
      assert.deepEqual(counts, { burst: [7, 13], second: [7, 13], status: [1, 1], "retry-after": [3, 1], postpone: [7, 54] }[id], id);
    }
    if (place === "compare") {
      const preset = new URLSearchParams(see[1].split("?")[1]).get("preset");
      assert.equal(await page.locator("[data-preset][aria-pressed=true]").getAttribute("data-preset"), preset);
    }
    await page.goBack();
    await page.waitForSelector('article[data-id="quiz"] .host:not([aria-busy])');
  }
  faultless(page);
  await page.close();
});

test("in both themes and sizes nothing stands out, and axe finds nothing", async () => {
  await inspect(browser, server.url, `quiz?a=${QUESTIONS.map(({ right }, i) => (i % 3 === 0 ? 0 : right)).join("")}`, async () => {});
});
