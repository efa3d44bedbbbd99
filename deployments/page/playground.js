/** The playground: a form, one run at a time, its errors, and the comparison with plain decoding. */

import { AnswerView } from "./answer.js";
import { compare } from "./comparison.js";
import { isReproducible, requestOf, ServiceError, stream } from "./completion.js";
import { byId, element, setText } from "./dom.js";
import { times } from "./format.js";
import { keptKey } from "./keys.js";
import { Run } from "./run.js";

const TEXTS = ["endpoint", "prompt", "max_tokens", "temperature", "seed"];
// Request fields that have another name in the form; the rest go by their last part.
const CONTROLS = { messages: "prompt", speculation: "mode" };

export class Playground {
  #abort = null;
  #drafters = [];

  constructor() {
    this.form = byId("play");
    this.answer = new AnswerView();
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#start(() => this.#generate());
    });
    byId("compare").addEventListener("click", () => this.#start(() => this.#compare()));
    byId("stop").addEventListener("click", () => this.#abort?.abort());
    byId("mode").addEventListener("change", () => this.#enableControls());
    this.#enableControls();
  }

  /** The drafters to choose from. */
  offerDrafters(names) {
    if (names.join("\n") === this.#drafters.join("\n")) return;
    this.#drafters = names;
    const select = byId("drafter");
    const chosen = select.value;
    const options = names.map((name) => element("option", { value: name, text: name }));
    select.replaceChildren(element("option", { value: "", text: "Auto" }), ...options);
    if (names.includes(chosen)) select.value = chosen;
  }

  #values() {
    const field = (name) => this.form.elements[name].value;
    const speculation = { mode: field("mode"), k: field("k").trim(), drafter: field("drafter") };
    const texts = TEXTS.map((name) => [name, name === "prompt" ? field(name) : field(name).trim()]);
    return { ...Object.fromEntries(texts), speculation };
  }

  /** Run `work` with the buttons set for it; its errors are shown. */
  async #start(work) {
    if (this.#abort !== null) return;
    this.#abort = new AbortController();
    this.#enableControls();
    this.#forgetError();
    setText(byId("outcome"), "");
    try {
      await work();
    } catch (error) {
      if (error.name === "AbortError") setText(byId("outcome"), "Stopped.");
      else this.#show(error);
    } finally {
      this.#abort = null;
      this.#enableControls();
    }
  }

  async #generate() {
    const run = await this.#shownRun(this.#values());
    setText(byId("outcome"), ending(run));
  }

  async #compare() {
    const values = this.#values();
    const run = await this.#shownRun(values);
    setText(byId("outcome"), "Now the same without speculation…");
    const plain = await this.#run({ ...values, speculation: { mode: "off", k: "", drafter: "" } });
    setText(byId("outcome"), outcomeOf(compare(run, plain), isReproducible(values)));
  }

  async #shownRun(values) {
    this.answer.clear();
    return this.#run(values, (run, tokens) => this.answer.draw(run, tokens));
  }

  async #run(values, onTokens = () => {}) {
    const run = new Run(performance.now());
    onTokens(run, []);
    const key = this.form.elements.api_key.value || keptKey();
    for await (const chunk of stream(requestOf(values), key, this.#abort.signal)) {
      onTokens(run, run.add(chunk, performance.now()));
    }
    return run;
  }

  #show(error) {
    const told = error instanceof ServiceError ? error : { message: "The gateway does not answer.", field: null };
    if (!(error instanceof ServiceError)) console.warn(error);
    const box = byId("error");
    const field = told.field && !told.message.startsWith(told.field) ? `${told.field}: ` : "";
    box.textContent = `${field}${told.message}`;
    box.hidden = false;
    if (told.status === 401) byId("api-key-field").hidden = false;
    const control = this.#controlOf(told.status === 401 ? "api_key" : told.field);
    control?.setAttribute("aria-invalid", "true");
    control?.setAttribute("aria-describedby", "error");
    control?.focus();
  }

  #controlOf(field) {
    if (field === null) return null;
    const name = field.split(".").at(-1);
    return this.form.elements[CONTROLS[name] ?? name] ?? null;
  }

  #forgetError() {
    byId("error").hidden = true;
    for (const control of this.form.querySelectorAll("[aria-invalid]")) {
      control.removeAttribute("aria-invalid");
      control.removeAttribute("aria-describedby");
    }
  }

  #enableControls() {
    const isRunning = this.#abort !== null;
    const mode = byId("mode").value;
    byId("run").disabled = isRunning;
    byId("compare").disabled = isRunning || mode === "off";
    byId("stop").disabled = !isRunning;
    byId("k").disabled = mode !== "fixed";
    byId("drafter").disabled = mode === "off";
  }
}

function ending({ finishReason, metrics }) {
  const disabled = metrics?.speculative_decoding?.disabled_reason;
  const why = disabled ? ` Without speculation: ${disabled.replaceAll("_", " ")}.` : "";
  return `Done (${finishReason ?? "no end was told"}).${why}`;
}

function outcomeOf({ same, differsAt, ratio }, reproducible) {
  const speed = ratio === null ? "" : ` Speed after the first token: ${times(ratio)} that of plain decoding, in one run each.`;
  if (!reproducible) {
    return `Texts are drawn anew without a seed, so they are not compared.${speed}`;
  }
  const text = same
    ? "The text is identical with speculation off."
    : `The texts differ from character ${differsAt + 1} on.`;
  return `${text}${speed}`;
}
