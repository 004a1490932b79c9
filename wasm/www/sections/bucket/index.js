// One token bucket to touch. The clock runs with the page's, stands, or is moved by hand; whatever
// happens in between two frames is drawn once, in the next.

import init from "../../pkg/tollgate.js";
import { chart } from "../common/chart.js";
import { knob, numberField, segmented, shareButton } from "../common/knob.js";
import { choice, count, field, h } from "../common/parts.js";
import { bucketPicture } from "./draw.js";
import { CAPACITY, MOST, readScript, RECENT, REFILL, SECOND, START, Timeline } from "./timeline.js";
import { clock, wait, whyPane } from "./why.js";

const UNITS = [["s", "per second"], ["m", "per minute"], ["h", "per hour"]];
const FAMILIES = [["x-ratelimit", "X-RateLimit-…"], ["ratelimit-03", "RateLimit-… (draft 03)"], ["ratelimit", "RateLimit (draft 10)"], ["off", "Retry-After alone"]];
const PRESETS = [
  ["The burst of ten", "capacity 5, 2/s: ten at once, a second, ten again", { capacity: 5, refill: 2, unit: "s", script: "b10_w1_b10" }],
  ["At the rate", "2 a second into 2/s: none is ever rejected", { capacity: 5, refill: 2, unit: "s", script: `b1_${"w0.5_b1_".repeat(14)}w0.5` }],
  ["Twice the rate", "4 a second into 2/s: the burst goes first, then every second one", { capacity: 5, refill: 2, unit: "s", script: `b1_${"w0.25_b1_".repeat(28)}w0.25` }],
  ["No burst", "capacity 1: one at a time, evenly", { capacity: 1, refill: 2, unit: "s", script: "b3_w0.25_b1_w0.25_b1_w0.5_b2" }],
  ["100/s burst 200", "as an API might have it", { capacity: 200, refill: 100, unit: "s", script: "b250_w1_b150_w0.5_b60" }],
];
const BURST = { min: 1, max: 1000 };
const STREAM = { min: 1, max: 200 };
/** Seconds that the curve shows. */
const SPAN = 12;
/** ms between two changes of what is read, while requests stream. */
const READING = 125;

const DEFAULT = { capacity: 5, refill: 2, unit: "s" };

