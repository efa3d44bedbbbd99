import assert from "node:assert/strict";
import { test } from "node:test";

import { Run } from "../../../deployments/page/run.js";
import { kindsOfStep, Tally, tokensOfStep } from "../../../deployments/page/tokens.js";

/** A step that drafted `drafted`, of which the first `accepted` were accepted. */
function step(tokens, drafted = [], accepted = 0) {
  return {
    token_ids: tokens.map((_, i) => i),
    tokens,
    draft_token_ids: drafted.map((_, i) => i),
    draft_tokens: drafted,
    num_accepted_tokens: accepted,
    drafter: drafted.length > 0 ? "draft" : null,
  };
}

const shown = (tokens) => tokens.map(({ kind, text }) => `${kind}:${text}`).join(" ");

test("the target's own token is recovered after a rejection, bonus after none", () => {
  assert.deepEqual(kindsOfStep(step(["a", "b", "x"], ["a", "b", "c"], 2)), ["accepted", "accepted", "recovered"]);
  assert.deepEqual(kindsOfStep(step(["a", "b", "x"], ["a", "b"], 2)), ["accepted", "accepted", "bonus"]);
  assert.deepEqual(kindsOfStep(step(["x"], ["a"], 0)), ["recovered"]);
  assert.deepEqual(kindsOfStep(step(["x"])), ["plain"]);
});

test("rejected tokens stand before what the target wrote instead", () => {
  assert.equal(shown(tokensOfStep(step(["a", "x"], ["a", "b", "c"], 1))), "accepted:a rejected:b rejected:c recovered:x");
  assert.equal(shown(tokensOfStep(step(["a", "x"], ["a"], 1))), "accepted:a bonus:x");
});

test("a stop among accepted tokens leaves nothing of the target's own, and nothing after it", () => {
  assert.equal(shown(tokensOfStep(step(["a"], ["a", "b", "c"], 2))), "accepted:a");
});

test("counts of a run: the first output is the prefill's", () => {
  const tally = new Tally();
  assert.deepEqual([tally.steps, tally.tokensPerStep, tally.acceptance], [0, null, null]);
  for (const each of [step(["p"]), step(["a", "b", "x"], ["a", "b", "c", "d"], 2), step(["y"])]) tally.add(each);
  assert.deepEqual([tally.tokens, tally.steps, tally.tokensPerStep], [5, 2, 2]);
  assert.deepEqual([tally.drafted, tally.accepted, tally.acceptance, tally.drafts], [4, 2, 0.5, 1]);
});

test("a run shows every token once, rejected ones in their places, and all of the text", () => {
  const run = new Run(0);
  const chunk = (text, given) => ({ text, step: given, finishReason: null });
  const placed = [
    ...run.add(chunk("P", step(["P"])), 10),
    ...run.add(chunk(" a x", step([" a", " x"], [" a", " b"], 1)), 20),
    ...run.add(chunk(" y", step([" y"], [" q"], 0)), 30),
    ...run.add({ usage: { completion_tokens: 4 }, metrics: null }, 31),
  ];
  assert.equal(shown(placed), "plain:P accepted: a rejected: b recovered: x rejected: q recovered: y");
  assert.equal(run.text, "P a x y");
  assert.deepEqual(run.counts, { accepted: 1, recovered: 2, bonus: 0, rejected: 2, plain: 1 });
  assert.deepEqual([run.tokens, run.firstTokenS, run.endMs, run.drafter], [4, 0.01, 30, "draft"]);
});

test("an answer without steps is plain text", () => {
  const run = new Run(0);
  const placed = run.add({ text: "hello", step: null, finishReason: "stop" }, 1);
  assert.equal(shown(placed), "plain:hello");
});
