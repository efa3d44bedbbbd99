/** What one generation has brought so far: text, tokens by kind, times. Draws nothing. */

import { KINDS, Tally, TextSharing, tokensOfStep } from "./tokens.js";

export class Run {
  text = "";
  tally = new Tally();
  counts = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, 0]));
  drafter = null;
  finishReason = null;
  usage = null;
  metrics = null;
  firstMs = null;
  #sharing = new TextSharing();
  // Rejected tokens stand before the emitted token with the same index in this list.
  #rejectedBefore = new Map();

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
    return this.#placed(this.#sharing.add(this.#emitted(chunk.step), chunk.text));
  }

  /** The rest of the text, once the stream has ended. */
  end() {
    return this.#placed(this.#sharing.end());
  }

  /** Output tokens so far, as the service counts them where it told. */
  get tokens() {
    return this.usage?.completion_tokens ?? this.tally.tokens;
  }

  get firstTokenS() {
    return this.firstMs === null ? null : (this.firstMs - this.begunMs) / 1000;
  }

  #emitted(step) {
    if (step === null) return [];
    this.tally.add(step);
    this.drafter = step.drafter ?? this.drafter;
    const emitted = [];
    let rejected = [];
    for (const token of tokensOfStep(step)) {
      this.counts[token.kind] += 1;
      if (token.kind === "rejected") {
        rejected.push(token);
        continue;
      }
      if (rejected.length > 0) this.#rejectedBefore.set(token, rejected);
      rejected = [];
      emitted.push(token);
    }
    return emitted;
  }

  #placed(parts) {
    return parts.flatMap(({ token, text }) => [
      ...(this.#rejectedBefore.get(token) ?? []),
      { kind: token?.kind ?? "plain", text },
    ]);
  }
}
