// The gateways of `make run` and `make run-envoy`, started by their own run.sh on a free port, and ended
// by the id of that script, which ends what it started.

import { spawn, execFileSync } from "node:child_process";
import { createServer } from "node:net";
import { fileURLToPath } from "node:url";

export const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const PATIENCE = 30_000;

/** NGINX with the module, TOLLGATE_NGINX_MODULE or that of `make nginx`. */
export const startNginx = () =>
  start("ffi/nginx/demo/run.sh", process.env.TOLLGATE_NGINX_MODULE ?? `${ROOT}target/nginx/debian/ngx_http_tollgate_module.so`);

/** Envoy with the filter, that of `make filter`. */
export const startEnvoy = () =>
  start("proxy-wasm-filter/run.sh", execFileSync(`${ROOT}.ci/envoy`, { encoding: "utf8" }).trim());

/** Another program may take a port between our look and the gateway's: others are tried then. */
async function start(script, argument) {
  for (let left = 4; ; left--) {
    try {
      return await startOn(await freePort(), script, argument);
    } catch (error) {
      if (left === 0 || !/in use|is taken/.test(error.message)) {
        throw error;
      }
    }
  }
}

/** @returns {Promise<{ url: string, said: () => string, stop: () => Promise<void> }>} */
async function startOn(port, script, argument) {
  const child = spawn(`${ROOT}${script}`, [argument, String(port)], { cwd: ROOT, stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  child.stdout.on("data", (text) => (said += text));
  child.stderr.on("data", (text) => (said += text));
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const end = () => child.kill("SIGTERM");
  process.once("exit", end);
  const until = Date.now() + PATIENCE;
  while (!said.includes("Ctrl-C stops it.")) {
    if (child.exitCode !== null || Date.now() > until) {
      process.off("exit", end);
      end();
      throw new Error(`${script} did not start: ${said}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return {
    url: `http://127.0.0.1:${port}/`,
    said: () => said,
    async stop() {
      process.off("exit", end);
      end();
      await ended;
    },
  };
}

function freePort() {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}
