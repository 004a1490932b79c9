// Why a request was answered so: the numbers of the lazy refill, and the answer as it goes out.

import { h } from "../common/parts.js";
import { SECOND, START } from "./timeline.js";

/** Seconds on the section's clock, as exact as they are. */
export function seconds(nanos, digits = 3) {
  return `${(Number(nanos) / 1e9).toFixed(digits)} s`;
}
export const clock = (at) => seconds(at - START);

/** A number of tokens: its decimals, and the fraction that it is where decimals do not suffice. */
export function exact(state) {
  const { tokensNumerator: top, tokensDenominator: bottom } = state;
  if (bottom === 0n || top % bottom === 0n) {
    return `${bottom === 0n ? state.tokens : top / bottom}`;
  }
  const divisor = common(top, bottom);
  const [a, b] = [top / divisor, bottom / divisor];
  const decimals = state.tokens.toFixed(6).replace(/0+$/, "");
  const isShort = (a * 1_000_000n) % b === 0n;
  return isShort || b > 1_000_000n ? `${isShort ? "" : "≈ "}${decimals}` : `≈ ${decimals} (${a}/${b})`;
}

/** The same, with its noun. */
const tokens = (state) => (exact(state) === "1" ? "1 token" : `${exact(state)} tokens`);

function common(a, b) {
  while (b !== 0n) {
    [a, b] = [b, a % b];
  }
  return a;
}

export function whyPane() {
  const title = h("h3", {}, "No request yet");
  const answer = h("pre", { class: "raw", tabindex: "0", "aria-label": "The answer" });
  const reasons = h("dl", { class: "reasons" });
  const verdict = h("p", { class: "verdict-line" }, "Send one: its answer and the arithmetic behind it appear here.");
  let shown = null;

  /** @param request of the timeline, or undefined; `response` is its answer */
  function show(request, response) {
    const key = request && `${request.n} ${request.at} ${response.headers.length} ${response.headers[0]}`;
    if (key === shown) {
      return;
    }
    shown = key;
    if (!request) {
      title.textContent = "No request yet";
      verdict.textContent = "Send one: its answer and the arithmetic behind it appear here.";
      verdict.removeAttribute("data-allowed");
      answer.textContent = "";
      reasons.replaceChildren();
      return;
    }
    const { decision, stored, before, after, at, spec } = request;
    title.textContent = `Request ${request.n}, at ${clock(at)}`;
    answer.textContent = [`HTTP/1.1 ${response.status}`, ...response.headers.map(([name, value]) => `${name}: ${value}`),
      ...(response.body ? ["Content-Type: application/problem+json", "", response.body] : [])].join("\n");
    const isFresh = before.latest < START;
    const elapsed = at - before.latest;
    const rows = isFresh
      ? [["Stored", "nothing: a bucket that was never used is full"]]
      : [
        ["Stored", `one instant: full again at ${clock(before.tat)}${before.tatPart ? ` and ${before.tatPart}/${before.tatParts} ns` : ""}. That says: at ${clock(before.latest)}, the last time one was taken, ${exact(stored)} ${exact(stored) === "1" ? "was" : "were"} left`],
        ["Elapsed since", seconds(elapsed, elapsed % (SECOND / 1000n) ? 6 : 3)],
        ["Came back", `${(before.tokens - stored.tokens).toFixed(6).replace(/\.?0+$/, "")}: elapsed × ${spec.rate}, never above ${spec.burst.toLocaleString("en")} in all`],
      ];
    rows.push(["Before", tokens(before)]);
    rows.push(["Asked", "1 token"]);
    rows.push(["After", `${tokens(after)}${decision.allowed ? "" : ": a denial changes nothing"}`]);
    reasons.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    verdict.dataset.allowed = String(decision.allowed);
    verdict.textContent = decision.allowed
      ? "Allowed: there was at least one whole token."
      : `Rejected: less than one whole token. It is whole in ${wait(decision.retryAfter)}; Retry-After is in whole seconds, so that is rounded up, never down.`;
  }
  return { element: h("div", { class: "why" }, title, verdict, answer, h("h3", {}, "Why"), reasons), show };
}

/** A wait, not shorter than it is. */
export function wait(nanos) {
  if (nanos >= SECOND * 100n) {
    return `${(nanos + SECOND - 1n) / SECOND} s`;
  }
  return `${(Number((nanos + 999_999n) / 1_000_000n) / 1000).toFixed(3)} s`;
}
