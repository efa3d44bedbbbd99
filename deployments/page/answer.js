/** Shows a run: its text token by token, a legend with counts, steps, and figures. */

import { decodeRate } from "./comparison.js";
import { byId, element, setText } from "./dom.js";
import { count, duration, fixed, percent, rate, UNKNOWN } from "./format.js";
import { Facts } from "./tables.js";
import { KINDS } from "./tokens.js";

const FACTS = {
  Tokens: "Output tokens",
  Steps: "Decode steps of the target",
  "Tokens / step": "Output tokens after the first, per decode step",
  Acceptance: "Draft tokens accepted per draft token verified",
  "Tokens / s": "After the first token, as this browser saw it",
  "First token": "From the click to the first text, as this browser saw it",
  Drafter: "Which drafter proposed",
};
// The chart of steps is this high at least, counted in tokens.
const LEAST_HEIGHT = 7;

export class AnswerView {
  #largest = LEAST_HEIGHT;
  #numSteps = 0;

  constructor() {
    this.text = byId("answer");
    this.steps = byId("steps");
    this.facts = new Facts(byId("run-facts"), FACTS);
    this.legend = new Map(Object.entries(KINDS).map(([kind, told]) => [kind, legendItem(kind, told)]));
    byId("legend").append(...[...this.legend.values()].map(({ item }) => item));
    byId("show-rejected").addEventListener("change", ({ target }) =>
      this.text.classList.toggle("hide-rejected", !target.checked),
    );
  }

  clear() {
    this.text.replaceChildren();
    this.steps.replaceChildren();
    this.#largest = LEAST_HEIGHT;
    this.#numSteps = 0;
  }

  /** Append these tokens of the run, and bring its figures up to date. */
  draw(run, tokens) {
    this.text.append(...tokens.map(tokenElement));
    for (const [kind, { number }] of this.legend) setText(number, count(run.counts[kind]));
    this.#drawSteps(run.tally);
    this.facts.draw({
      Tokens: count(run.tokens),
      Steps: count(run.tally.steps),
      "Tokens / step": fixed(run.tally.tokensPerStep),
      Acceptance: percent(run.tally.acceptance),
      "Tokens / s": rate(decodeRate(run)),
      "First token": duration(run.firstTokenS),
      Drafter: run.drafter ?? UNKNOWN,
    });
  }

  #drawSteps({ byStep, tokensPerStep }) {
    const added = byStep.slice(this.#numSteps);
    this.#numSteps = byStep.length;
    this.#largest = Math.max(this.#largest, ...added.map(({ emitted }) => emitted));
    this.steps.style.setProperty("--largest", this.#largest);
    this.steps.append(...added.map(stepElement));
    this.steps.scrollLeft = this.steps.scrollWidth;
    const told = tokensPerStep === null ? "no steps yet" : `${fixed(tokensPerStep)} on average`;
    this.steps.setAttribute("aria-label", `Tokens per step: ${told}`);
  }
}

function tokenElement({ kind, text }) {
  const isRejected = kind === "rejected";
  return element(isRejected ? "del" : "span", {
    class: `token ${kind}`,
    "data-kind": kind,
    "data-newline": !isRejected && text.includes("\n") ? "" : null,
    title: `${kind}: ${KINDS[kind]}`,
    text: isRejected ? mark(text) : text,
  });
}

/** A rejected token: it is no part of the text, so that its white space must not show as such. */
function mark(text) {
  const visible = text.replaceAll("\n", "↵").trim();
  return visible === "" ? "␣" : visible;
}

function stepElement({ emitted, accepted, drafted }) {
  const parts = [
    ["accepted", accepted],
    [drafted > 0 ? "own" : "plain", emitted - accepted],
  ];
  const column = element("span", {
    class: "step",
    title: `${emitted} tokens: ${drafted} drafted, ${accepted} accepted`,
  });
  for (const [kind, height] of parts) {
    const part = element("span", { class: kind });
    part.style.setProperty("--n", height);
    column.prepend(part);
  }
  return column;
}

function legendItem(kind, told) {
  const number = element("span", { class: "value", text: "0" });
  const sample = element(kind === "rejected" ? "del" : "span", { class: `token ${kind}`, text: kind });
  return { number, item: element("li", { title: told }, sample, number) };
}
