/**
 * From the steps of a stream to coloured tokens.
 *
 * A step is what the choice of one chunk carries as `specdec`. Its emitted tokens begin with the
 * accepted draft tokens; the last is the target's own. Their texts together are the chunk's text.
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
