// A plot over time, and its legend; the same numbers stand in a table that the section makes.

import uPlot from "../../lib/uplot.js";
import { h } from "./parts.js";

const HEIGHT = 190;

/**
 * @param {{ caption: string, unit: string, series: { name: string, label: string, kind: string }[] }} options
 * @returns {{ element: HTMLElement, draw: (columns: Record<string, number[]> & { at: number[] }) => void }}
 */
export function chart({ caption, unit, series, isTime = false }) {
  const holder = h("div", { class: "plot-holder", role: "img", "aria-label": `${caption}, ${unit}; the same numbers are in the table` });
  const element = h("figure", { class: "plot" }, h("figcaption", {}, caption, " ", h("span", { class: "hint" }, `(${unit})`)), holder);
  let plot = null;
  let columns = null;
  const colour = (name) => getComputedStyle(element).getPropertyValue(name).trim();
  const KINDS = { soft: ["--soft", 1, [4, 4]], limit: ["--ink", 1.5, [8, 4]], admitted: ["--admitted", 2], denied: ["--denied", 2], warn: ["--warn", 2], accent: ["--accent", 2], dots: ["--admitted", 0], "dots-denied": ["--denied", 0] };
  function make() {
    const axis = () => ({ stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false } });
    plot = new uPlot({
      width: holder.clientWidth || 300, height: HEIGHT,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      scales: { x: { time: isTime }, y: { range: (_, __, max) => [0, Math.max(max * 1.1, 1)] } },
      axes: [isTime ? axis() : { ...axis(), values: (_, ticks) => ticks.map((tick) => `${tick} s`) }, { ...axis(), size: 56 }],
      series: [{ label: "at" }, ...series.map(({ label, kind }) => {
        const [name, width, dash] = KINDS[kind];
        return width === 0
          ? { label, stroke: () => colour(name), width: 0, paths: () => null, points: { show: true, size: 6, fill: () => colour(name) } }
          : { label, stroke: () => colour(name), width, dash, points: { show: false } };
      })],
      legend: { show: true, live: false }, cursor: { show: false },
    }, [[], ...series.map(() => [])], holder);
    new ResizeObserver(() => plot.setSize({ width: holder.clientWidth, height: HEIGHT })).observe(holder);
  }
  return {
    element,
    draw(given) {
      columns = given;
      if (!plot && element.isConnected) {
        make();
      }
      plot?.setData([columns.at, ...series.map(({ name }) => columns[name])]);
    },
  };
}
