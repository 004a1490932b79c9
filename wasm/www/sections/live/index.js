// The section Live: real requests to the gateway that serves this page, and what the model, with the
// same rules, says they will be answered.

import { chart } from "../common/chart.js";
import { choice, count, field, h, plural, slider, table } from "../common/parts.js";
import { findGateway, inOrder, send, settled, together, told } from "./gateway.js";
import { Model } from "./model.js";

const PLACES = [
  ["api/", "/api/: 2 at once, then 1 a second"],
  ["api/stream", "/api/stream: 40 at once, then 20 a second"],
  ["api/orders", "/api/orders: two limits, and a tenant is required"],
];
/** A stream ends by itself after so many seconds. */
const LONGEST = 20;
/** Answers that the table shows, and seconds that the plot shows. */
const ROWS = 14;
const SHOWN = 30;

/**
 * @param {HTMLElement} host an empty element
 * @param {{ reading: Reading, setState: (state: Record<string, string>) => void,
 *           announce: (text: string) => void }} page
 */
export async function mount(host, page) {
  const first = page.reading.oneOf("place", PLACES.map(([path]) => path), PLACES[0][0]);
  const gateway = await findGateway();
  if (gateway === null) {
    host.append(howTo());
    return () => {};
  }
  const core = await import("../../pkg/full.js");
  await core.default();
  return mountGateway(host, page, gateway, core.Rules, first);
}

function howTo() {
  return h("div", { class: "card how-to" },
    h("p", {}, "No gateway serves this page, so there is nobody to ask. In a clone of Tollgate two commands build the page and start a gateway that serves it, on this machine alone:"),
    h("pre", { class: "raw", tabindex: "0", "aria-label": "Commands" },
      "make lab-site     # this page\nmake run          # NGINX with the module, http://127.0.0.1:8080/\nmake run-envoy    # Envoy with the filter, the same address"),
    h("p", {}, "Open the address, and come back to this section: it sends real requests to the gateway, and draws its answers on what the model of this page predicts from the same rules. They should be equal, field for field."));
}

