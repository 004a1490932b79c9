// The same traffic through all algorithms. Clients that are denied may come again, so that even the
// traffic differs in the end: what an algorithm denies now it is asked for later.
//
// One algorithm is played at a time, with the page breathing in between.

import init, { algorithms, Limit, Traffic } from "../../pkg/compare.js";
import { knob, segmented, shareButton } from "../common/knob.js";
import { choice, count, field, h, table } from "../common/parts.js";
import { lane } from "./lane.js";
import { CHOICE, CHOICES, FIELDS, NOTES, PRESETS, TITLES } from "./presets.js";
import { byClient, ms, tell } from "./tell.js";

const UNITS = [["s", "per second"], ["m", "per minute"], ["h", "per hour"]];
const OF_LIMIT = { min: 1, max: 10_000 };
/** The preset that shows the most at a glance. */
const FIRST = "window_boundary";
const STEPS = 120;
/** First attempts that a page plays without being felt. */
const MOST = 100_000;
/** ms from the last change until it is played. */
const PAUSE = 120;

export async function mount(host, page) {
  await init();
  const { reading } = page;
  const named = reading.oneOf("preset", PRESETS.map(({ id }) => id), FIRST);
  let preset = PRESETS.find(({ id }) => id === named);
  let options = optionsOf(preset);                       // of the traffic, all of them
  let settings = settingsOf(preset);
  for (const field of FIELDS) {
    options[field.name] = reading.number(field.name, field, options[field.name]);
  }
  for (const { name, options: all } of CHOICES) {
    options[name] = reading.oneOf(name, all.map(([id]) => id), options[name]);
  }
  options.pair = reading.oneOf("pair", ["0", "1"], options.pair ? "1" : "0") === "1";
  settings.limit = reading.number("limit", OF_LIMIT, settings.limit);
  settings.capacity = reading.number("capacity", OF_LIMIT, settings.capacity);
  settings.unit = reading.oneOf("unit", UNITS.map(([id]) => id), settings.unit);
  settings.key = reading.oneOf("key", ["all", "client"], settings.key);
  let looked = reading.oneOf("clients_of", algorithms(), "token_bucket");

  // ---- controls
  const presetButtons = PRESETS.map((one) => h("button", {
    type: "button", "data-preset": one.id, title: one.hint, onclick: () => { choose(one); play(); },
  }, one.title));
  const presetHint = h("p", { class: "hint" });
  const unit = choice(UNITS, settings.unit, (value) => { settings.unit = value; later(); });
  unit.setAttribute("aria-label", "The limit is per");
  const limit = knob({ label: "Limit", unit, ...OF_LIMIT, scale: "log", value: settings.limit, onChange: (value) => { settings.limit = value; later(); } });
  const burst = knob({ label: "Burst", unit: "at once", ...OF_LIMIT, scale: "log", value: settings.capacity,
    hint: "Of the token bucket; of the leaky bucket, how many may wait. Windows and logs have none.", onChange: (value) => { settings.capacity = value; later(); } });
  const key = segmented("Who shares a limit", [["all", "One limit for all"], ["client", "One for each client"]], settings.key, (value) => { settings.key = value; later(); });
  const fields = FIELDS.map((one) => ({ ...one, knob: knob({ ...one, scale: one.max > 100 ? "log" : "linear", step: one.integer === false ? 0.1 : 1,
    value: options[one.name], onChange: (value) => { options[one.name] = value; later(); } }) }));
  const choices = CHOICES.map((one) => ({ ...one, select: choice(one.options, options[one.name], (value) => { options[one.name] = value; later(); }) }));
  const pair = h("input", { type: "checkbox", onchange: () => { options.pair = pair.checked; later(); } });

  // ---- what is shown
  const sentences = h("ul", { class: "sentences" });
  const wrong = h("p", { class: "error", role: "alert" });
  const lanes = algorithms().map((algorithm) => [algorithm, lane(algorithm, page)]);
  const summary = table("One row for each algorithm", ["Algorithm", "Admitted", "Denied", "Retries", "Gave up", "Delayed", "Longest delay", "Wait, 99 of 100 within", "Most in one period", "× limit", "Bytes a key"], { visible: false });
  const served = table("Attempts admitted, by client", ["Who", "One limit for all", "One for each client"], { visible: false });
  const lookedAt = choice(algorithms().map((algorithm) => [algorithm, TITLES[algorithm]]), looked, (value) => { looked = value; play(); });
  const steps = table("Attempts over time: admitted / denied", ["From", ...algorithms().map((algorithm) => TITLES[algorithm])], { visible: false });

  host.append(
    h("div", { class: "buttons presets", role: "group", "aria-label": "Traffic" }, presetButtons),
    presetHint,
    h("section", { class: "card", "aria-labelledby": "compare-shows" }, h("h2", { id: "compare-shows" }, "What it shows"), wrong, sentences,
      h("details", {}, h("summary", {}, "Which to take, and when"),
        h("dl", { class: "choice" }, algorithms().flatMap((algorithm) => [h("dt", {}, TITLES[algorithm]), h("dd", {}, CHOICE[algorithm])])))),
    h("section", { class: "card", "aria-label": "The limit and the traffic" },
      h("div", { class: "knobs" }, limit.element, burst.element),
      h("div", { class: "buttons" }, key.element, shareButton(page)),
      h("details", {}, h("summary", {}, "Change the traffic"),
        h("div", { class: "knobs" }, choices.map(({ label, select }) => field(label, select)),
          h("div", { class: "field" }, h("label", { class: "check" }, pair, " A burst before and one behind each instant")),
          fields.map((one) => one.knob.element)))),
    h("section", { class: "card", "aria-labelledby": "compare-plots" }, h("h2", { id: "compare-plots" }, "Over time"),
      h("ul", { class: "key" }, h("li", { "data-kind": "admitted" }, "admitted"), h("li", { "data-kind": "delayed" }, "admitted, but late"), h("li", { "data-kind": "denied" }, "denied"),
        h("li", { "data-kind": "limit" }, "the limit")),
      h("div", { class: "lanes" }, lanes.map(([, { element }]) => element))),
    h("section", { class: "card", "aria-labelledby": "compare-clients" }, h("h2", { id: "compare-clients" }, "Who gets through"),
      h("div", { class: "buttons" }, field("Algorithm", lookedAt)), served.element,
      h("p", { class: "hint" }, "The same traffic both ways. One limit for all is one bucket that everybody takes from; one for each client gives everybody the whole limit, so that together they may have as many times as much.")),
    h("section", { class: "card", "aria-labelledby": "compare-numbers" }, h("h2", { id: "compare-numbers" }, "All in numbers"), summary.element,
      h("p", { class: "hint" }, "Attempts, not requests, are counted as admitted and denied. Wait: from the first attempt of a request to its turn, of those admitted at last. Most in one period: of one key, in the worst period there was, wherever it began."),
      h("details", {}, h("summary", {}, "The numbers behind the plots"), steps.element)));

  // ---- doing
  let timer = 0;
  let run = 0;
  let hasShown = false;
  function later() {
    clearTimeout(timer);
    timer = setTimeout(play, PAUSE);
  }
  page.signal.addEventListener("abort", () => clearTimeout(timer));

  function choose(next) {
    preset = next;
    options = optionsOf(preset);
    settings = settingsOf(preset);
    limit.set(settings.limit);
    burst.set(settings.capacity);
    unit.value = settings.unit;
    key.set(settings.key);
    showTraffic();
  }
  function showTraffic() {
    fields.forEach(({ name, knob: { set } }) => set(options[name]));
    choices.forEach(({ name, select }) => { select.value = options[name]; });
    pair.checked = options.pair;
  }
  function save() {
    const [base, first] = [optionsOf(preset), settingsOf(preset)];
    const changed = Object.fromEntries([...FIELDS, ...CHOICES].filter(({ name }) => options[name] !== base[name]).map(({ name }) => [name, options[name]]));
    const own = Object.fromEntries(Object.entries(settings).filter(([name, value]) => value !== first[name]));
    page.setState({ preset: preset.id, ...own, ...changed, ...(options.pair === base.pair ? {} : { pair: options.pair ? 1 : 0 }),
      clients_of: looked === "token_bucket" ? "" : looked });
    for (const button of presetButtons) {
      button.setAttribute("aria-pressed", String(button.dataset.preset === preset.id));
    }
    const isChanged = Object.keys(changed).length + Object.keys(own).length > 0 || options.pair !== base.pair;
    presetHint.textContent = `${preset.title}: ${preset.hint}${isChanged ? "; changed by you" : ""}.`;
  }

  async function play() {
    clearTimeout(timer);
    const mine = ++run;
    save();
    let traffic = null;
    try {
      host.setAttribute("aria-busy", "true");
      traffic = new Traffic(options);
      if (traffic.requests > MOST) {
        throw new RangeError(`That is ${count(traffic.requests)} requests; the page plays at most ${count(MOST)}. Take a shorter time, or fewer.`);
      }
      const text = `${settings.limit}/${settings.unit} burst ${settings.capacity}`;
      const outcomes = [];
      const through = (algorithm, key) => {
        const of = new Limit(text, "token_bucket");
        const one = of.withAlgorithm(algorithm);
        try {
          return traffic.play(one, { key, steps: STEPS });
        } finally {
          of.free();
          one.free();
        }
      };
      for (const algorithm of algorithms()) {
        outcomes.push(through(algorithm, settings.key));
        await new Promise((resolve) => setTimeout(resolve));
        if (mine !== run || page.signal.aborted) {
          return;
        }
      }
      const ways = Object.fromEntries(["all", "client"].map((key) =>
        [key, key === settings.key ? outcomes[algorithms().indexOf(looked)] : through(looked, key)]));
      wrong.textContent = "";
      show(outcomes, ways);
    } catch (error) {
      wrong.textContent = `${error.message}${hasShown ? " What is shown is still what was before." : ""}`;
    } finally {
      traffic?.free();
      if (mine === run) {
        host.removeAttribute("aria-busy");
      }
    }
  }

  function show(outcomes, ways) {
    hasShown = true;
    served.fill(byClient(ways, options));
    const said = tell({ ...settings, burst: settings.capacity }, outcomes, options);
    sentences.replaceChildren(...said.map((text) => h("li", {}, text)));
    page.announce(said.slice(0, 3).join(" "));
    const seconds = { s: 1, m: 60, h: 3600 }[settings.unit];
    const top = outcomes.reduce((most, { admitted, denied }) => admitted.reduce((sum, value, i) => Math.max(sum, value + denied[i]), most), 0);
    const keys = outcomes[0].keys;
    outcomes.forEach((outcome, i) => lanes[i][1].draw(outcome, (settings.limit * outcome.step * keys) / seconds, top));
    summary.fill(outcomes.map(({ algorithm, totals, delay, wait, worst, memory }) => {
      const over = worst.admitted / settings.limit;
      return [h("span", { title: NOTES[algorithm] }, TITLES[algorithm]), totals.admitted, totals.denied, totals.retries, totals.gaveUp, totals.delayed, ms(delay.max), ms(wait.p99),
        worst.admitted, h("span", { class: over > 1 ? "over" : null }, over.toFixed(2)), memory];
    }));
    // Few enough rows to be read: one for each twentieth.
    const each = Math.ceil(outcomes[0].offered.length / 20);
    const rows = [];
    for (let from = 0; from < outcomes[0].offered.length; from += each) {
      const sum = (list) => list.slice(from, from + each).reduce((total, value) => total + value, 0);
      rows.push([`${(from * outcomes[0].step).toFixed(2)} s`, ...outcomes.map(({ admitted, denied }) => `${count(sum(admitted))} / ${count(sum(denied))}`)]);
    }
    steps.fill(rows);
  }

  showTraffic();
  await play();
}

/** What the package makes of a preset. */
function optionsOf({ id, base, traffic: own }) {
  const traffic = new Traffic({ preset: base ?? id, ...own });
  const { options } = traffic;
  traffic.free();
  return { ...options };
}

const settingsOf = ({ limit, unit, burst, key }) => ({ limit, unit, capacity: burst, key });
