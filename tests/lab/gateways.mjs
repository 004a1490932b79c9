// The gateways of `make run` and `make run-envoy`, started by their own run.sh, or by make itself, on a
// free port, and ended by the id of that, which ends what it started.

import { spawn, execFileSync } from "node:child_process";
import { createServer } from "node:net";
import { fileURLToPath } from "node:url";

export const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const PATIENCE = 30_000;

/** NGINX with the module, TOLLGATE_NGINX_MODULE or that of `make nginx`. */
export const startNginx = () =>
  start(`${ROOT}ffi/nginx/demo/run.sh`, process.env.TOLLGATE_NGINX_MODULE ?? `${ROOT}target/nginx/debian/ngx_http_tollgate_module.so`);

/** Envoy with the filter, that of `make filter`. */
export const startEnvoy = () =>
  start(`${ROOT}proxy-wasm-filter/run.sh`, execFileSync(`${ROOT}.ci/envoy`, { encoding: "utf8" }).trim());

/** By `make run` or `make run-envoy`, with what is built. */
export const startByMake = (target) => {
  const built = ["setup", "lib", "nginx", "filter", "cli"].flatMap((name) => ["-o", name]);
  return start("make", "-s", ...built, target);
};

/** Another program may take a port between our look and the gateway's: others are tried then. */
async function start(...command) {
  for (let left = 4; ; left--) {
    try {
      return await startOn(await freePort(), ...command);
    } catch (error) {
      if (left === 0 || !/in use|is taken/.test(error.message)) {
        throw error;
      }
    }
  }
}

/** @returns {Promise<{ url: string, said: () => string, stop: (signal?: string) => Promise<void> }>} */
async function startOn(port, command, ...given) {
  const env = { ...process.env };
  delete env.MAKEFLAGS; // of the make that runs the tests
  const last = command === "make" ? `PORT=${port}` : `${port}`;
  const child = spawn(command, [...given, last], { cwd: ROOT, env, stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  child.stdout.on("data", (text) => (said += text));
  child.stderr.on("data", (text) => (said += text));
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const end = (signal) => child.kill(typeof signal === "string" ? signal : "SIGTERM");
  process.once("exit", end);
  const until = Date.now() + PATIENCE;
  while (!said.includes("Ctrl-C stops it.")) {
    if (child.exitCode !== null || Date.now() > until) {
      process.off("exit", end);
      end();
      throw new Error(`${command} did not start: ${said}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return {
    url: `http://127.0.0.1:${port}/`,
    said: () => said,
    async stop(signal = "SIGTERM") {
      process.off("exit", end);
      end(signal);
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
