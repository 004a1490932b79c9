// The section Cluster: many gateways that share one limit through Redis.
//
// What is drawn comes from the worker as samples of a tenth of a second of virtual time. The page
// counts and draws; every decision was made by the engine.

import { chart } from "../common/chart.js";
import { choice, count, field, h, percent, slider, table } from "../common/parts.js";
import { DEFAULTS, options, OUTAGES, PRESETS, RANGES, running } from "./presets.js";
import { tellCluster } from "./tell.js";

/** Seconds that the plots show, and that the sentence speaks of. */
const SHOWN = 30;
const LATELY = 2;
/** Samples in a point of the plots, and points in a row of the tables. */
const POINT = 5;
const ROWS = 8;

const PACES = [["0.1", "a tenth of real time"], ["1", "real time"], ["5", "5 times real time"], ["20", "20 times real time"]];
const BREAKER = ["closed", "half-open", "open"];
const FALLBACK = [
  ["local", "local: each its piece of the limit"],
  ["allow", "allow: let all through"],
  ["deny", "deny: let none through"],
];

/**
 * @param {HTMLElement} host an empty element
 * @param {{ reading: Reading, setState: (state: Record<string, string>) => void,
 *           announce: (text: string) => void }} page
 */
export function mount(host, page) {
  const named = page.reading.oneOf("preset", PRESETS.map(({ id }) => id), null);
  const settings = { ...DEFAULTS, ...PRESETS.find(({ id }) => id === named)?.settings };
  const asNamed = JSON.stringify(settings);
  for (const name of Object.keys(DEFAULTS)) {
    settings[name] = name in RANGES
      ? page.reading.number(name, RANGES[name], settings[name])
      : page.reading.oneOf(name, FALLBACK.map(([known]) => known), settings[name]);
  }
  // A scenario that was changed is none any more.
  let preset = JSON.stringify(settings) === asNamed ? PRESETS.find(({ id }) => id === named) ?? null : null;
  let isRunning = false;
  let run = 0;
  let samples = []; // those that are drawn
  let all = sum([]); // of all since the start
  let worker = null;

  // Controls.
  const of = (name, rest) => slider({ ...rest, ...RANGES[name], value: settings[name], onInput: (value) => change(name, value) });
  const sliders = {
    latency: of("latency", { label: "Redis, there and back", unit: "ms", step: 0.1, scale: "log" }),
    loss: of("loss", { label: "Messages lost", unit: "%" }),
    offered: of("offered", { label: "Requests offered", unit: "a second", scale: "log" }),
    instances: of("instances", { label: "Instances", hint: "Another number begins anew." }),
    keys: of("keys", { label: "Keys", hint: "Of several the first is asked most." }),
    limit: of("limit", { label: "Limit of a key", unit: "a second", scale: "log" }),
    burst: of("burst", { label: "Burst", scale: "log" }),
    lease: of("lease", { label: "Lease, at most", unit: "units", scale: "log", hint: "0: every request asks Redis." }),
    timeout: of("timeout", { label: "A request waits for Redis", unit: "ms at most" }),
  };
  const onStoreError = choice(FALLBACK, settings.onStoreError, (value) => change("onStoreError", value));
  const pace = choice(PACES, "1", () => send({ pace: isRunning ? Number(pace.value) : 0 }));
  const runButton = h("button", { type: "button", class: "primary", onclick: () => setRunning(!isRunning) }, "Run");
  const skipButton = h("button", { type: "button", onclick: () => send({ skip: 10_000 }) }, "+10 s");
  const anewButton = h("button", { type: "button", onclick: () => start() }, "Start anew");
  const outage = choice(OUTAGES, "", (kind) => setOutage(kind));
  const presetButtons = PRESETS.map((one) =>
    h("button", { type: "button", "aria-pressed": "false", "data-preset": one.id, onclick: () => choose(one) }, one.title));

  // What is told.
  const sentence = h("p", { class: "told" });
  let spoken = "";
  const clock = h("span", { class: "number" }, "0.0 s");
  const figure = (label, explain) => {
    const value = h("dd", { class: "number" }, "0");
    const note = h("dd", { class: "note" }, explain ?? "");
    return { element: h("div", { class: "figure" }, h("dt", {}, label), value, note), value, note };
  };
  const figures = {
    admitted: figure("Admitted"),
    allowed: figure("The law allows"),
    calls: figure("Calls to Redis"),
    saved: figure("Calls saved"),
    wait: figure("Added latency"),
  };
  const breakers = h("ul", { class: "breakers", "aria-label": "Breaker of each instance" });
  const breakerTold = h("p", { class: "hint" });
  const total = chart({
    caption: "Admitted by all instances together, against the limit",
    unit: "requests a second",
    series: [
      { name: "offered", label: "Offered", kind: "soft" },
      { name: "limit", label: "Limit of all keys", kind: "limit" },
      { name: "admitted", label: "Admitted", kind: "admitted" },
    ],
  });
  const redis = chart({
    caption: "Calls to Redis, against one call a request",
    unit: "calls a second",
    series: [
      { name: "offered", label: "One call a request", kind: "soft" },
      { name: "calls", label: "Calls", kind: "accent" },
    ],
  });
  const latency = chart({
    caption: "Added latency",
    unit: "ms",
    series: [
      { name: "max", label: "Longest", kind: "soft" },
      { name: "p99", label: "99 of 100", kind: "warn" },
      { name: "p50", label: "Half", kind: "accent" },
    ],
  });
  const totalTable = table("The last seconds: requests a second", ["At", "Offered", "Limit", "Admitted", "Calls to Redis"]);
  const waitTable = table("The last seconds: added latency, in ms", ["At", "Half", "99 of 100", "Longest"]);
  const whoTable = table("Who answered, since the start", ["Answer from", "Requests", "Part"]);

  host.append(
    h("p", {},
      "Each gateway keeps a few units in hand (a lease), remembers denials, and stops asking when Redis is not well (a breaker). This is their engine itself, on a network that is played, in virtual time."),
    h("div", { class: "buttons", role: "group", "aria-label": "Scenarios" }, presetButtons),
    sentence,
    h("div", { class: "buttons run" }, runButton, skipButton, anewButton, field("Redis", outage), field("Pace", pace),
      h("p", { class: "clock" }, "Virtual time ", clock)),
    h("dl", { class: "figures" }, Object.values(figures).map(({ element }) => element)),
    h("div", { class: "bench" }, h("div", { class: "plots" },
      h("div", { class: "card" }, total.element, redis.element, details("The same as a table", totalTable.element)),
      h("div", { class: "card" }, latency.element, details("The same as a table", waitTable.element),
        h("h2", {}, "Breakers"), breakers, breakerTold, whoTable.element)),
    h("div", { class: "settings" },
      h("fieldset", {}, h("legend", {}, "Network and load"), sliders.latency.element, sliders.loss.element, sliders.offered.element),
      h("fieldset", {}, h("legend", {}, "Cluster and policy"),
        ["instances", "keys", "limit", "burst", "lease", "timeout"].map((name) => sliders[name].element),
        field("Without Redis (on_store_error)", onStoreError)))));

  function send(message) {
    worker?.postMessage(message);
  }

  function start() {
    if (!worker) {
      worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
      worker.onmessage = receive;
    }
    samples = [];
    all = sum([]);
    run += 1;
    outage.value = "";
    send({ start: options(settings), run, outageAt: preset?.outageAt, pace: isRunning ? Number(pace.value) : 0 });
    draw();
  }

  function receive({ data }) {
    if (data.error) {
      tell(`This cluster cannot be: ${data.error}`);
      return;
    }
    if (data.run !== run) {
      return;
    }
    all = sum([all, ...data.samples]);
    samples = [...samples, ...data.samples].slice(-SHOWN * 10 - POINT);
    if (samples.at(-1).isOut && outage.value === "") {
      outage.value = "refused"; // as the scenario has it
    }
    draw();
  }

  function setRunning(yes) {
    isRunning = yes;
    runButton.textContent = yes ? "Pause" : "Run";
    send({ pace: yes ? Number(pace.value) : 0 });
    if (!yes) {
      draw();
    }
  }

  function setOutage(kind) {
    outage.value = kind;
    send({ outage: kind === "" ? null : kind });
  }

  function change(name, value) {
    settings[name] = value;
    preset = null;
    remember();
    if (name === "instances") {
      start();
    } else {
      send({ set: running(settings) });
    }
  }

  function choose(one) {
    preset = one;
    Object.assign(settings, DEFAULTS, one.settings);
    for (const [name, control] of Object.entries(sliders)) {
      control.set(settings[name]);
    }
    onStoreError.value = settings.onStoreError;
    remember();
    start();
    setRunning(true);
  }

  function remember() {
    for (const button of presetButtons) {
      button.setAttribute("aria-pressed", String(button.dataset.preset === preset?.id));
    }
    page.setState(preset ? { preset: preset.id } : toState(settings));
  }

  function draw() {
    const now = samples.at(-1)?.now ?? 0;
    const lately = sum(samples.slice(-LATELY * 10));
    const last = samples.at(-1);
    const open = last ? last.breakers.filter((state) => state > 0).length : 0;
    clock.textContent = `${(now / 1000).toFixed(1)} s`;
    tell(samples.length === 0
      ? "Choose a scenario, or press Run."
      : tellCluster(settings, { open, isDown: last?.isOut }, { ...lately, seconds: Math.min(LATELY, now / 1000) }));
    tellFigures(last, lately);

    const points = pointsOf(samples, settings.limit * settings.keys);
    total.draw(points);
    redis.draw(points);
    latency.draw(points);
    if (!isRunning || points.at.length % 4 === 0) {
      tellTables(points);
    }
    tellBreakers(last?.breakers ?? new Uint8Array(settings.instances), open);
  }

  /** Shown always; spoken when it says something else, and not for each number that moves. */
  function tell(text) {
    sentence.textContent = text;
    const sense = text.replace(/[\d.,]+/g, "");
    if (sense !== spoken) {
      spoken = sense;
      page.announce(text);
    }
  }

  function tellFigures(last, lately) {
    const { admitted: hotAdmitted, allowed: hotAllowed } = last?.hottest ?? { admitted: 0, allowed: settings.burst };
    figures.admitted.value.textContent = count(hotAdmitted);
    figures.admitted.note.textContent = settings.keys > 1 ? `of the first key; ${count(all.admitted)} of all` : `of ${count(all.offered)} offered`;
    figures.allowed.value.textContent = count(hotAllowed);
    const over = hotAdmitted - hotAllowed;
    figures.allowed.note.textContent = over > 0 ? `${count(over)} more were admitted` : "burst + limit × time: kept";
    figures.allowed.element.classList.toggle("is-over", over > 0);
    figures.calls.value.textContent = count(all.calls);
    figures.calls.note.textContent = `${all.offered > 0 ? ((100 * all.calls) / all.offered).toFixed(1) : 0} for 100 requests`;
    figures.saved.value.textContent = count(Math.max(all.offered - all.calls, 0));
    figures.saved.note.textContent = `${percent(Math.max(all.offered - all.calls, 0), all.offered)} of one call a request`;
    figures.wait.value.textContent = `${ms(lately.p99)} ms`;
    figures.wait.note.textContent = `99 of 100 of the last ${LATELY} s; half ${ms(lately.p50)} ms`;
  }

  function tellTables(points) {
    const rows = points.at.map((at, i) => i).slice(-ROWS).reverse();
    const round = (value) => Math.round(value);
    totalTable.fill(rows.map((i) => [`${points.at[i].toFixed(1)} s`, round(points.offered[i]), round(points.limit[i]), round(points.admitted[i]), round(points.calls[i])]));
    waitTable.fill(rows.map((i) => [`${points.at[i].toFixed(1)} s`, ms(points.p50[i]), ms(points.p99[i]), ms(points.max[i])]));
    const answered = all.lease + all.asked + all.denial + all.fallback;
    whoTable.fill([
      ["A lease: units in hand", all.lease],
      ["Redis: it was asked", all.asked],
      ["Memory of a denial", all.denial],
      [`Nobody: decided without Redis (${settings.onStoreError})`, all.fallback],
    ].map(([who, requests]) => [who, requests, percent(requests, answered)]));
  }

  function tellBreakers(states, open) {
    while (breakers.children.length > states.length) {
      breakers.lastChild.remove();
    }
    states.forEach((state, i) => {
      const item = breakers.children[i] ?? breakers.appendChild(h("li"));
      if (item.dataset.state !== BREAKER[state]) {
        item.dataset.state = BREAKER[state];
        item.title = `Instance ${i + 1}: ${BREAKER[state]}`;
        item.replaceChildren(h("span", { class: "visually-hidden" }, item.title));
      }
    });
    const half = states.filter((state) => state === 1).length;
    breakerTold.textContent = open === 0
      ? `${states.length === 1 ? "It is" : `All ${states.length}`} closed: calls go to Redis.`
      : `${open - half} open (no call goes out), ${half} half-open (one probe is out), ${states.length - open} closed.`;
  }

  remember();
  start();
  return () => worker?.terminate();
}

