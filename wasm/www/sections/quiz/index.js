// Questions with one right answer each. An answer is judged as it is chosen, with its reason; another
// may be chosen after it. What was chosen stands in the address.

import { h } from "../common/parts.js";
import { QUESTIONS } from "./questions.js";

const NONE = "-";

/**
 * @param {HTMLElement} host
 * @param {{ reading: Reading, setState: Function, announce: (text: string) => void }} page
 */
export function mount(host, page) {
  // One digit for each question, in order.
  const given = page.reading.text("a") ?? "";
  const chosen = QUESTIONS.map(({ answers }, i) => {
    const answer = Number.parseInt(given[i] ?? NONE, 10);
    return answer < answers.length ? answer : null;
  });
  if (given !== "" && given !== written(chosen)) {
    page.reading.refuse("a", `is not one answer, or “${NONE}”, for each of ${QUESTIONS.length} questions`);
  }
  const score = h("p", { class: "score" });
  const again = h("button", { type: "button", onclick: () => restart() }, "Begin anew");
  const questions = QUESTIONS.map((question, i) => questionView(question, i, chosen[i], (answer) => {
    chosen[i] = answer;
    save();
    const isRight = answer === question.right;
    page.announce(`${isRight ? "Right." : "Not quite."} ${question.answers[answer][1]}`);
  }));
  host.append(h("div", { class: "quiz-head buttons" }, score, again), questions.map(({ element }) => element).reduce((list, element) => {
    list.append(element);
    return list;
  }, h("ol", { class: "questions" })));

  function save() {
    const answered = chosen.filter((answer) => answer !== null).length;
    const right = chosen.filter((answer, i) => answer === QUESTIONS[i].right).length;
    score.textContent = answered === 0 ? `${QUESTIONS.length} questions`
      : `${right} of ${QUESTIONS.length} right${answered < QUESTIONS.length ? `, ${QUESTIONS.length - answered} to go` : ""}`;
    again.hidden = answered === 0;
    page.setState({ a: answered === 0 ? "" : written(chosen) });
  }

  function restart() {
    chosen.fill(null);
    questions.forEach(({ show }) => show(null));
    save();
    questions[0].focus();
    page.announce("All answers are taken back.");
  }

  save();
}

const written = (chosen) => chosen.map((answer) => answer ?? NONE).join("");

function questionView({ id, question, answers, right, see }, number, chosen, onChoose) {
  const verdict = h("strong");
  const reason = h("p", {});
  const reasonBox = h("div", { class: "told reason", hidden: true }, h("p", {}, verdict, " "), reason,
    h("p", {}, h("a", { class: "button", href: `#${see[1]}` }, see[0])));
  const labels = answers.map(([text], i) => {
    const input = h("input", { type: "radio", name: `question-${id}`, value: i, onchange: () => { show(i); onChoose(i); } });
    return { input, element: h("label", {}, input, h("span", {}, text)) };
  });
  const element = h("li", { class: "card question", "data-question": id },
    h("fieldset", {}, h("legend", {}, h("span", { class: "hint" }, `${number + 1}. `), question), labels.map((label) => label.element)), reasonBox);

  function show(answer) {
    labels.forEach(({ input, element: label }, i) => {
      input.checked = i === answer;
      label.removeAttribute("data-answer");
      if (i === answer) {
        label.dataset.answer = i === right ? "right" : "wrong";
      }
    });
    reasonBox.hidden = answer === null;
    if (answer !== null) {
      verdict.textContent = answer === right ? "Right." : "Not quite.";
      reasonBox.dataset.state = answer === right ? "right" : "wrong";
      reason.textContent = answers[answer][1];
    }
  }
  show(chosen);
  return { element, show, focus: () => labels[0].input.focus() };
}
