// One visit of a section, as its tests make it: a page that stands there, whose faults end the test.

import assert from "node:assert/strict";

import { launch as chromium, open as openSection, overflow, screenshot, violations } from "./browser.mjs";

/** Chromium tells of each answer that is an error; these are what a limiter is for. */
const EXPECTED = /the server responded with a status of (401|429)/;
const THEMES = ["light", "dark"];
const WIDTHS = [360, 1440];

export const launch = () => chromium();

/** A page in which the section stands. */
export async function open(browser, url, hash, look = {}) {
  const page = await browser.page(look);
  await openSection(page, url, `#${hash}`);
  return page;
}

/** Nothing was said on the console, asked of another origin, or done against the policy. */
export function faultless(page) {
  assert.deepEqual(page.faults.filter((fault) => !EXPECTED.test(fault)), []);
}

/** The section in both themes and sizes: nothing stands out, axe finds nothing; a picture is kept. */
export async function inspect(browser, url, hash, prepare) {
  const id = hash.split("?")[0];
  for (const theme of THEMES) {
    for (const width of WIDTHS) {
      const page = await open(browser, url, hash, { theme, width });
      await prepare(page);
      await screenshot(page, `${id}-${theme}-${width}`);
      assert.deepEqual(await overflow(page), [], `${theme}, ${width} px`);
      assert.deepEqual(await violations(page), [], `${theme}, ${width} px`);
      faultless(page);
      await page.close();
    }
  }
}