const details = (title, ...inner) => h("details", {}, h("summary", {}, title), inner);
const ms = (value) => (value < 0.005 ? "0" : value.toFixed(value < 10 ? 2 : 1));

const COUNTS = ["offered", "admitted", "denied", "asked", "lease", "denial", "fallback", "calls"];

/** Counts of several samples together, and the worst of their quantiles. */
function sum(samples) {
  const all = { p50: 0, p99: 0, max: 0 };
  for (const name of COUNTS) {
    all[name] = samples.reduce((before, sample) => before + sample[name], 0);
  }
  for (const name of ["p50", "p99", "max"]) {
    all[name] = samples.reduce((before, sample) => Math.max(before, sample[name]), 0);
  }
  return all;
}

/** Columns of the plots: one point for each half second that is whole. */
function pointsOf(samples, limit) {
  const points = { at: [], limit: [], offered: [], admitted: [], calls: [], p50: [], p99: [], max: [] };
  const from = samples.findIndex((sample) => Math.round(sample.now / 100) % POINT === 1);
  for (let i = Math.max(from, 0); i + POINT <= samples.length; i += POINT) {
    const part = samples.slice(i, i + POINT);
    const all = sum(part);
    const seconds = (part.length * 100) / 1000;
    points.at.push(part.at(-1).now / 1000);
    points.limit.push(limit);
    for (const name of ["offered", "admitted", "calls"]) {
      points[name].push(all[name] / seconds);
    }
    for (const name of ["p50", "p99", "max"]) {
      points[name].push(all[name]);
    }
  }
  return points;
}

/** Only what differs from the default. */
const toState = (settings) => Object.fromEntries(Object.entries(settings)
  .filter(([name, value]) => value !== DEFAULTS[name]).map(([name, value]) => [name, String(value)]));
