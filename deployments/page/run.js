/** What one generation has brought so far: text, tokens by kind, times. Draws nothing. */

import { KINDS, Tally, tokensOfStep } from "./tokens.js";

export class Run {
  text = "";
  tally = new Tally();
  counts = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, 0]));
  drafter = null;
  finishReason = null;
  usage = null;
  metrics = null;
  firstMs = null;

  constructor(begunMs) {
    this.begunMs = begunMs;
    this.endMs = begunMs;
  }

  /** Take in a chunk of the stream at `nowMs`; returns [{kind, text}] to append to the answer. */
  add(chunk, nowMs) {
    if (chunk.text === undefined) {
      this.usage = chunk.usage;
      this.metrics = chunk.metrics;
      return [];
    }
    this.firstMs ??= nowMs;
    this.endMs = nowMs;
    this.text += chunk.text;
    this.finishReason = chunk.finishReason;
    return chunk.step === null ? withoutTokens(chunk.text) : this.#addStep(chunk.step);
  }

  /** Output tokens so far, as the service counts them where it told. */
  get tokens() {
    return this.usage?.completion_tokens ?? this.tally.tokens;
  }

  get firstTokenS() {
    return this.firstMs === null ? null : (this.firstMs - this.begunMs) / 1000;
  }

  #addStep(step) {
    this.tally.add(step);
    this.drafter = step.drafter ?? this.drafter;
    const tokens = tokensOfStep(step);
    for (const { kind } of tokens) this.counts[kind] += 1;
    return tokens;
  }
}

/** Text that no token of its chunk brought: what was held back for a stop string. */
function withoutTokens(text) {
  return text === "" ? [] : [{ kind: "plain", text }];
}