function mountGateway(host, page, gateway, Rules, first) {
  let rulesText = gateway.rulesText;
  let model = new Model(Rules, rulesText);
  let begun = null; // of the plot, in ms
  let points = [];
  let rows = [];
  let counts = { same: 0, near: 0, other: 0 };
  let streaming = null;
  const underWay = new Set();
  let came = []; // answers that are not judged yet

  const place = choice(PLACES, first, (path) => {
    page.setState({ place: path });
    clear();
  });
  const [key, tenant] = [headerInput(() => clear()), headerInput(() => clear())];
  const keyField = field("X-Api-Key", key.input, "Another key is another bucket.");
  const tenantField = field("X-Tenant", tenant.input, "Leave it empty for a 401.");
  keyField.append(key.error);
  tenantField.append(tenant.error);
  const burst = slider({ label: "Burst", unit: "requests", min: 2, max: 100, value: 10 });
  const rate = slider({ label: "Stream", unit: "a second", min: 1, max: 50, value: 30 });
  const sendOne = h("button", { type: "button", class: "primary", onclick: () => guarded(() => fire(1)) }, "Send one");
  const sendMany = h("button", { type: "button", onclick: () => guarded(() => fire(burst.value())) }, "Send the burst");
  const stream = h("button", { type: "button", "aria-pressed": "false", onclick: () => (streaming ? endStream() : beginStream()) }, "Start the stream");
  const verdict = h("p", { class: "told" }, "Send a request: the answer is drawn on the prediction.");
  const raw = h("pre", { class: "raw", tabindex: "0", "aria-label": "The last answer" }, "No answer yet.");
  const remaining = chart({
    caption: "What is left: the gateway's answers on the model's prediction",
    unit: "X-RateLimit-Remaining",
    isWhole: true,
    series: [
      { name: "predicted", label: "Predicted", kind: "soft" },
      { name: "remaining", label: "Gateway: admitted", kind: "dots" },
      { name: "denied", label: "Gateway: denied", kind: "dots-denied" },
    ],
  });
  const log = table("The last answers, predicted ones in brackets", ["At", "Status", "Remaining", "Reset", "Retry-After", "As predicted?"], { empty: "No request yet." });
  const rulesShown = h("pre", { class: "raw", tabindex: "0", "aria-label": "Rules of the gateway" }, rulesText);
  const curl = h("pre", { class: "raw", tabindex: "0", "aria-label": "Command" });

  host.append(
    h("p", {}, "This page is served by ", h("strong", {}, gateway.gateway),
      " with Tollgate. Requests go to it for real; the prediction is made here, from the same rules file, without a look at the answer."),
    h("div", { class: "settings" },
      h("fieldset", {}, h("legend", {}, "Request"), field("Place", place), keyField, tenantField,
        h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => newClient() }, "A new client"))),
      h("fieldset", {}, h("legend", {}, "Send"), burst.element, rate.element,
        h("div", { class: "buttons" }, sendOne, sendMany, stream))),
    verdict,
    h("div", { class: "two" }, h("div", { class: "card" }, remaining.element, log.element),
      h("div", { class: "card" }, h("h2", {}, "The last answer"), raw,
        h("h2", {}, "From a shell"), curl,
        h("p", { class: "hint" }, gateway.status && ["Counts so far: ", h("a", { href: gateway.status }, "/status"), " (JSON), ", h("a", { href: gateway.metrics }, "/metrics"), " (Prometheus)."]),
        h("details", {}, h("summary", {}, "The gateway's rules"), rulesShown))));

  const isOrders = () => place.value === "api/orders";
  const headers = () => (isOrders() ? (tenant.value() ? { "X-Tenant": tenant.value() } : {}) : (key.value() ? { "X-Api-Key": key.value() } : {}));
  const request = () => ({ method: "GET", host: location.host, path: new URL(place.value, location.href).pathname, peer: "127.0.0.1", headers: headers() });

  async function fire(times) {
    const [asked, given, path] = [request(), headers(), place.value];
    await Promise.all(Array.from({ length: times }, async () => {
      const mine = { since: performance.now() };
      underWay.add(mine);
      try {
        const answer = await send(path, { headers: given });
        came.push({ asked, answer });
      } finally {
        underWay.delete(mine);
        settle();
      }
    }));
  }

  /** Judges what no request that is still under way can have come before. */
  function settle() {
    const oldest = Math.min(...[...underWay].map(({ since }) => since)); // Infinity when there is none
    const ready = settled(came, oldest);
    if (ready.length === 0) {
      return;
    }
    came = came.filter((one) => !ready.includes(one));
    const askedBy = new Map(ready.map(({ asked, answer }) => [answer, asked]));
    const answers = [...askedBy.keys()];
    inOrder(answers).forEach((answer) => take(askedBy.get(answer), answer, together(answer, answers)));
    if (underWay.size === 0) {
      performance.clearResourceTimings(); // nobody will look for his own
    }
    draw();
  }

  /** What was sent is judged; a gateway that is gone is told of. */
  async function guarded(work) {
    sendOne.disabled = sendMany.disabled = true;
    try {
      await work();
    } catch {
      gone();
    }
    sendOne.disabled = sendMany.disabled = false;
  }

  function gone() {
    endStream();
    tell("wrong", "No answer: is the gateway still running?");
  }

  function beginStream() {
    const until = performance.now() + LONGEST * 1000;
    stream.textContent = "Stop the stream";
    stream.setAttribute("aria-pressed", "true");
    let due = performance.now();
    const tick = () => {
      const now = performance.now();
      if (now >= until) {
        endStream();
        return;
      }
      for (let i = 0; due <= now && i < 5; i++) {
        due += 1000 / rate.value();
        fire(1).catch(gone);
      }
      due = Math.max(due, now - 100); // a page that slept does not make up for it
    };
    streaming = setInterval(tick, 10);
    tick();
  }

  function endStream() {
    clearInterval(streaming);
    streaming = null;
    stream.textContent = "Start the stream";
    stream.setAttribute("aria-pressed", "false");
  }

  function take(asked, answer, others) {
    const { predicted, verdict: is } = model.judge(asked, answer, others);
    begun ??= answer.answered;
    counts[is] += 1;
    const left = told(answer, "x-ratelimit-remaining");
    points.push({
      at: (answer.answered - begun) / 1000,
      predicted: told(predicted, "x-ratelimit-remaining"),
      remaining: answer.status === 200 ? left : null,
      denied: answer.status === 200 ? null : (left ?? 0),
    });
    const cell = (name) => {
      const [is, was] = [told(answer, name), told(predicted, name)];
      return is === null && was === null ? "–" : `${is ?? "–"} (${was ?? "–"})`;
    };
    rows.unshift([
      `${((answer.answered - begun) / 1000).toFixed(2)} s`,
      h("span", { class: answer.status === 200 ? "yes" : "no" }, `${answer.status} (${predicted.status})`),
      cell("x-ratelimit-remaining"), cell("x-ratelimit-reset"), cell("retry-after"),
      { same: "yes", near: "a token apart", other: h("strong", { class: "no" }, "no") }[is],
    ]);
    rows.length = Math.min(rows.length, ROWS);
    raw.textContent = [`HTTP/1.1 ${answer.status}`, ...answer.headers.map(([name, value]) => `${name}: ${value}`), "", answer.body.trim()].join("\n");
  }

  function draw() {
    const last = points.at(-1)?.at ?? 0;
    points = points.filter(({ at }) => at >= last - SHOWN);
    points.sort((a, b) => a.at - b.at);
    const column = (name) => points.map((point) => point[name]);
    remaining.draw({ at: column("at"), predicted: column("predicted"), remaining: column("remaining"), denied: column("denied") });
    log.fill(rows);
    tell(counts.other === 0 ? "right" : "wrong", sentence(counts));
  }

  function tell(state, text) {
    verdict.textContent = text;
    verdict.dataset.state = state;
    page.announce(text);
  }

  function clear() {
    begun = null;
    points = [];
    rows = [];
    counts = { same: 0, near: 0, other: 0 };
    endStream();
    keyField.hidden = isOrders();
    tenantField.hidden = !isOrders();
    const header = Object.entries(headers()).map(([name, value]) => ` -H '${name}: ${value}'`).join("");
    curl.textContent = `for i in 1 2 3; do curl -i${header} ${new URL(place.value, location.href).href}; done`;
    remaining.draw({ at: [], predicted: [], remaining: [], denied: [] });
    log.fill([]);
    delete verdict.dataset.state;
    verdict.textContent = "Send a request: the answer is drawn on the prediction.";
  }

  async function newClient() {
    const name = Math.random().toString(36).slice(2, 8);
    key.set(`lab-${name}`);
    tenant.set(`shop-${name}`);
    try {
      const now = await (await fetch(gateway.rules, { cache: "no-store" })).text();
      if (now !== rulesText) {
        rulesText = now;
        rulesShown.textContent = now;
        model.free();
        model = new Model(Rules, rulesText);
      }
    } catch {
      gone();
      return;
    }
    clear();
  }

  newClient();
  return () => {
    endStream();
    model.free();
  };
}