export async function mount(host, page) {
  await init();
  const { reading } = page;
  const settings = {
    capacity: reading.number("capacity", CAPACITY, DEFAULT.capacity),
    refill: reading.number("refill", REFILL, DEFAULT.refill),
    unit: reading.oneOf("unit", UNITS.map(([unit]) => unit), DEFAULT.unit),
  };
  let family = reading.oneOf("headers", FAMILIES.map(([id]) => id), "x-ratelimit");
  let burst = reading.number("burst", BURST, 10);
  let perSecond = reading.number("stream", STREAM, 8);
  const given = reading.text("do") ? readScript(reading.state.do) : null;
  if (given?.wrong) {
    reading.refuse("do", `${given.wrong}; what came before it was done`, given.rest);
  }
  const spec = () => ({ rate: `${settings.refill}/${settings.unit}`, burst: settings.capacity });

  const line = new Timeline(spec());
  const firstClock = reading.oneOf("clock", ["run", "paused"], null);
  let isRunning = firstClock !== "paused" && !matchMedia("(prefers-reduced-motion: reduce)").matches;
  let streaming = null;  // { due: requests that are owed, by the clock }
  let chosen = null;     // the request that is looked at; null: the latest
  let first = null;      // what the scenario began with, for the address

  // ---- what is shown
  const picture = bucketPicture();
  const figure = (name, label) => {
    const value = h("dd", { class: "number", "data-figure": name }, "0");
    const term = h("dt", {}, label);
    return { element: h("div", { class: "figure" }, term, value), value, label: term };
  };
  const figures = {
    tokens: figure("tokens", "Tokens now"), allowed: figure("allowed", "Allowed"), rejected: figure("rejected", "Rejected"),
    next: figure("next", "A whole token in"), full: figure("full", "Full in"),
  };
  figures.allowed.value.classList.add("yes");
  figures.rejected.value.classList.add("no");
  const curve = chart({
    caption: "Tokens over time", unit: "tokens; dots are requests, where they left the bucket",
    series: [
      { name: "capacity", label: "capacity", kind: "soft", spans: true }, { name: "tokens", label: "tokens", kind: "accent" },
      { name: "allowed", label: "allowed", kind: "dots" }, { name: "rejected", label: "rejected", kind: "dots-denied" }],
  });
  const why = whyPane();
  const log = h("ol", { class: "log", reversed: true, "aria-label": "Requests, the latest first" });
  const logHint = h("p", { class: "hint" });
  const pastNote = h("p", { class: "hint past" });
  const stateOfClock = h("output", { class: "number clock-now", "data-figure": "clock" });

  // ---- controls
  const capacity = knob({ label: "Capacity", unit: "tokens", ...CAPACITY, scale: "log", value: settings.capacity,
    hint: "What a full bucket admits at once: the burst.", onChange: (value) => { settings.capacity = value; changed(); } });
  const unit = choice(UNITS, settings.unit, (value) => { settings.unit = value; changed(); });
  unit.setAttribute("aria-label", "Refill is per");
  const refill = knob({ label: "Refill", unit, ...REFILL, scale: "log", value: settings.refill,
    hint: "What is admitted for ever: the rate.", onChange: (value) => { settings.refill = value; changed(); } });
  const burstField = numberField({ label: "Requests of a burst", ...BURST, value: burst, onChange: (value) => { burst = value; save(); } });
  burstField.input.classList.add("short");
  const sendOne = h("button", { type: "button", class: "primary", onclick: () => send(1) }, "Send one");
  const sendBurst = h("button", { type: "button", onclick: () => send(burst) }, "Send a burst of");
  const streamField = knob({ label: "Streams at", unit: "a second", ...STREAM, scale: "log", value: perSecond,
    onChange: (value) => { perSecond = value; save(); } });
  let held = false;
  const hold = h("button", {
    type: "button", class: "hold", "aria-pressed": "false", "aria-describedby": "hold-hint",
    onpointerdown: (event) => { hold.setPointerCapture(event.pointerId); held = true; stream(true); },
    onpointerup: () => stream(false), onpointercancel: () => stream(false), onlostpointercapture: () => stream(false),
    onkeydown: (event) => { if ((event.key === " " || event.key === "Enter") && !event.repeat) { held = true; stream(true); } },
    onkeyup: () => stream(false), onblur: () => stream(false),
    oncontextmenu: (event) => event.preventDefault(),
    // A screen reader clicks, and holds nothing: it starts, and it stops.
    onclick: () => { if (!held) { stream(!streaming); } held = false; },
  }, "Hold to stream");
  const run = segmented("Clock", [["run", "Real time"], ["pause", "Paused"]], isRunning ? "run" : "pause", (id) => {
    isRunning = id === "run";
    save();
  });
  const step = (label, nanos) => h("button", { type: "button", onclick: () => {
    pause();
    line.pass(nanos, true);
    follow();
    page.announce(`${clock(line.now)}: ${tokensNow()}`);
  } }, label);
  const scrubber = h("input", { type: "range", class: "scrubber", min: 0, max: 10_000, step: 10, value: 0, "aria-label": "Time",
    oninput: () => {
      pause();
      line.visit(START + BigInt(scrubber.value) * 1_000_000n);
      follow();
      page.announce(`${clock(line.now)}: ${tokensNow()}`);
    } });
  const now = h("button", { type: "button", hidden: true, onclick: () => { line.visit(line.end); follow(); } }, "Back to the end");

  const fullNote = h("p", { class: "error" });

  const presetHint = h("p", { class: "hint" }, "A scenario is played at once, and the clock stands after it.");
  const presets = h("div", { class: "buttons presets", role: "group", "aria-label": "Scenarios" }, PRESETS.map(([name, hint, preset]) =>
    h("button", { type: "button", title: hint, onclick: () => {
      load(preset);
      presetHint.textContent = `${name}: ${hint}. Drag the time back to see it happen.`;
      page.announce(`${name}: ${hint}. ${counts()}`);
    } }, name)));
  const reset = h("button", { type: "button", onclick: () => { restart(); save(); presetHint.textContent = ""; page.announce("Reset: the bucket is full."); } }, "Reset");
  const families = choice(FAMILIES, family, (value) => { family = value; dirty = readable = true; save(); });

  host.append(
    presets, presetHint,
    h("div", { class: "bucket-grid" },
      h("section", { class: "card bucket-view", "aria-label": "The bucket" }, picture.element,
        h("dl", { class: "figures" }, Object.values(figures).map(({ element }) => element))),
      h("section", { class: "card bucket-controls", "aria-label": "Controls" },
        h("div", { class: "knobs" }, capacity.element, refill.element),
        h("h2", {}, "Send requests"),
        h("div", { class: "buttons" }, sendOne, h("span", { class: "joined" }, sendBurst, burstField.input), hold), burstField.error, fullNote,
        streamField.element,
        h("p", { class: "hint", id: "hold-hint" }, "Held with the pointer, or with the space bar. A screen reader’s click starts it and stops it."),
        h("h2", {}, "Clock"),
        h("div", { class: "buttons" }, run.element, step("+0.1 s", SECOND / 10n), step("+1 s", SECOND), stateOfClock, now),
        scrubber, pastNote,
        h("div", { class: "buttons" }, reset, shareButton(page, () => (line.sent > 0 && line.script === null ? "It holds the settings; what was done is too long for it." : ""))))),
    h("section", { class: "card" }, curve.element),
    h("div", { class: "two" },
      h("section", { class: "card", "aria-labelledby": "log-title" },
        h("h2", { id: "log-title" }, "Requests"), logHint, log),
      h("section", { class: "card" }, h("h2", {}, "The answer, and why"), field("Header fields", families), why.element)),
    h("p", { class: "hint" }, "The bucket stores one instant for each key and counts nothing in the background: the refill is worked out when somebody asks. In the header fields, Limit is the capacity, Remaining the whole tokens left, and Reset the seconds until the bucket is full again, rounded up."),
  );

  // ---- what may happen
  let dirty = true;      // something is to be drawn
  let readable = true;   // what is read (log, reasons) is to be renewed at once
  const tokensNow = () => `${line.state.tokens.toFixed(2)} tokens`;
  const counts = () => `${count(line.allowed)} allowed, ${count(line.asked - line.allowed)} rejected`;

  function pause() {
    if (isRunning) {
      isRunning = false;
      run.set("pause");
    }
  }
  function follow() {
    chosen = null;
    dirty = readable = true;
    save();
  }
  function send(requests) {
    const before = line.allowed;
    const sent = line.send(requests);
    if (sent > 0) {
      picture.asked(line.latest.decision.allowed);
    }
    follow();
    const allowed = line.allowed - before;
    page.announce(`${sent === 1 ? (allowed ? "Allowed" : "Rejected") : `${count(sent)} sent: ${count(allowed)} allowed, ${count(sent - allowed)} rejected`}. ${tokensNow()} left.`);
  }
  function stream(isOn) {
    if (isOn === Boolean(streaming)) {
      return;
    }
    streaming = isOn ? { due: 1 } : null;
    hold.setAttribute("aria-pressed", String(isOn));
    if (isOn) {
      chosen = null;
      if (!isRunning) {
        isRunning = true;
        run.set("run");
      }
    } else {
      readable = dirty = true;
      save();
      page.announce(counts());
    }
  }
  function changed() {
    if (line.sent === 0) {
      restart();
    } else {
      line.change(spec());
    }
    follow();
  }
  function restart() {
    line.reset(spec());
    first = { ...settings };
    chosen = null;
    dirty = readable = true;
  }
  function load(preset) {
    Object.assign(settings, { capacity: preset.capacity, refill: preset.refill, unit: preset.unit });
    capacity.set(settings.capacity);
    refill.set(settings.refill);
    unit.value = settings.unit;
    pause();
    restart();
    line.play(preset.steps ?? readScript(preset.script).steps);
    const { burst: held, rate } = line.spec;
    const [per, unitNow] = rate.split("/");
    Object.assign(settings, { capacity: held, refill: Number(per), unit: unitNow });
    capacity.set(settings.capacity);
    refill.set(settings.refill);
    unit.value = settings.unit;
    follow();
  }
  function save() {
    const script = line.sent > 0 ? line.script : "";
    page.setState({
      ...(script === null ? settings : first), do: script,
      burst: burst === 10 ? "" : burst, stream: perSecond === 8 ? "" : perSecond,
      headers: family === "x-ratelimit" ? "" : family, clock: isRunning ? "" : "paused",
    });
  }

  // ---- one frame
  let at = null;
  let lastRead = 0;
  let lastSaved = 0;
  function frame(time) {
    if (page.signal.aborted) {
      return;
    }
    const passed = at === null ? 0 : Math.min(time - at, 250); // a tab that slept does not catch up
    at = time;
    if (isRunning && passed > 0) {
      advance(BigInt(Math.round(passed * 1e6)));
      dirty = true;
    }
    if (dirty) {
      draw(time);
    } else {
      picture.draw(line.state.tokens, line.limit.burst);
    }
    requestAnimationFrame(frame);
  }
  function advance(nanos) {
    if (!streaming || line.isFull) {
      line.pass(nanos);
      return;
    }
    // Requests of a stream fall where they are due, not where frames begin.
    const gap = SECOND / BigInt(perSecond);
    let left = nanos;
    streaming.wait ??= 0n;
    while (streaming.wait <= left && !line.isFull) {
      line.pass(streaming.wait);
      left -= streaming.wait;
      line.send();
      picture.asked(line.latest.decision.allowed);
      streaming.wait = gap;
    }
    streaming.wait -= left;
    line.pass(left);
  }

  function draw(time) {
    dirty = false;
    const { tokens } = line.state;
    picture.draw(tokens, line.limit.burst);
    text(figures.tokens.value, tokens.toFixed(2));
    text(figures.tokens.label, `Tokens now, of ${count(line.limit.burst)}`);
    text(figures.allowed.value, count(line.allowed));
    text(figures.rejected.value, count(line.asked - line.allowed));
    const next = line.bucket.peek(line.now);
    text(figures.next.value, next.allowed ? "now" : wait(next.retryAfter));
    text(figures.full.value, tokens >= line.limit.burst ? "now" : wait(next.resetAfter));
    text(stateOfClock, clock(line.now));
    drawCurve();
    if (time - lastRead > READING || readable) {
      lastRead = time;
      readable = false;
      const ms = (instant) => Number((instant - START) / 1_000_000n);
      scrubber.max = String(Math.ceil((ms(line.end) + 2000) / 10_000) * 10_000);
      scrubber.value = String(ms(line.now));
      scrubber.setAttribute("aria-valuetext", clock(line.now));
      read();
    }
    if (isRunning && time - lastSaved > 1000 && line.sent > 0) {
      lastSaved = time;
      save();
    }
  }
  function drawCurve() {
    const to = Math.max(Number(line.now - START) / 1e9, SPAN);
    const from = to - SPAN;
    const columns = { at: [from], capacity: [line.limit.burst], tokens: [null], allowed: [null], rejected: [null] };
    const put = (at, capacity, tokens, mark) => {
      columns.at.push(at);
      columns.capacity.push(capacity);
      columns.tokens.push(tokens);
      columns.allowed.push(mark === 1 ? tokens : null);
      columns.rejected.push(mark === 2 ? tokens : null);
    };
    const { points } = line;
    let first = points.length;
    while (first > 0 && points[first - 1].seconds >= from) {
      first -= 1;
    }
    for (let i = Math.max(first - 1, 0); i < points.length; i++) {
      const { at, seconds, tokens, mark } = points[i];
      if (at > line.now) {
        break;
      }
      put(Math.max(seconds, from), null, tokens, mark);
    }
    if (line.isPast) {
      put(Math.max(Number(line.now - START) / 1e9, from), null, line.state.tokens, 0); // in the midst of a line
    }
    put(to, line.limit.burst, null, 0);
    curve.draw(columns);
  }

  // ---- the log: rows are made once, put on top, and taken off below
  let rows = [];       // of requests, the latest first: { request, element }
  function read() {
    const upTo = line.asked;
    const latest = line.recent.slice(-RECENT).reverse();
    const known = new Map(rows.map((row) => [row.request, row]));
    rows = latest.map((request) => known.get(request) ?? { request, element: logRow(request) });
    const isSame = log.childElementCount === rows.length && log.firstElementChild === rows[0]?.element && log.lastElementChild === rows.at(-1)?.element;
    if (!isSame) {
      const keep = new Set(rows.map(({ element }) => element));
      for (const child of [...log.children]) {
        if (!keep.has(child)) {
          child.remove();
        }
      }
      let before = log.firstElementChild;
      for (const { element } of rows) {
        if (element === before) {
          before = before.nextElementSibling;
        } else {
          log.insertBefore(element, before);
        }
      }
      log.setAttribute("start", String(rows[0]?.request.n ?? 0));
    }
    text(logHint, upTo === 0 ? "Nothing was sent yet." : `${count(upTo)} sent${upTo > RECENT ? `, the latest ${RECENT} are listed` : ""}. Choose one to see its answer.`);
    tellFull(line.isFull);
    text(pastNote, line.isPast ? "This is the past. Whoever sends from here changes what came later." : "");
    now.hidden = !line.isPast;
    const shown = chosen && chosen.n <= upTo ? chosen : line.latest;
    for (const { request, element } of rows) {
      element.firstElementChild.setAttribute("aria-current", String(request.n === shown?.n));
    }
    why.show(shown, shown && line.answer(shown, family));
  }
  /** Nothing more can be sent: the buttons say so, and why. */
  function tellFull(isFull) {
    if (sendOne.disabled === isFull) {
      return;
    }
    const hadFocus = [sendOne, sendBurst, hold].includes(document.activeElement);
    stream(false);
    sendOne.disabled = sendBurst.disabled = hold.disabled = isFull;
    fullNote.textContent = isFull ? `${count(MOST)} requests are as many as are kept: Reset begins anew, and the past can still be visited.` : "";
    if (isFull) {
      page.announce(fullNote.textContent);
      if (hadFocus) {
        reset.focus();
      }
    }
  }
  function logRow(request) {
    const { decision } = request;
    return h("li", {}, h("button", {
      type: "button", "data-status": decision.allowed ? 200 : 429,
      onclick: () => { chosen = request; readable = dirty = true; },
    },
    h("span", { class: "number" }, clock(request.at)),
    h("strong", { class: decision.allowed ? "yes" : "no" }, decision.allowed ? "200" : "429"),
    h("span", { class: "number" }, `${count(decision.remaining)} left`),
    h("span", { class: "hint" }, decision.allowed ? "" : `in ${wait(decision.retryAfter)}`)));
  }

  page.onTheme(() => { picture.measure(); dirty = true; });
  restart();
  if (given?.steps.length > 0) {
    load({ ...settings, steps: given.steps });
    isRunning = firstClock === "run";
    run.set(isRunning ? "run" : "pause");
  }
  draw(performance.now());
  requestAnimationFrame(frame);
  return () => line.free();
}

/** What stands in an element is only written where it is another. */
const written = new WeakMap();
function text(element, value) {
  if (written.get(element) !== value) {
    written.set(element, value);
    element.textContent = value;
  }
}
