// A Chromium of the test's own, and a server of its own for the page: with the policy as a header,
// which a <meta> cannot carry whole, and with nothing that a plain server would not do.
//
// Whatever a page says on its console, asks of another origin, or does against its policy, is kept in
// `faults`: a test ends with none.

import { createServer } from "node:http";
import { readFile, mkdir, mkdtemp, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { extname, join, normalize, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

export const root = fileURLToPath(new URL("../../", import.meta.url));
/** LAB_SITE= and LAB_PACKAGE= name others than those that make lab-site builds. */
export const site = process.env.LAB_SITE ?? join(root, "target/lab/site");
export const pkg = process.env.LAB_PACKAGE ?? join(root, "target/lab/pkg");
const need = createRequire(join(root, "target/lab/test-npm/package.json"));
const { chromium } = need("playwright-core");
const axe = await readFile(need.resolve("axe-core/axe.min.js"), "utf8");

export const POLICY = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm", ".json": "application/json", ".svg": "image/svg+xml" };

/** Serves a folder on a free port of 127.0.0.1; `under`: in a sub-folder of the origin. `sent` counts bytes, compressed. */
export async function serve(folder = site, { under = "/" } = {}) {
  const sent = new Map();
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url, "http://here");
    const inside = pathname.startsWith(under) ? pathname.slice(under.length) : null;
    const name = inside === "" ? "index.html" : inside;
    const file = name === null ? null : normalize(join(folder, decodeURIComponent(name)));
    try {
      if (!file?.startsWith(folder + sep)) {
        throw new Error("outside");
      }
      const body = gzipSync(await readFile(file));
      sent.set(name, (sent.get(name) ?? 0) + body.length);
      response.writeHead(200, {
        "Content-Type": TYPES[extname(file)] ?? "application/octet-stream", "Content-Encoding": "gzip",
        "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache",
      });
      response.end(body);
    } catch {
      response.writeHead(404, { "Content-Type": "text/plain" });
      response.end("404");
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref(); // a test that failed before it closed its server must not keep the others from ending
  return {
    url: `http://127.0.0.1:${server.address().port}${under}`, sent,
    close: () => new Promise((resolve) => { server.close(resolve); server.closeAllConnections(); }),
  };
}

/** `offline: false`: without the service worker, which fetches all files at the first visit. */
export async function launch({ args = [], offline = true } = {}) {
  const home = await mkdtemp(join(tmpdir(), "tollgate-lab-"));
  const context = await chromium.launchPersistentContext(home, {
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", headless: true,
    viewport: { width: 1440, height: 900 }, serviceWorkers: offline ? "allow" : "block",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", ...args],
  });
  return {
    context,
    /** A page whose faults are kept. */
    async page({ width = 1440, height = 900, theme = "light", reducedMotion = "no-preference" } = {}) {
      const page = await context.newPage();
      page.faults = [];
      await page.setViewportSize({ width, height });
      await page.emulateMedia({ colorScheme: theme, reducedMotion });
      page.on("console", (message) => {
        if (message.type() !== "debug") {
          page.faults.push(`${message.type()}: ${message.text()}`);
        }
      });
      page.on("pageerror", (error) => page.faults.push(`thrown: ${error.stack ?? error}`));
      page.on("request", (request) => {
        const url = new URL(request.url());
        if (page.home && !["data:", "blob:"].includes(url.protocol) && url.origin !== page.home) {
          page.faults.push(`a request to ${url.origin}`);
        }
      });
      await page.addInitScript(() => document.addEventListener("securitypolicyviolation", (event) =>
        console.error(`against the policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`)));
      return page;
    },
    async close() {
      await context.close();
      await rm(home, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}

/** Opens a section, and waits until it stands there. */
export async function open(page, url, hash) {
  page.home = new URL(url).origin;
  if (page.url().split("#")[0] === url) {
    await page.evaluate((next) => { location.hash = next; }, hash);
  } else {
    await page.goto(url + hash);
  }
  const id = hash.replace(/^#/, "").split("?")[0] || "bucket";
  await page.waitForSelector(`article[data-id="${id}"] .host:not([aria-busy])`);
}

/** What axe finds wrong, in short. By the browser's own channel, which the page's policy is not asked about. */
export async function violations(page) {
  await page.evaluate(axe);
  const { violations: found } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return found.flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) => `${id}: ${target.join(" ")}: ${failureSummary.replace(/\s+/g, " ")}`));
}

/** Does something stand out of the page to the right? */
export function overflow(page) {
  return page.evaluate(() => {
    const width = document.documentElement.clientWidth;
    return document.documentElement.scrollWidth > width
      ? [...document.querySelectorAll("main *")].filter((element) => element.getBoundingClientRect().right > width + 1)
        .slice(0, 5).map((element) => `${element.tagName}.${element.className} to ${Math.round(element.getBoundingClientRect().right)} of ${width}`)
      : [];
  });
}

export async function screenshot(page, name) {
  const folder = join(root, "target/lab/screenshots");
  await mkdir(folder, { recursive: true });
  await page.screenshot({ path: join(folder, `${name}.png`), fullPage: true });
}
