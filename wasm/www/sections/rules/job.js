// The replay that is under way, or that was the last. It is the page's, not the section's: it runs on when
// somebody looks into another section, and is found again by who comes back.

import { count, percent, plural } from "../common/parts.js";

/** @typedef {{ name: string, source: object, rules: string, progress?: object, done?: object, error?: string }} Job */

/** @type {Job | null} */
let job = null;
let worker = null;
let watcher = null;

/** @returns {Job | null} */
export const current = () => job;

/** `told` is called when something of it changes, until somebody else watches, or nobody. */
export function watch(told) {
  watcher = told;
}

/** Begins another in its place. `options` are those of `Replay`. */
export function begin({ name, source, rules, options }) {
  worker?.terminate();
  const mine = { name, source, rules };
  job = mine;
  worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  worker.onmessage = ({ data }) => {
    if (data.error) {
      end({ error: `${name}: ${data.error}` });
    } else if (data.report) {
      end({ done: data });
    } else {
      mine.progress = data;
      watcher?.();
    }
  };
  worker.onerror = (event) => end({ error: `The replay ended: ${event.message ?? "it could not be started"}` });
  worker.postMessage({ rules, source, options });
  watcher?.();
}

/** What the error of one says that was cancelled. */
export const CANCELLED = "Cancelled.";

export function cancel() {
  end({ error: CANCELLED });
}

export const isRunning = () => worker !== null;

function end(how) {
  worker?.terminate();
  worker = null;
  Object.assign(job, how);
  if (watcher) {
    watcher();
  } else {
    document.dispatchEvent(new CustomEvent("lab:news", { detail: { id: "rules", text: `The replay is over. ${told(job)}` } }));
  }
}

/** How it stands, in a sentence or two. */
export function told({ name, done, error }) {
  if (error) {
    return error;
  }
  if (!done) {
    return `Reading ${name} …`;
  }
  const { report: { requests, denied, keys }, lines, ms } = done;
  if (requests === 0) {
    return `${name}: no line could be read as a request.`;
  }
  const worst = keys.filter((key) => key.denied > 0).slice(0, 3)
    .map(({ key, denied: times, policy }) => `${label(key)}, ${plural(times, "time")} by policy ${policy}`);
  return `${count(denied)} of ${plural(requests, "request")} would have been denied (${percent(denied, requests)}).${
    worst.length > 0 ? ` Most: ${worst.join("; ")}.` : ""} ${plural(lines, "line")} in ${Math.round(ms)} ms.`;
}

export const label = (key) => key.map(({ part, value }) => `${part}=${value}`).join(" ");
