// A plot over time, and its legend; the same numbers stand in a table that the section makes.

import uPlot from "../../lib/uplot.js";
import { h } from "./parts.js";

const HEIGHT = 190;

/** Of a series: its colour, the width of its line (0: dots), its dashes. */
const KINDS = {
  soft: ["--soft", 1, [4, 4]],
  limit: ["--ink", 1.5, [8, 4]],
  admitted: ["--admitted", 2],
  denied: ["--denied", 2],
  warn: ["--warn", 2],
  accent: ["--accent", 2],
  dots: ["--admitted", 0],
  "dots-denied": ["--denied", 0],
};

/**
 * @param {{ caption: string, unit: string, series: { name: string, label: string, kind: keyof typeof KINDS, spans?: boolean }[],
 *           isTime?: boolean, isWhole?: boolean }} options `isTime`: the columns' `at` is seconds since 1970,
 *   not since the start; `isWhole`: values are counts; a series that `spans` goes on where it has no values
 * @returns {{ element: HTMLElement, draw: (columns: Record<string, (number | null)[]> & { at: number[] }) => void }}
 */
export function chart({ caption, unit, series, isTime = false, isWhole = false }) {
  const holder = h("div", { class: "plot-holder", role: "img", "aria-label": `${caption}, ${unit}; the same numbers are in the table` });
  const element = h("figure", { class: "plot" },
    h("figcaption", {}, caption, " ", h("span", { class: "hint" }, `(${unit})`)), holder);
  let plot = null;
  const colours = new Map(); // asked of the style once a theme, not in each frame
  const colour = (name) => {
    if (!colours.has(name)) {
      colours.set(name, getComputedStyle(element).getPropertyValue(name).trim());
    }
    return colours.get(name);
  };

  function make() {
    const axis = { stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false } };
    const at = isTime
      ? (tick) => new Date(tick * 1000).toISOString().slice(11, 16)
      : (tick) => `${tick} s`;
    const lines = series.map(({ label, kind, spans }) => {
      const [name, width, dash] = KINDS[kind];
      const stroke = () => colour(name);
      return width === 0
        ? { label, stroke, width, paths: () => null, points: { show: true, size: 6, width: 0, fill: stroke } }
        : { label, stroke, width, dash, spanGaps: spans, points: { show: false } };
    });
    plot = new uPlot({
      width: holder.clientWidth, height: HEIGHT,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      scales: { x: { time: isTime }, y: { range: (_, __, max) => [0, Math.max(max * 1.1, 1)] } },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map(at) },
        { ...axis, size: 56, ...(isWhole ? { incrs: [1, 2, 5, 10, 20, 50, 100] } : {}) },
      ],
      series: [{ label: "at" }, ...lines],
      legend: { show: true, live: false },
      cursor: { show: false },
    }, [[], ...series.map(() => [])], holder);
    new ResizeObserver(() => plot.setSize({ width: holder.clientWidth, height: HEIGHT })).observe(holder);
    document.addEventListener("lab:theme", repaint);
  }

  function repaint() {
    if (element.isConnected) {
      colours.clear();
      plot.redraw(false);
    } else {
      document.removeEventListener("lab:theme", repaint); // the section was left
    }
  }

  return {
    element,
    draw(columns) {
      if (!plot && element.isConnected && holder.clientWidth > 0) {
        make();
      }
      plot?.setData([columns.at, ...series.map(({ name }) => columns[name])]);
    },
  };
}
