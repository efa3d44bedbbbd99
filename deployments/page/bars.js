/** Bars with their numbers as text: one row per bar. */

import { element, setText } from "./dom.js";

/** A figure of bars that keeps at least `rows` rows, so that nothing moves when numbers come. */
export class Bars {
  #rows = [];

  constructor(figure, rows) {
    this.list = element("ol", { class: "bars" });
    this.minimum = rows;
    figure.append(this.list);
    this.draw([]);
  }

  /** Draw [{label, share, text}]; `share` of the full width, between 0 and 1. */
  draw(bars) {
    const missing = Math.max(0, this.minimum - bars.length);
    const shown = [...bars, ...Array.from({ length: missing }, () => ({ label: "", share: 0, text: "" }))];
    while (this.#rows.length < shown.length) this.#rows.push(this.#row());
    while (this.#rows.length > shown.length) this.#rows.pop().row.remove();
    shown.forEach((bar, index) => show(this.#rows[index], bar));
  }

  #row() {
    const label = element("span", { class: "bar-label" });
    const fill = element("span", { class: "bar-fill" });
    const text = element("span", { class: "bar-text" });
    const row = element("li", {}, label, element("span", { class: "bar-track" }, fill), text);
    this.list.append(row);
    return { row, label, fill, text };
  }
}

function show({ row, label, fill, text }, bar) {
  row.classList.toggle("empty", bar.label === "");
  setText(label, bar.label);
  setText(text, bar.text);
  fill.style.width = `${Math.round(1000 * Math.max(0, Math.min(1, bar.share))) / 10}%`;
}
