// The gateways of `make run` and `make run-envoy` end with make, whoever ends it and however: nothing of
// them is left over.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";

import { startByMake } from "./gateways.mjs";

const PATIENCE = 10_000;

/** The processes that were started with this folder of theirs in their arguments. */
function left(folder) {
  const all = execFileSync("ps", ["-eo", "pid,args", "-ww"], { encoding: "utf8" }).split("\n");
  return all.filter((line) => line.includes(folder));
}

for (const [target, folder] of [["run", ""], ["run-envoy", "envoy-"]]) {
  // A supervisor's TERM comes to make alone; KILL leaves make no time to tell anybody.
  for (const signal of ["SIGTERM", "SIGKILL"]) {
    test(`${target}_leaves_nothing_when_make_gets_${signal}`, async () => {
      const gateway = await startByMake(target);
      const mine = `/target/run/${folder}${new URL(gateway.url).port}/`;
      assert.ok(left(mine).length > 0, "what is looked for is there");
      await gateway.stop(signal);
      const until = Date.now() + PATIENCE;
      while (left(mine).length > 0 && Date.now() < until) {
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      const over = left(mine);
      over.forEach((line) => process.kill(Number.parseInt(line, 10))); // nor does the test leave them
      assert.deepEqual(over, []);
    });
  }
}
