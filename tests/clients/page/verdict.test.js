import assert from "node:assert/strict";
import { test } from "node:test";

import * as format from "../../../deployments/page/format.js";
import { guardReason, phaseWords, silent, verdict } from "../../../deployments/page/verdict.js";
import { reading } from "./readings.js";

const target = (phase, more = {}) => ({ replica_id: "t", phase, guard_reason: null, ...more });

/** A busy window that ran at this speed-up. */
function window(speedup, more = {}) {
  const totals = { baseline_s: 0, speculating_s: 0 };
  return [
    reading(0, { totals }),
    reading(60, {
      totals: { generation_tokens: 500, baseline_s: 10 * speedup, speculating_s: 10 },
      now: { running: 2 },
      ...more,
    }),
  ];
}

test("the speed-up decides, and a hair's breadth is none", () => {
  assert.deepEqual([verdict(...window(1.5)).head, verdict(...window(1.5)).figure], ["Speculation pays", "1.50×"]);
  assert.equal(verdict(...window(1.04)).head, "Speculation breaks even");
  assert.equal(verdict(...window(0.96)).head, "Speculation breaks even");
  assert.equal(verdict(...window(0.9)).head, "Speculation costs speed");
  assert.match(verdict(...window(0.9)).detail, /Last 60 seconds/);
});

test("nothing to do is idle, whatever was drafted before", () => {
  const quiet = [reading(0, { totals: { generation_tokens: 9 } }), reading(30, { totals: { generation_tokens: 9 } })];
  assert.equal(verdict(...quiet).head, "Idle");
});

test("a guard that paused all targets comes before what the window measured", () => {
  const off = target("guard_off", { guard_reason: "slower_than_baseline", guard_ratio: 0.91 });
  const said = verdict(...window(1.5, { targets: [off] }));
  assert.equal(said.head, "Off by the guard");
  assert.match(said.detail, /slower than plain decoding/);
  assert.match(said.detail, /0\.91/);
  assert.equal(verdict(...window(1.5, { targets: [off, target("on")] })).head, "Speculation pays");
});

test("drafters that are missing, broken or not connected", () => {
  const none = { drafters: [], targets: [target("on")] };
  assert.equal(verdict(...window(1, none)).head, "No drafter");
  const starting = reading(9, { now: { running: 1 }, drafters: [], targets: [target("calibrating")] });
  assert.equal(verdict(reading(0), starting).head, "Still measuring");
  assert.equal(verdict(...window(1, { drafters: [{ name: "draft", broken: true }] })).head, "No drafter works");
  assert.equal(verdict(...window(1, { drafts: [] })).head, "No draft is connected");
  const withNgrams = { drafts: [], drafters: [{ name: "draft" }, { name: "ngram" }] };
  assert.equal(verdict(...window(1.5, withNgrams)).head, "Speculation pays");
});

test("no target is said first", () => {
  assert.equal(verdict(...window(1.5, { targets: [] })).head, "No target answers");
});

test("no speculating step in the window: the phase says why", () => {
  const without = (phase) =>
    verdict(reading(0), reading(9, { now: { running: 1 }, targets: [target(phase)] }));
  assert.equal(without("calibrating").head, "Still measuring");
  assert.match(without("off").detail, /would not pay/);
});

test("drafts without an estimate are those of clients that fixed K", () => {
  const after = reading(9, { totals: { drafts: 5, baseline_s: 0, speculating_s: 0 }, now: { running: 1 } });
  assert.equal(verdict(reading(0, { totals: { drafts: 0 } }), after).head, "K as clients ask");
});

test("a gateway that is silent, and for how long", () => {
  assert.match(silent(null).detail, /Nothing was heard/);
  assert.match(silent(12.3).detail, /12 seconds old/);
});

test("names that this page does not know stay readable", () => {
  assert.equal(phaseWords("some_new_phase"), "some new phase");
  assert.equal(guardReason("some_reason"), "some reason");
  assert.equal(phaseWords(null), "not known");
});

test("numbers as people read them", () => {
  assert.equal(format.duration(0.0042), "4.2 ms");
  assert.equal(format.duration(0.25), "250 ms");
  assert.equal(format.duration(1.25), "1.3 s");
  assert.equal(format.rate(1234.5), "1,235");
  assert.equal(format.percent(0.499), "50 %");
  assert.equal(format.count(1234567), "1.2M");
  assert.equal(format.span(1), "1 second");
  assert.equal(format.span(300), "5 minutes");
  for (const write of [format.fixed, format.count, format.rate, format.percent, format.times, format.duration]) {
    assert.equal(write(null), format.UNKNOWN);
    assert.equal(write(undefined), format.UNKNOWN);
    assert.equal(write(NaN), format.UNKNOWN);
  }
});
