// A number to set: by a slider for the feel, by a field for the exact value.
//
// What is typed and not legal stays in the field and is marked; beside it stands what would be legal, and
// which value is in force meanwhile: the last that was.

import { announce } from "../../app/announce.js";
import { h, measured } from "./parts.js";
import { isLegal, legal } from "./range.js";

let made = 0;

/**
 * A field for a number, and the place beside it where is told what is wrong with what is typed.
 * @param {{ label?: string, value: number, hintId?: string, onChange: (value: number) => void }
 *         & import("./range.js").Range} options with a `label` the field has that name
 */
export function numberField({ label, value, hintId, onChange, ...range }) {
  const id = `number-${++made}`;
  const { min, max, integer = true } = range;
  let now = value;
  const input = h("input", {
    type: "number", id, min, max, step: integer ? 1 : "any", inputmode: integer ? "numeric" : "decimal", "aria-label": label,
    "aria-describedby": `${id}-error${hintId ? ` ${hintId}` : ""}`, oninput: take,
  });
  const error = h("p", { class: "error", id: `${id}-error` });

  function take() {
    const number = input.valueAsNumber;
    if (!isLegal(range, number)) {
      const isEmpty = input.value === "" && !input.validity.badInput;
      const wrong = isEmpty ? `Here belongs ${legal(range)}` : `${shortened(input.value) || "This"} is not ${legal(range)}`;
      error.textContent = `${wrong}. ${now.toLocaleString("en")} stays in force.`;
      input.setAttribute("aria-invalid", "true");
      announce(error.textContent);
      return;
    }
    if (error.textContent !== "") {
      error.textContent = "";
      input.setAttribute("aria-invalid", "false");
    }
    if (number !== now) {
      now = number;
      onChange(number);
    }
  }
  /** Shows another value; tells nobody. */
  function set(number) {
    now = number;
    input.value = String(now);
    input.setAttribute("aria-invalid", "false");
    error.textContent = "";
  }
  set(value);
  return { id, input, error, set };
}

/** As a number of more digits than anybody reads is shown. */
const shortened = (text) => (text.length > 12 ? `${text.slice(0, 12)}…` : text);

/**
 * @param {{ label: string, unit?: string | Node, value: number, scale?: "linear" | "log", step?: number, hint?: string,
 *           onChange: (value: number) => void } & import("./range.js").Range} options
 *        a logarithmic scale begins at `min`, or at 0 when that is 0; `step` is the slider's, not the field's
 */
export function knob({ label, unit = "", value, scale = "linear", step = 1, hint, onChange, ...range }) {
  const id = `knob-${++made}`;
  const { min, max, integer = true } = range;
  const stops = 200;
  const isLog = scale === "log";
  const low = min > 0 ? min : integer ? 1 : 0.1;
  const first = min > 0 ? 0 : 1; // with 0 on a logarithmic scale, 0 is a stop of its own
  const toStop = (number) => number < low ? 0 : first + ((stops - first) * Math.log(number / low)) / Math.log(max / low);
  const fromStop = (stop) => stop < first ? 0 : low * (max / low) ** ((stop - first) / (stops - first));
  let now = value;

  const slider = h("input", {
    type: "range", id: `${id}-range`, "aria-label": label, tabindex: "0",
    min: isLog ? 0 : min, max: isLog ? stops : max, step: isLog ? 1 : step,
    oninput: () => slid(isLog ? rounded(fromStop(slider.valueAsNumber)) : slider.valueAsNumber),
  });
  const { id: fieldId, input: field, error, set: setField } = numberField({
    ...range, value, hintId: hint && `${id}-hint`,
    onChange(number) {
      now = number;
      setSlider();
      onChange(number);
    },
  });
  const element = h("div", { class: "knob" },
    h("label", { for: fieldId }, label), h("span", { class: "value" }, field, unit && h("span", { class: "unit" }, unit)),
    slider, hint && h("p", { class: "hint", id: `${id}-hint` }, hint), error);

  function rounded(number) {
    const size = 10 ** Math.max(Math.floor(Math.log10(Math.max(number, 1e-9))) - 1, integer ? 0 : -1);
    return Math.min(Math.max(Number((Math.round(number / size) * size).toPrecision(12)), min), max);
  }
  function slid(number) {
    setField(number); // what is typed and not legal goes, too
    if (number !== now) {
      now = number;
      tellSlider();
      onChange(number);
    }
  }
  function setSlider() {
    slider.value = String(isLog ? Math.round(toStop(now)) : now);
    tellSlider();
  }
  function tellSlider() {
    slider.setAttribute("aria-valuetext", measured(now, typeof unit === "string" ? unit : ""));
  }
  setSlider();
  return {
    element,
    /** Shows another value; tells nobody. */
    set(number) {
      now = number;
      setField(number);
      setSlider();
    },
  };
}

/** A choice of few that is seen whole: buttons, of which one is pressed. */
export function segmented(label, options, value, onChange) {
  const buttons = options.map(([id, title]) =>
    h("button", { type: "button", "data-value": id, onclick: () => { set(id); onChange(id); } }, title));
  function set(id) {
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(button.dataset.value === id));
    }
  }
  set(value);
  return { element: h("div", { class: "segmented", role: "group", "aria-label": label }, buttons), set };
}

/** Copies the address of the page as it is now. `lacking` says what of it no address holds, or nothing. */
export function shareButton(page, lacking = () => "") {
  const note = h("span", { class: "hint" });
  const button = h("button", {
    type: "button", class: "share",
    onclick: async () => {
      document.dispatchEvent(new CustomEvent("lab:share")); // the address is brought up to date
      let told = "Link copied";
      try {
        await navigator.clipboard.writeText(location.href);
      } catch {
        told = "The link is in the address bar";
      }
      button.textContent = told;
      note.textContent = lacking();
      page.announce(`${told}. ${note.textContent}`);
      setTimeout(() => { button.textContent = "Share link"; }, 2500);
    },
  }, "Share link");
  return h("span", { class: "noted" }, button, note);
}
