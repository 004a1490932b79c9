// A number to set: by a slider for the feel, by a field for the exact value.

import { h } from "./parts.js";

let made = 0;

/**
 * @param {{ label: string, unit?: string | Node, min: number, max: number, value: number, integer?: boolean,
 *           scale?: "linear" | "log", step?: number, hint?: string, onChange: (value: number) => void }} options
 *        a logarithmic scale begins at `min`, or at 0 when that is 0; `step` is the slider's, not the field's
 */
export function knob({ label, unit = "", min, max, value, integer = true, scale = "linear", step = 1, hint, onChange }) {
  const id = `knob-${++made}`;
  const stops = 200;
  const isLog = scale === "log";
  const low = min > 0 ? min : integer ? 1 : 0.1;
  const first = min > 0 ? 0 : 1; // with 0 on a logarithmic scale, 0 is a stop of its own
  const toStop = (number) => number < low ? 0 : first + ((stops - first) * Math.log(number / low)) / Math.log(max / low);
  const fromStop = (stop) => stop < first ? 0 : low * (max / low) ** ((stop - first) / (stops - first));
  let now = value;

  const range = h("input", {
    type: "range", id: `${id}-range`, "aria-label": label, tabindex: "0",
    min: isLog ? 0 : min, max: isLog ? stops : max, step: isLog ? 1 : step,
    oninput: () => take(isLog ? rounded(fromStop(range.valueAsNumber)) : range.valueAsNumber, range),
  });
  const field = h("input", {
    type: "number", id, min, max, step: integer ? 1 : "any", inputmode: integer ? "numeric" : "decimal",
    "aria-describedby": `${id}-error${hint ? ` ${id}-hint` : ""}`,
    oninput: () => take(field.valueAsNumber, field),
    onblur: () => show(null),
  });
  const error = h("p", { class: "error", id: `${id}-error` });
  const element = h("div", { class: "knob" },
    h("label", { for: id }, label), h("span", { class: "value" }, field, unit && h("span", { class: "unit" }, unit)),
    range, hint && h("p", { class: "hint", id: `${id}-hint` }, hint), error);

  function rounded(number) {
    const size = 10 ** Math.max(Math.floor(Math.log10(Math.max(number, 1e-9))) - 1, integer ? 0 : -1);
    return Math.min(Math.max(Number((Math.round(number / size) * size).toPrecision(12)), min), max);
  }
  function take(number, from) {
    const isLegal = Number.isFinite(number) && number >= min && number <= max && (!integer || Number.isInteger(number));
    field.setAttribute("aria-invalid", String(!isLegal));
    error.textContent = isLegal ? "" : `${integer ? "A whole number" : "A number"} from ${min} to ${max.toLocaleString("en")}.`;
    if (isLegal && number !== now) {
      now = number;
      show(from);
      onChange(number);
    }
  }
  function show(except) {
    if (except !== field) {
      field.value = String(now);
      field.setAttribute("aria-invalid", "false");
      error.textContent = "";
    }
    if (except !== range) {
      range.value = String(isLog ? Math.round(toStop(now)) : now);
    }
    range.setAttribute("aria-valuetext", `${now.toLocaleString("en")}${typeof unit === "string" ? ` ${unit}` : ""}`.trim());
  }
  show(null);
  return {
    element, field, range,
    value: () => now,
    /** Shows another value; tells nobody. */
    set(number) {
      now = number;
      show(null);
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

/** Copies the address of the page as it is now. */
export function shareButton(page) {
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
      page.announce(told);
      setTimeout(() => { button.textContent = "Share link"; }, 2500);
    },
  }, "Share link");
  return button;
}
