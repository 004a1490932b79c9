// The replay: a log, whom the rules would have limited, and the report to take along.

import { chart } from "../common/chart.js";
import { choice, count, download, field, h, percent, table } from "../common/parts.js";

const FORMATS = [["auto", "told by its first lines"], ["combined", "combined (NGINX, Apache)"], ["json", "JSON lines"], ["csv", "CSV with a heading"]];

export function mountReplay(host) {
  let rules = null;
  let worker = null;
  let last = null; // the source that was read last
  let result = null;

  const file = h("input", { type: "file", accept: ".log,.txt,.json,.jsonl,.csv,.gz,text/plain", onchange: () => file.files[0] && run({ file: file.files[0] }, file.files[0].name) });
  const pasted = h("textarea", { rows: "4", spellcheck: "false", placeholder: '192.0.2.1 - - [01/Nov/2026:02:10:00 +0000] "GET /api/search HTTP/1.1" 200 512 "-" "curl/8.5.0"' });
  const format = choice(FORMATS, "auto");
  const sample = h("button", { type: "button", class: "primary", onclick: () => run({ sample: true }, "last night's log (made up)") }, "Try last night's log");
  const paste = h("button", { type: "button", onclick: replayPasted }, "Replay what is pasted");
  const again = h("button", { type: "button", hidden: true, onclick: () => last && run(last.source, last.name) }, "Again with these rules");
  const cancel = h("button", { type: "button", hidden: true, onclick: () => stop("Cancelled.") }, "Cancel");
  const progress = h("progress", { max: "1", value: "0", hidden: true, "aria-label": "Part of the log that is read" });
  const status = h("p", { class: "told", role: "status" }, "No log yet.");
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
  const byKey = table("By key, those denied most first", ["Policy", "Key", "Denied", "Admitted"]);
  const byTime = table("Over time (UTC)", ["From", "Admitted", "Denied", "Unidentified"]);
  const notes = h("ul", { class: "notices" });
  const faults = h("div");
  const results = h("div", { class: "results", hidden: true }, figures, notes, faults, timeline.element,
    h("details", {}, h("summary", {}, "The same as a table"), byTime.element),
    byPolicy.element, byKey.element,
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: () => download("replay.json", "application/json", result.json) }, "Download JSON"),
      h("button", { type: "button", onclick: () => download("replay.csv", "text/csv", result.csv) }, "Download CSV")));

  host.append(
    h("p", {}, "Each request of the log is asked of the rules, with the log's own time as the clock."),
    h("div", { class: "two" },
      h("div", {}, h("p", {}, "A made-up night of a small shop, 100,000 lines:"), sample, drop),
      h("div", {}, field("Or paste lines of a log", pasted), field("Its format", format), paste)),
    h("div", { class: "buttons" }, again, cancel, progress), status, results);

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
    stop();
    last = { source, name };
    worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }) => receive(data, name);
    worker.onerror = (event) => stop(`The replay ended: ${event.message ?? "it could not be started"}`);
    worker.postMessage({ rules, source, options: { format: format.value, buckets: 72 } });
    cancel.hidden = progress.hidden = false;
    progress.removeAttribute("value");
    status.textContent = `Reading ${name} …`;
  }

  function receive(data, name) {
    if (data.error) {
      results.hidden = true; // they are another log's
      stop(`${name}: ${data.error}`);
    } else if (data.report) {
      result = data;
      stop();
      show(data, name);
    } else {
      progress.value = data.size > 0 ? data.bytes / data.size : 0;
      status.textContent = `${count(data.lines)} lines …`;
    }
  }

  function stop(why) {
    worker?.terminate();
    worker = null;
    cancel.hidden = progress.hidden = true;
    again.hidden = last === null;
    if (why) {
      status.textContent = why;
    }
  }

  function show({ report, lines, ms }, name) {
    const { requests, admitted, denied, unidentified, unlimited, logged_429: logged } = report;
    const worst = report.keys.filter((key) => key.denied > 0).slice(0, 3);
    status.textContent = requests === 0
      ? `${name}: no line could be read as a request.`
      : `${count(denied)} of ${count(requests)} requests would have been denied (${percent(denied, requests)}).${worst.length > 0
        ? ` Most: ${worst.map((key) => `${label(key.key)}, ${count(key.denied)} times by policy ${key.policy}`).join("; ")}.` : ""} ${count(lines)} lines in ${Math.round(ms)} ms.`;
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
      h("summary", {}, `Faults of the log: ${count(unreadable)} lines that cannot be read, ${count(late)} out of order`),
      h("ul", {}, first.map(({ line, reason }) => h("li", {}, `Line ${count(line)}: ${reason}`)),
        report.faults.first_out_of_order.map((line) => h("li", {}, `Line ${count(line)}: older than one before it`))))]));
    byPolicy.fill(report.policies.map((row) => [row.name, row.requests, row.admitted, row.denied, row.denied_by_others, row.would_deny, row.unidentified]));
    byKey.fill(report.keys.slice(0, 20).map((row) => [row.policy, h("code", {}, label(row.key)), row.exact ? row.denied : `≤ ${count(row.denied)}`, row.exact ? row.admitted : `≥ ${count(row.admitted)}`]));
    byTime.fill(report.buckets.map((row) => [when(row.time, true), row.admitted, row.denied, row.unidentified]));
    results.hidden = false;
    timeline.draw({
      at: report.buckets.map(({ time }) => Date.parse(time) / 1000),
      admitted: report.buckets.map((row) => row.admitted / report.bucket_seconds),
      denied: report.buckets.map((row) => row.denied / report.bucket_seconds),
    });
  }

  return {
    setRules(given) {
      rules = given;
      sample.disabled = paste.disabled = again.disabled = rules === null;
    },
    close: () => worker?.terminate(),
  };
}

const label = (key) => key.map(({ part, value }) => `${part}=${value}`).join(" ");
const when = (iso, isLong) => (isLong ? iso.slice(0, 19).replace("T", " ") : iso.slice(11, 16));
