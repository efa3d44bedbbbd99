import assert from "node:assert/strict";
import { test } from "node:test";

import { History } from "../../../deployments/page/history.js";
import { columns, columnsOfK, point, withGaps } from "../../../deployments/page/series.js";
import { reading } from "./readings.js";

function filled(times, keptS = 60) {
  const history = new History(keptS);
  for (const time of times) history.add(reading(time, { totals: { generation_tokens: 10 * time } }));
  return history;
}

test("a window starts at the last reading before it, or at the first", () => {
  const history = filled([0, 1, 2, 3, 4]);
  assert.equal(history.start(2).time_s, 2);
  assert.equal(history.start(2.5).time_s, 1);
  assert.equal(history.start(99).time_s, 0);
  assert.equal(history.start(1, 3).time_s, 2);
});

test("readings older than the longest window are let go, but for the one that it starts from", () => {
  const history = filled(Array.from({ length: 100 }, (_, i) => i), 10);
  assert.equal(history.start(10).time_s, 89);
  assert.equal(history.start(99).time_s, 89);
  assert.equal(history.size, 11);
});

test("the same reading again is none", () => {
  const history = filled([1, 2]);
  assert.equal(history.add(reading(2)), false);
  assert.equal(history.size, 2);
});

test("counters that fell are a new service", () => {
  const history = filled([1, 2, 3]);
  assert.equal(history.add(reading(4, { totals: { generation_tokens: 5 } })), true);
  assert.equal(history.size, 1);
});

test("a point's rate is over the seconds before it; an idle service expects nothing", () => {
  const history = new History(60);
  const busy = { running: 1, predicted_baseline: 7 };
  for (const t of [0, 1, 2, 3, 4, 5, 6]) {
    // Twelve tokens a second up to 2, none after it.
    history.add(reading(t, { totals: { generation_tokens: 12 * Math.min(t, 2) }, now: t < 6 ? busy : { predicted_baseline: 7 } }));
  }
  assert.equal(point(history, 0).throughput, null);
  assert.equal(point(history, 1).throughput, 12);
  assert.equal(point(history, 4).throughput, 6);
  assert.equal(point(history, 6).throughput, 12 / 5);
  assert.equal(point(history, 5).baseline, 7);
  assert.equal(point(history, 6).baseline, null);
});

test("columns have one row per point and null where nothing is known", () => {
  const points = [
    { time_s: 1, throughput: 5, k: { a: 2 } },
    { time_s: 2, throughput: null, k: { b: 3 } },
  ];
  assert.deepEqual(columns(points, ["throughput"]), [[1, 2], [5, null]]);
  assert.deepEqual(columnsOfK(points, ["a", "b"]), [[1, 2], [2, null], [null, 3]]);
});

test("where readings are missing the line breaks, and old points are left out", () => {
  const points = [1, 50, 51, 60].map((time_s) => ({ time_s, throughput: 1, k: {} }));
  const shown = withGaps(points, 20);
  assert.deepEqual(shown.map(({ time_s }) => time_s), [50, 51, 52, 60]);
  assert.deepEqual(columns(shown, ["throughput"])[1], [1, 1, null, 1]);
});
