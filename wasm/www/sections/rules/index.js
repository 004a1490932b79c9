// The section Rules: a rules file, one request, and a log. The three parts are in files of their own;
// here is what they share: the text, and whether it is right.

import { choice, download, field, h } from "../common/parts.js";
import { EXAMPLES, REQUESTS } from "./examples.js";
import { mountReplay } from "./replay.js";
import { mountTester } from "./tester.js";

const LABEL = "Rules file, JSON. Tab leaves the editor.";

/** Bytes of a rules file that this page opens, and characters of one that its address carries. */
const MOST_FILE = 2_000_000;
const MOST_LINK = 8000;

/** Rules that no address carries, until the page is closed. */
let draft = null;

/**
 * @param {HTMLElement} host an empty element
 * @param {{ reading: Reading, setState: (state: Record<string, string>) => void,
 *           announce: (text: string) => void }} page
 */
export async function mount(host, page) {
  const given = page.reading.text("rules");
  const named = page.reading.oneOf("example", EXAMPLES.map(({ id }) => id), null);
  const isOwn = given !== undefined || (named === null && draft !== null);
  const first = EXAMPLES.find(({ id }) => id === named) ?? EXAMPLES[0];
  let text = given ?? (isOwn ? draft : first.text);
  let errors = [];
  let isLinked = true;

  const example = choice([...EXAMPLES.map(({ id, title }) => [id, title]), ["", "My own"]],
    isOwn ? "" : first.id, (id) => start(id));
  const box = h("div", { class: "editor" });
  const verdict = h("p", { class: "verdict", role: "status" });
  const list = h("ol", { class: "errors" });
  const notices = h("ul", { class: "notices" });
  const opened = h("input", { type: "file", accept: ".json,application/json", class: "visually-hidden", tabindex: "-1", "aria-hidden": "true",
    onchange: async () => opened.files[0] && open(opened.files[0]) });
  const testerHost = h("div");
  const replayHost = h("div");
  const logTitle = h("h2", { id: "rules-log", tabindex: "-1" }, "A log");
  host.append(
    h("p", {}, "Rules, requests and logs stay in this browser: this page sends them nowhere. ",
      h("button", { type: "button", class: "link", onclick: () => { logTitle.scrollIntoView(); logTitle.focus({ preventScroll: true }); } }, "To the log, below")),
    h("div", { class: "two" },
      h("section", { class: "card", "aria-labelledby": "rules-file" },
        h("h2", { id: "rules-file" }, "Rules file"),
        field("Start from", example), box, verdict, list, notices,
        h("div", { class: "buttons" },
          h("button", { type: "button", onclick: () => opened.click() }, "Open a file"), opened,
          h("button", { type: "button", onclick: () => download("rules.json", "application/json", text) }, "Download the rules"))),
      h("section", { class: "card", "aria-labelledby": "rules-request" }, h("h2", { id: "rules-request" }, "One request"), testerHost)),
    h("section", { "aria-labelledby": "rules-log" }, logTitle, replayHost));

  const [{ openEditor }, core] = await Promise.all([import("./editor.js"), import("../../pkg/full.js")]);
  await core.default();
  const { Rules } = core;
  const tester = mountTester(testerHost, Rules);
  const replay = mountReplay(replayHost);
  const editor = openEditor(box, { text, label: LABEL, onChange: changed });
  check();
  if (!isOwn) {
    tester.ask(REQUESTS[first.id]);
  }

  async function open(file) {
    const given = file.size <= MOST_FILE ? await file.text() : null;
    opened.value = ""; // the same file may be chosen again
    if (given === null || /[\0\uFFFD]/.test(given)) {
      verdict.textContent = given === null
        ? `${file.name} is larger than ${MOST_FILE / 1_000_000} MB: this page does not open it. The rules are as they were.`
        : `${file.name} is not a text file. The rules are as they were.`;
      verdict.dataset.state = "wrong";
      return;
    }
    editor.setText(given);
  }

  function start(id) {
    const chosen = EXAMPLES.find((one) => one.id === id);
    if (chosen) {
      editor.setText(chosen.text);
      example.value = id;
      page.setState({ example: id });
      tester.ask(REQUESTS[id]);
    }
  }

  function changed(now) {
    text = now;
    example.value = EXAMPLES.find((one) => one.text === text)?.id ?? "";
    isLinked = text.length <= MOST_LINK;
    draft = isLinked ? null : text;
    page.setState(example.value !== "" ? { example: example.value } : isLinked ? { rules: text } : {});
    check();
  }

  function check() {
    errors = Rules.errors(text);
    let told = [];
    if (errors.length === 0) {
      const rules = new Rules(text);
      told = rules.notices();
      const names = rules.policies().map(({ name }) => name);
      verdict.textContent = `The rules are right: ${names.length === 1 ? "one policy" : `${names.length} policies`}, ${names.join(", ")}.`;
      rules.free();
    } else {
      verdict.textContent = errors.length === 1 ? "One error." : `${errors.length} errors.`;
    }
    if (!isLinked) {
      verdict.textContent += " They are too long for the address: a link does not carry them, and they are gone when the page is closed.";
    }
    verdict.dataset.state = errors.length === 0 ? "right" : "wrong";
    list.replaceChildren(...errors.map(({ line, column, path, message }) => h("li", {},
      h("button", { type: "button", class: "link", onclick: () => editor.goTo(line, column) }, `Line ${line}, column ${column}`),
      `: ${path ? `${path}: ` : ""}${message}`)));
    notices.replaceChildren(...told.map(({ policy, message }) => h("li", {}, policy ? `${policy}: ${message}` : message)));
    editor.mark(errors.map((error) => ({ ...error, severity: "error" })));
    tester.setRules(errors.length === 0 ? text : null);
    replay.setRules(errors.length === 0 ? text : null);
  }

  return () => {
    editor.close();
    tester.close();
    replay.close();
  };
}
