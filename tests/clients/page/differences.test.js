import assert from "node:assert/strict";
import { test } from "node:test";

import {
  acceptanceByPosition,
  guardTrips,
  histogram,
  meanKByClass,
  perOther,
  perSecond,
  speculatingShare,
  speedup,
  stepsByK,
  tokensPerStep,
} from "../../../deployments/page/differences.js";
import { reading } from "./readings.js";

test("a rate is growth over the seconds between the readings", () => {
  const before = reading(100, { totals: { generation_tokens: 1000 } });
  const after = reading(104, { totals: { generation_tokens: 1100 } });
  assert.equal(perSecond(before, after, "generation_tokens"), 25);
  assert.equal(perSecond(after, after, "generation_tokens"), null);
});

test("what a reading lacks is not known, and not zero", () => {
  const before = reading(0, { totals: { baseline_s: null, speculating_s: 1 } });
  const after = reading(1, { totals: { baseline_s: 3, speculating_s: 2 } });
  assert.equal(speedup(before, after), null);
  assert.equal(perOther(before, after, "no_such", "speculating_s"), null);
});

test("the speed-up of a window is not that of all time", () => {
  const before = reading(0, { totals: { baseline_s: 100, speculating_s: 200 } });
  const after = reading(9, { totals: { baseline_s: 115, speculating_s: 210 } });
  assert.equal(speedup(before, after), 1.5);
  assert.equal(speedup(after, after), null);
});

test("acceptance by position is per draft, also at positions that are new", () => {
  const before = reading(0, { totals: { drafts: 10, accepted_per_position: [8] } });
  const after = reading(1, { totals: { drafts: 14, accepted_per_position: [11, 1] } });
  assert.deepEqual(acceptanceByPosition(before, after), [
    { position: 0, ratio: 0.75 },
    { position: 1, ratio: 0.25 },
  ]);
  assert.deepEqual(acceptanceByPosition(after, after), []);
});

test("steps by K have no holes", () => {
  const before = reading(0, { totals: { steps_by_k: { 0: 5 } } });
  const after = reading(1, { totals: { steps_by_k: { 3: 2, 0: 6 } } });
  assert.deepEqual(stepsByK(before, after), [
    { k: 0, steps: 1 },
    { k: 1, steps: 0 },
    { k: 2, steps: 0 },
    { k: 3, steps: 2 },
  ]);
  assert.deepEqual(stepsByK(reading(0), reading(1)), []);
});

test("the share of steps that speculated", () => {
  const after = reading(1, { totals: { steps_by_k: { 0: 6, 1: 1, 4: 1 } } });
  assert.equal(speculatingShare(reading(0), after), 0.25);
  assert.equal(speculatingShare(after, after), null);
});

test("tokens per step leave out what prefills made", () => {
  const before = reading(0, { totals: { requests: 1, generation_tokens: 4, steps_by_k: { 0: 3 } } });
  const after = reading(1, {
    totals: { requests: 3, generation_tokens: 18, steps_by_k: { 0: 5, 4: 2 } },
  });
  // 14 tokens, of them 2 first ones; 4 decode steps.
  assert.equal(tokensPerStep(before, after), 3);
});

test("K of a class is draft tokens per decode step, and unknown where it had none", () => {
  const before = reading(0, { classes: { a: { steps: 10, draft_tokens: 10 }, c: { steps: 1, draft_tokens: 0 } } });
  const after = reading(1, {
    classes: {
      a: { steps: 14, draft_tokens: 20 },
      b: { steps: 2, draft_tokens: 6 },
      c: { steps: 1, draft_tokens: 0 },
    },
  });
  assert.deepEqual(meanKByClass(before, after), { a: 2.5, b: 3 });
});

test("guard trips of the window, by reason", () => {
  const before = reading(0, { totals: { guard_trips: { slower_than_baseline: 2, first_tokens_later: 1 } } });
  const after = reading(1, { totals: { guard_trips: { slower_than_baseline: 3, first_tokens_later: 1 } } });
  assert.deepEqual(guardTrips(before, after), { slower_than_baseline: 1 });
});

test("a latency's observations between two readings", () => {
  const at = (time, counts) => reading(time, { latency: { ttft: { edges_s: [0.1, 0.2], counts } } });
  assert.deepEqual(histogram(at(0, [1, 2, 0]), at(1, [3, 2, 1]), "ttft"), {
    edges_s: [0.1, 0.2],
    counts: [2, 0, 1],
  });
  assert.deepEqual(histogram(reading(0), at(1, [3, 2, 1]), "ttft").counts, [3, 2, 1]);
  assert.equal(histogram(at(0, []), reading(1), "ttft"), null);
});
