/**
 * From the steps of a stream to coloured tokens.
 *
 * A step is what the choice of one chunk carries as `specdec`. Its emitted tokens begin with the
 * accepted draft tokens; the last is the target's own.
 */

export const KINDS = {
  accepted: "drafted, and accepted by the target",
  recovered: "the target's own, in place of a rejected draft token",
  bonus: "the target's own, after all draft tokens were accepted",
  rejected: "drafted, and rejected by the target",
  plain: "written by the target alone: nothing was drafted here",
};

/** Kind of each emitted token of a step. */
export function kindsOfStep(step) {
  const drafted = step.draft_token_ids.length;
  const own = drafted === 0 ? "plain" : step.num_accepted_tokens === drafted ? "bonus" : "recovered";
  return step.token_ids.map((_, index) => (index < step.num_accepted_tokens ? "accepted" : own));
}

/** The tokens of a step in reading order: accepted, then rejected ones, then the target's own. */
export function tokensOfStep(step) {
  const emitted = kindsOfStep(step).map((kind, index) => ({ kind, text: step.tokens[index] ?? "" }));
  const own = emitted.findIndex(({ kind }) => kind !== "accepted");
  // Without a token of the target's own, a stop among the accepted ones ended the text.
  if (own === -1) return emitted;
  const rejected = step.draft_tokens
    .slice(step.num_accepted_tokens)
    .map((text) => ({ kind: "rejected", text }));
  return [...emitted.slice(0, own), ...rejected, ...emitted.slice(own)];
}

/** Counts over the steps of a stream; the first output ends the prefill and is no decode step. */
export class Tally {
  tokens = 0;
  outputs = 0;
  drafts = 0;
  drafted = 0;
  accepted = 0;
  byStep = [];

  add(step) {
    const drafted = step.draft_token_ids.length;
    this.outputs += 1;
    this.tokens += step.token_ids.length;
    this.drafted += drafted;
    this.accepted += step.num_accepted_tokens;
    this.drafts += drafted > 0 ? 1 : 0;
    this.byStep.push({
      emitted: step.token_ids.length,
      accepted: Math.min(step.num_accepted_tokens, step.token_ids.length),
      drafted,
    });
  }

  get steps() {
    return Math.max(0, this.outputs - 1);
  }

  get tokensPerStep() {
    return this.steps === 0 ? null : (this.tokens - this.byStep[0].emitted) / this.steps;
  }

  get acceptance() {
    return this.drafted === 0 ? null : this.accepted / this.drafted;
  }
}

/**
 * Shares the text of a stream out among its tokens.
 *
 * Tokens decoded one by one need not add up to the text: a character may take several tokens, and
 * a stop string is held back. The text is what was answered, so every token gets the part of it
 * that is its own, and all parts together are the text.
 */
export class TextSharing {
  #waiting = [];
  #text = "";

  /** More tokens and more text; returns [{token, text}] of the tokens whose part is now known. */
  add(tokens, text) {
    this.#waiting.push(...tokens);
    this.#text += text;
    const placed = [];
    while (this.#waiting.length > 0) {
      const parts = this.#next();
      if (parts === null) break;
      placed.push(...parts);
    }
    return placed;
  }

  /** The rest, at the end of the stream. */
  end() {
    const placed = this.#waiting.map((token) => ({ token, text: "" }));
    if (placed.length > 0) placed[0].text = this.#text;
    else if (this.#text) placed.push({ token: null, text: this.#text });
    this.#waiting = [];
    this.#text = "";
    return placed;
  }

  #next() {
    const [head] = this.#waiting;
    if (this.#text.startsWith(head.text)) return [this.#take(head.text.length)];
    if (head.text.startsWith(this.#text)) return null;
    return this.#skipToSameText();
  }

  /** The head's text is not what came: give it all up to the next token that is found again. */
  #skipToSameText() {
    for (let index = 1; index < this.#waiting.length; index += 1) {
      const text = this.#waiting[index].text;
      const at = text === "" || text.includes("\ufffd") ? -1 : this.#text.indexOf(text);
      if (at >= 0) {
        const first = this.#take(at);
        return [first, ...Array.from({ length: index - 1 }, () => this.#take(0))];
      }
    }
    return null;
  }

  #take(length) {
    const part = { token: this.#waiting.shift(), text: this.#text.slice(0, length) };
    this.#text = this.#text.slice(length);
    return part;
  }
}
