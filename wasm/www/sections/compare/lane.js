// One algorithm's answers over time: admitted, admitted late and denied, one upon the other. All lanes
// have the same axes and one cursor.

import uPlot from "../../lib/uplot.js";
import { count, h } from "../common/parts.js";
import { NOTES, TITLES } from "./presets.js";

const HEIGHT = 130;
const sync = uPlot.sync("compare");

export function lane(algorithm, page) {
  const note = h("span", { class: "hint" }, NOTES[algorithm]);
  const canvas = h("div", { class: "canvas", role: "img", "aria-label": `${TITLES[algorithm]}: attempts over time; the numbers are in the tables below` });
  const element = h("figure", { class: "lane", "data-algorithm": algorithm }, h("figcaption", {}, TITLES[algorithm], note), canvas);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let plot = null;
  let outcome = null;
  let most = 1;

  const bars = uPlot.paths.bars({ size: [1, Infinity], align: 1, gap: 0 });
  const area = (label, name) => ({ label, fill: () => colour(name), stroke: () => colour(name), width: 0, paths: bars, points: { show: false } });
  function make() {
    const axis = { stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    plot = new uPlot({
      width: Math.max(canvas.clientWidth, 100), height: HEIGHT, padding: [8, 8, 0, 0],
      scales: { x: { time: false }, y: { range: () => [0, most] } },
      axes: [{ ...axis, size: 26, values: (_, ticks) => ticks.map((tick) => `${tick} s`) }, { ...axis, size: 44 }],
      // The sums, the largest first: each covers the lower part of the one before.
      series: [{ label: "at" }, area("denied", "--denied-area"), area("admitted late", "--delayed-area"), area("admitted", "--admitted-area"),
        { label: "the limit", stroke: () => colour("--ink"), width: 1.25, dash: [6, 4], points: { show: false } }],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false }, sync: { key: sync.key } },
      hooks: { setCursor: [(self) => tellAt(self.cursor.idx)] },
    }, [[], [], [], [], []], canvas);
    const observer = new ResizeObserver(() => plot.setSize({ width: Math.max(canvas.clientWidth, 100), height: HEIGHT }));
    observer.observe(canvas);
    page.onTheme(() => plot.redraw());
    page.signal.addEventListener("abort", () => { observer.disconnect(); plot.destroy(); });
  }

  function tellAt(index) {
    const isOn = Number.isInteger(index) && outcome && index < outcome.offered.length;
    note.textContent = isOn
      ? `from ${(index * outcome.step).toFixed(2)} s: ${count(outcome.admitted[index])} admitted${outcome.delayed[index] > 0 ? ` (${count(outcome.delayed[index])} late)` : ""}, ${count(outcome.denied[index])} denied`
      : NOTES[algorithm];
  }

  return {
    element,
    /** @param limitAStep what the limit admits in one step; `top`: of all lanes together */
    draw(next, limitAStep, top) {
      outcome = next;
      most = Math.max(top * 1.05, limitAStep * 1.2, 1);
      if (!plot) {
        make();
      }
      const at = Array.from(outcome.offered, (_, i) => i * outcome.step);
      const sums = [[], [], []];
      outcome.offered.forEach((_, i) => {
        const atOnce = outcome.admitted[i] - outcome.delayed[i];
        sums[2].push(atOnce);
        sums[1].push(outcome.admitted[i]);
        sums[0].push(outcome.admitted[i] + outcome.denied[i]);
      });
      plot.setData([at, ...sums, at.map(() => limitAStep)]);
    },
  };
}