/** A field for a value of a header field: what cannot be one is told beside it, and the last that can is sent. */
function headerInput(onChange) {
  let now = "";
  const error = h("p", { class: "error", role: "alert" });
  const input = h("input", { type: "text", maxlength: "64", spellcheck: "false", autocomplete: "off", onchange: () => {
    if (/^[\x21-\x7e]*$/.test(input.value)) {
      set(input.value);
      onChange();
    } else {
      error.textContent = `Letters, digits and signs of ASCII, without a space. “${now}” is still what is sent.`;
      input.setAttribute("aria-invalid", "true");
    }
  } });
  function set(value) {
    now = input.value = value;
    error.textContent = "";
    input.setAttribute("aria-invalid", "false");
  }
  return { input, error, set, value: () => now };
}

/** How many answers were as predicted, and what the others were. */
function sentence({ same, near, other }) {
  const all = same + near + other;
  const answers = plural(all, "answer");
  if (same === all) {
    return `${answers}, ${all === 1 ? "" : "all "}as predicted.`;
  }
  const apart = near > 0 ? ` ${count(near)} a token apart: one was just coming, or others were under way.` : "";
  return other === 0
    ? `${answers}, ${count(same)} as predicted,${apart.replace(/\.$/, "")}.`
    : `${answers}, ${count(same)} as predicted.${apart} ${count(other)} ${other === 1 ? "is another" : "are others"}. Did somebody else use this key, or did the rules change? A new client begins with a full bucket.`;
}
