/** Line charts: uPlot in this page's colours, with a legend that tells numbers in text. */

import { element, setText } from "./dom.js";
import { UNKNOWN } from "./format.js";
import uPlot from "./uplot/uPlot.esm.js";

const HEIGHT = 190;
// What is drawn before the first minute is over does not fill the width.
const LEAST_SPAN_S = 60;
const DASHES = [undefined, [6, 4], [2, 3], [10, 3, 2, 3], [12, 4], [4, 2]];
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DARK = matchMedia("(prefers-color-scheme: dark)");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * One figure with lines over time.
 *
 * `write` turns a value into text, `tick` a round one beside the axis.
 */
export class LineChart {
  #plot = null;
  #lines = [];
  #data = [[]];

  constructor(figure, write, tick = String) {
    this.figure = figure;
    this.write = write;
    this.tick = tick;
    this.legend = element("ul", { class: "legend" });
    this.canvas = element("div", { class: "plot", role: "img" });
    figure.append(this.legend, this.canvas);
    new ResizeObserver(() => this.#resize()).observe(this.canvas);
    DARK.addEventListener("change", () => this.#build());
  }

  /** Draw uPlot's columns `data` under the labels `lines`; other labels make a new plot. */
  draw(lines, data) {
    this.#data = data;
    const isSame = this.#plot && lines.join("\n") === this.#lines.join("\n");
    this.#lines = lines;
    if (isSame) this.#plot.setData(data);
    else this.#build();
    this.#tell();
  }

  #build() {
    this.#plot?.destroy();
    this.#plot = null;
    if (this.canvas.clientWidth === 0) return;
    this.#plot = new uPlot(this.#options(), this.#data, this.canvas);
    this.legend.replaceChildren(...this.#lines.map((label, index) => legendItem(label, index)));
    this.#tell();
  }

  #resize() {
    const width = this.canvas.clientWidth;
    if (width === 0) return;
    if (this.#plot === null) this.#build();
    else if (this.#plot.width !== width) this.#plot.setSize({ width, height: HEIGHT });
  }

  #options() {
    const axis = {
      stroke: colour("--quiet"),
      grid: { stroke: colour("--grid"), width: 1 },
      ticks: { show: false },
      font: `11px ${getComputedStyle(document.body).fontFamily}`,
    };
    return {
      width: this.canvas.clientWidth,
      height: HEIGHT,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: {
        x: { time: true, range: (_, low, high) => [Math.min(low, high - LEAST_SPAN_S), high] },
        y: { range: (_, low, high) => [0, high > 0 ? 1.1 * high : 1] },
      },
      axes: [
        { ...axis, size: 26, space: 90, values: (_, ticks) => ticks.map((t) => CLOCK.format(1000 * t)) },
        { ...axis, size: 58, space: 36, values: (_, ticks) => ticks.map(this.tick) },
      ],
      series: [{}, ...this.#lines.map((label, index) => series(label, index))],
      hooks: { setCursor: [() => this.#tell()] },
    };
  }

  /** Put the values under the cursor, or the latest, into the legend and the accessible name. */
  #tell() {
    const last = this.#data[0].length - 1;
    const at = this.#plot?.cursor.idx ?? last;
    const texts = this.#lines.map((_, index) => this.write(this.#data[index + 1]?.[at] ?? null));
    this.legend.querySelectorAll(".value").forEach((value, i) => setText(value, texts[i] ?? ""));
    const title = this.figure.querySelector("h3").textContent;
    const told = this.#lines.map((label, index) => `${label} ${texts[index]}`).join(", ");
    this.canvas.setAttribute("aria-label", `${title}: ${told}`);
  }
}

function series(label, index) {
  const stroke = colour(`--line-${index + 1}`);
  return { label, stroke, width: 2, dash: DASHES[index], spanGaps: false, points: { show: false } };
}

function legendItem(label, index) {
  return element(
    "li",
    {},
    element("span", { class: `swatch line-${index + 1}`, "aria-hidden": "true" }),
    element("span", { text: label }),
    element("span", { class: "value", text: UNKNOWN }),
  );
}
