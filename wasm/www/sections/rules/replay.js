// The replay: a log, whom the rules would have limited, and the report to take along. The job itself goes
// on without the section (job.js).

import { chart } from "../common/chart.js";
import { choice, count, download, field, h, percent, plural, table } from "../common/parts.js";
import { EXAMPLES } from "./examples.js";
import { STORY } from "./sample-log.js";
import { begin, cancel, CANCELLED, current, isRunning, label, told, watch } from "./job.js";

const FORMATS = [["auto", "told by its first lines"], ["combined", "combined (NGINX, Apache)"], ["json", "JSON lines"], ["csv", "CSV with a heading"]];

/** Rows of policies that are shown: a table of thousands would hold the page up. */
const POLICIES = 100;
const KEYS = 20;

export function mountReplay(host) {
  let rules = null;
  let shown = null; // the job whose result stands there

  const file = h("input", { type: "file", accept: ".log,.txt,.json,.jsonl,.csv,.gz,text/plain", onchange: () => file.files[0] && run({ file: file.files[0] }, file.files[0].name) });
  const pasted = h("textarea", { rows: "4", spellcheck: "false", placeholder: '192.0.2.1 - - [01/Nov/2026:02:10:00 +0000] "GET /api/search HTTP/1.1" 200 512 "-" "curl/8.5.0"' });
  const format = choice(FORMATS, "auto");
  const sample = h("button", { type: "button", class: "primary", onclick: () => run({ sample: true }, "last night's log (made up)") }, "Try last night's log");
  const paste = h("button", { type: "button", onclick: replayPasted }, "Replay what is pasted");
  const again = h("button", { type: "button", hidden: true, onclick: () => run(current().source, current().name) }, "Again with these rules");
  const stop = h("button", { type: "button", hidden: true, onclick: cancel }, "Cancel");
  const progress = h("progress", { max: "1", value: "0", hidden: true, "aria-label": "Part of the log that is read" });
  const status = h("p", { class: "told", role: "status" }, "No log yet.");
  const lines = h("span", { class: "hint number" }); // not in the status: that is read out
  const drop = h("div", { class: "drop",
    ondragover: (event) => { event.preventDefault(); drop.classList.add("is-over"); },
    ondragleave: () => drop.classList.remove("is-over"),
    ondrop: (event) => {
      event.preventDefault();
      drop.classList.remove("is-over");
      const given = event.dataTransfer.files[0];
      if (given) {
        run({ file: given }, given.name);
      }
    } },
    field("An access log, or drop it here (.gz too)", file),
    h("p", { class: "hint" }, "It is read by this page in your browser and goes nowhere else."));

  const stale = h("p", { class: "hint", hidden: true }, "The rules were changed since: these are the figures of the rules before.");
  const figures = h("dl", { class: "figures" });
  const timeline = chart({
    caption: "Requests over the time of the log (UTC)",
    unit: "a second",
    isTime: true,
    series: [
      { name: "admitted", label: "Admitted", kind: "admitted" },
      { name: "denied", label: "Denied", kind: "denied" },
    ],
  });
  const byPolicy = table("By policy", ["Policy", "Requests", "Admitted", "Denied", "Denied by others", "Would deny", "Unidentified"]);
  const morePolicies = h("p", { class: "hint" });
  const moreKeys = h("p", { class: "hint" });
  const byKey = table("By key, those denied most first", ["Policy", "Key", "Denied", "Admitted"]);
  const byTime = table("Over time (UTC)", ["From", "Admitted", "Denied", "Unidentified"]);
  const notes = h("ul", { class: "notices" });
  const faults = h("div");
  const story = h("details", { hidden: true }, h("summary", {}, "What was behind it"), h("ul", {}, STORY.map((text) => h("li", {}, text))));
  const results = h("div", { class: "results", hidden: true }, stale, figures, notes, faults, timeline.element,
    h("details", {}, h("summary", {}, "The same as a table"), byTime.element),
    byPolicy.element, morePolicies, byKey.element, moreKeys, story,
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: () => download("replay.json", "application/json", shown.done.json) }, "Download JSON"),
      h("button", { type: "button", onclick: () => download("replay.csv", "text/csv", shown.done.csv) }, "Download CSV")));

  host.append(
    h("p", {}, "Each request of the log is asked of the rules, with the log's own time as the clock."),
    h("div", { class: "two" },
      h("div", {}, h("p", {}, "A made-up night of a small shop, 100,000 lines:"), sample, drop),
      h("div", {}, field("Or paste lines of a log", pasted), field("Its format", format), paste)),
    h("div", { class: "buttons" }, again, stop, progress, lines), status, results);

  function replayPasted() {
    if (pasted.value.trim() === "") {
      status.textContent = "There is nothing to replay: paste some lines of a log first.";
      pasted.focus();
      return;
    }
    run({ text: pasted.value }, "the pasted log");
  }

  function run(source, name) {
    if (rules === null) {
      status.textContent = "The rules have errors: mend them first.";
      return;
    }
    begin({ name, source, rules, options: { format: format.value, buckets: 72 } });
  }

  /** The job as it stands. */
  function show() {
    const job = current();
    stop.hidden = progress.hidden = !isRunning();
    again.hidden = job === null || isRunning();
    if (job === null) {
      return;
    }
    if (status.textContent !== told(job)) {
      status.textContent = told(job);
    }
    lines.textContent = isRunning() && job.progress ? `${plural(job.progress.lines, "line")} …` : "";
    if (job.error && job.error !== CANCELLED) {
      results.hidden = true; // they are another log's
      shown = null;
    } else if (job.done && job !== shown) {
      shown = job;
      fill(job.done);
      story.hidden = !job.source.sample || job.rules !== EXAMPLES[0].text; // its numbers are of these rules
    } else if (job.progress?.size > 0) {
      progress.value = job.progress.bytes / job.progress.size;
    } else {
      progress.removeAttribute("value");
    }
    tellStale();
  }

  function tellStale() {
    stale.hidden = shown === null || rules === null || shown.rules === rules;
  }

  /** A part in each frame, so that the page does not stand still for all of it. */
  function fill({ report }) {
    const { requests, admitted, denied, unidentified, unlimited, logged_429: logged } = report;
    const figure = (name, value, note) => h("div", { class: "figure" }, h("dt", {}, name), h("dd", { class: "number" }, count(value)), h("dd", { class: "note" }, note));
    figures.replaceChildren(
      figure("Requests", requests, report.first ? `${when(report.first)} to ${when(report.last)} UTC` : ""),
      figure("Admitted", admitted, percent(admitted, requests)),
      figure("Denied", denied, percent(denied, requests)),
      figure("Unidentified", unidentified, "a required identity is missing: 401"),
      figure("Not limited", unlimited, "no policy applies"),
      figure("Logged as 429", logged, "in their own time"));
    notes.replaceChildren(...report.notes.map((note) => h("li", {}, note)));
    const { unreadable, first_unreadable: first, out_of_order: late } = report.faults;
    faults.replaceChildren(...(unreadable + late === 0 ? [] : [h("details", { open: true, class: "faults" },
      h("summary", {}, `Faults of the log: ${plural(unreadable, "line")} that cannot be read, ${count(late)} out of order`),
      h("ul", {}, first.map(({ line, reason }) => h("li", {}, `Line ${count(line)}: ${reason}`)),
        report.faults.first_out_of_order.map((line) => h("li", {}, `Line ${count(line)}: older than one before it`))))]));
    requestAnimationFrame(() => shown?.done.report === report && fillTables(report));
  }

  function fillTables(report) {
    const policies = [...report.policies].sort((a, b) => b.denied + b.would_deny - a.denied - a.would_deny).slice(0, POLICIES);
    byPolicy.fill(report.policies.filter((row) => policies.includes(row)).map((row) => [row.name, row.requests, row.admitted, row.denied, row.denied_by_others, row.would_deny, row.unidentified]));
    morePolicies.textContent = `Denied by others: this policy would have admitted it, and is not charged. Would deny: in a dry run.${
      report.policies.length > POLICIES ? ` Of ${count(report.policies.length)} policies the ${POLICIES} that deny most are shown; the downloads have all.` : ""}`;
    moreKeys.textContent = report.keys.length > KEYS ? `The first ${KEYS}; the downloads have ${report.keys.length}.` : "";
    byKey.fill(report.keys.slice(0, KEYS).map((row) => [row.policy, h("code", {}, label(row.key)), row.exact ? row.denied : `≤ ${count(row.denied)}`, row.exact ? row.admitted : `≥ ${count(row.admitted)}`]));
    byTime.fill(report.buckets.map((row) => [when(row.time, true), row.admitted, row.denied, row.unidentified]));
    requestAnimationFrame(() => shown?.done.report === report && drawTimeline(report));
  }

  function drawTimeline(report) {
    results.hidden = false;
    timeline.draw({
      at: report.buckets.map(({ time }) => Date.parse(time) / 1000),
      admitted: report.buckets.map((row) => row.admitted / report.bucket_seconds),
      denied: report.buckets.map((row) => row.denied / report.bucket_seconds),
    });
  }

  watch(show);
  show();
  return {
    setRules(given) {
      rules = given;
      sample.disabled = paste.disabled = again.disabled = rules === null;
      tellStale();
    },
    close: () => watch(null),
  };
}

const when = (iso, isLong) => (isLong ? iso.slice(0, 19).replace("T", " ") : iso.slice(11, 16));
