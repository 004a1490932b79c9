// Elements: made by name, with what stands in them. No text is ever read as HTML.

/**
 * An element. `attributes` are set as attributes, but for functions, which listen, and booleans.
 * @param {string} name
 * @param {Record<string, unknown>} [attributes]
 * @param {...(Node | string | number | null | undefined | false | Array)} children
 */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(key.replace(/^on/, ""), value);
    } else if (value === true) {
      element.setAttribute(key, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(key, String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const counted = new Intl.NumberFormat("en");
/** A count with its thousands apart. */
export const count = (value) => counted.format(value);
/** A count of things: "1 line", "2 lines". */
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;
/** A number and its unit; a unit may be a name of things, as "units" is, or none, as "ms". */
export const measured = (value, unit) => `${count(value)}${unit && (/^%/.test(unit) ? unit : ` ${value === 1 ? unit.replace(/^(unit|request|token)s$/, "$1") : unit}`)}`;
/** A part of a whole, in percent. */
export const percent = (part, whole) => {
  const value = whole > 0 ? (100 * part) / whole : 0;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)}%`;
};

let made = 0;
const fresh = (name) => `${name}-${++made}`;

/** A slider with its name, value and unit. `scale` is "log" where small values matter as much as large ones. */
export function slider({ label, hint, unit = "", min, max, step = 1, value, scale = "linear", onInput }) {
  const id = fresh("slider");
  const isLog = scale === "log";
  const low = min === 0 ? 0 : Math.log(min);
  const stops = 100;
  // With 0 on a logarithmic scale, 0 is the first stop and 1 the second.
  const toStop = (number) => isLog
    ? (min === 0 ? (number === 0 ? 0 : 1 + ((stops - 1) * Math.log(number)) / Math.log(max)) : (stops * (Math.log(number) - low)) / (Math.log(max) - low))
    : number;
  const fromStop = (stop) => isLog
    ? (min === 0 ? (stop === 0 ? 0 : nice(Math.exp(((stop - 1) / (stops - 1)) * Math.log(max)), step)) : nice(Math.exp(low + (stop / stops) * (Math.log(max) - low)), step))
    : stop;
  let now = value;
  const shown = (number) => measured(number, unit);
  const output = h("output", { for: id });
  const input = h("input", {
    type: "range", id, min: isLog ? 0 : min, max: isLog ? stops : max, step: isLog ? 1 : step,
    "aria-describedby": hint ? `${id}-hint` : null,
    oninput: () => {
      now = Math.min(Math.max(fromStop(input.valueAsNumber), min), max);
      show();
      onInput?.(now);
    },
  });
  function show() {
    output.textContent = shown(now);
    input.setAttribute("aria-valuetext", shown(now));
  }
  const element = h("div", { class: "slider" },
    h("label", { for: id }, label), output, input, hint && h("p", { class: "hint", id: `${id}-hint` }, hint));
  const set = (number) => {
    now = number;
    input.value = String(Math.round(toStop(number) / (isLog ? 1 : step)) * (isLog ? 1 : step));
    show();
  };
  set(value);
  return { element, set, input, value: () => now };
}

/** Two leading digits, as people choose numbers. */
function nice(value, step) {
  const size = 10 ** Math.max(Math.floor(Math.log10(value)) - 1, Math.log10(step));
  return Number((Math.round(value / size) * size).toPrecision(12));
}

/** A field with its name. */
export function field(label, control, hint) {
  const id = fresh("field");
  control.id = id;
  if (hint) {
    control.setAttribute("aria-describedby", `${id}-hint`);
  }
  return h("div", { class: "field" }, h("label", { for: id }, label), control,
    hint && h("p", { class: "hint", id: `${id}-hint` }, hint));
}

/** A choice of few. */
export function choice(options, value, onChange) {
  const select = h("select", { onchange: () => onChange?.(select.value) },
    options.map(([id, title]) => h("option", { value: id }, title)));
  select.value = value;
  return select;
}

/** A table in a frame that scrolls, with its name; `fill` puts rows in it. Numbers stand to the right. */
export function table(caption, headings, { empty = "Nothing yet.", visible = true } = {}) {
  const body = h("tbody");
  const heads = headings.map((heading) => h("th", { scope: "col" }, heading));
  const element = h("div", { class: "table-scroll", role: "region", tabindex: "0", "aria-label": caption },
    h("table", {}, h("caption", { class: visible ? null : "visually-hidden" }, caption),
      h("thead", {}, h("tr", {}, heads)), body));
  const fill = (rows) => {
    const made = rows.map((row) => h("tr", {}, row.map((cell, index) => {
      const isNumber = typeof cell === "number";
      heads[index].classList.toggle("number", isNumber);
      const content = isNumber ? count(cell) : cell;
      return h(index === 0 ? "th" : "td", { scope: index === 0 ? "row" : null, class: isNumber ? "number" : null }, content);
    })));
    body.replaceChildren(...(made.length > 0 ? made : [h("tr", { class: "empty" }, h("td", { colspan: headings.length }, empty))]));
  };
  fill([]);
  return { element, fill };
}

/** Gives the browser's user a file. */
export function download(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
