/** Tables and lists of facts whose cells change in place. */

import { element, setText } from "./dom.js";

/**
 * A table of the rows of a list. `columns` are [{head, cell(item) -> text, tone(item)?}].
 *
 * On a narrow screen every cell stands in a line of its own, after its column's head.
 */
export class Table {
  constructor(table, columns, emptyText) {
    this.columns = columns;
    this.body = element("tbody");
    this.empty = element("p", { class: "quiet", text: emptyText });
    const heads = columns.map(({ head }) => element("th", { scope: "col", text: head }));
    table.append(element("thead", {}, element("tr", {}, ...heads)), this.body);
    table.after(this.empty);
  }

  draw(items) {
    this.empty.hidden = items.length > 0;
    while (this.body.rows.length < items.length) this.body.append(this.#row());
    while (this.body.rows.length > items.length) this.body.rows[items.length].remove();
    items.forEach((item, index) => this.#fill(this.body.rows[index], item));
  }

  #row() {
    const cells = this.columns.map(({ head }, index) =>
      element(index === 0 ? "th" : "td", { "data-head": head, ...(index === 0 ? { scope: "row" } : {}) }),
    );
    return element("tr", {}, ...cells);
  }

  #fill(row, item) {
    this.columns.forEach(({ cell, tone }, index) => {
      setText(row.cells[index], cell(item));
      if (tone) row.cells[index].dataset.tone = tone(item);
    });
  }
}

/** A list of names and values: `names` in order, and how each is explained on hover. */
export class Facts {
  #values = new Map();

  constructor(list, names) {
    for (const [name, explained] of Object.entries(names)) {
      const value = element("dd", { text: "–" });
      this.#values.set(name, value);
      list.append(element("div", { title: explained }, element("dt", { text: name }), value));
    }
  }

  /** Set the values of these names. */
  draw(values) {
    for (const [name, text] of Object.entries(values)) setText(this.#values.get(name), text);
  }
}
