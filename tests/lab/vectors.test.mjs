// Every step of every vector through the package in a browser, under the policy of the page: the small
// module, and the one that has everything. Node's run is beside it, in package/.

import assert from "node:assert/strict";
import { cp, mkdtemp, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { launch, pkg, root, serve } from "./browser.mjs";

const vectors = process.env.TOLLGATE_VECTORS ?? join(root, "tests/vectors");
const PLAY = `
  import { parse, play } from "./vectors.js";
  const [module, names] = [location.hash.slice(1), await (await fetch("names.json")).json()];
  const pack = await import("./pkg/" + module);
  await pack.default();
  const told = { steps: 0, vectors: 0, wrong: [] };
  for (const name of names) {
    try {
      told.steps += play(parse(await (await fetch("vectors/" + name)).text()), pack);
      told.vectors += 1;
    } catch (error) {
      told.wrong.push(name + ": " + error.message);
    }
  }
  document.querySelector("output").textContent = JSON.stringify(told);
`;
let folder, server, browser, names;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "tollgate-vectors-"));
  names = (await readdir(vectors)).filter((name) => name.endsWith(".json"));
  await cp(pkg, join(folder, "pkg"), { recursive: true });
  await cp(vectors, join(folder, "vectors"), { recursive: true });
  await cp(join(root, "tests/lab/vectors.mjs"), join(folder, "vectors.js"));
  await writeFile(join(folder, "names.json"), JSON.stringify(names));
  await writeFile(join(folder, "play.js"), PLAY);
  await writeFile(join(folder, "index.html"), `<!doctype html><html lang="en"><link rel="icon" href="data:,"><title>Vectors</title><output></output><script type="module" src="play.js"></script></html>`);
  server = await serve(folder);
  browser = await launch({ offline: false });
});

after(async () => {
  await browser?.close();
  await server?.close();
  await rm(folder, { recursive: true, force: true });
});

for (const module of ["tollgate.js", "full.js"]) {
  test(`every vector, ${module}`, async () => {
    let steps = 0;
    for (const name of names) {
      steps += JSON.parse(await readFile(join(vectors, name), "utf8")).steps.length;
    }
    const page = await browser.page();
    await page.goto(`${server.url}#${module}`);
    const output = await page.waitForSelector("output:not(:empty)", { timeout: 60_000 });
    const told = JSON.parse(await output.textContent());
    assert.deepEqual(told.wrong, []);
    assert.ok(names.length > 0 && steps > 0);
    assert.deepEqual([told.vectors, told.steps], [names.length, steps]);
    assert.deepEqual(page.faults, []);
    await page.close();
  });
}
