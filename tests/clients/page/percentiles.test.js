import assert from "node:assert/strict";
import { test } from "node:test";

import { percentile } from "../../../deployments/page/percentiles.js";

const EDGES = [0.1, 0.2, 0.4];

test("observations are spread evenly inside their bucket", () => {
  const histogram = { edges_s: EDGES, counts: [0, 10, 0, 0] };
  assert.ok(Math.abs(percentile(histogram, 0.5) - 0.15) < 1e-12);
  assert.ok(Math.abs(percentile(histogram, 0.95) - 0.195) < 1e-12);
  assert.ok(Math.abs(percentile({ edges_s: EDGES, counts: [4, 0, 0, 0] }, 0.25) - 0.025) < 1e-12);
});

test("the median lies where half of the observations are below", () => {
  const histogram = { edges_s: EDGES, counts: [3, 1, 4, 0] };
  // The fourth of eight ends the second bucket.
  assert.equal(percentile(histogram, 0.5), 0.2);
  assert.ok(Math.abs(percentile(histogram, 0.75) - 0.3) < 1e-12);
});

test("beyond all edges, the last edge is the least that is known", () => {
  assert.equal(percentile({ edges_s: EDGES, counts: [1, 0, 0, 99] }, 0.95), 0.4);
});

test("nothing observed, nothing known", () => {
  assert.equal(percentile({ edges_s: EDGES, counts: [0, 0, 0, 0] }, 0.5), null);
  assert.equal(percentile(null, 0.5), null);
});

test("close to the percentile of the observations themselves", () => {
  const edges_s = Array.from({ length: 60 }, (_, i) => 0.001 * 1.2 ** i);
  const values = Array.from({ length: 5000 }, (_, i) => 0.02 * (1 + ((i * 7919) % 5000) / 1000));
  const counts = Array(edges_s.length + 1).fill(0);
  for (const value of values) counts[edges_s.filter((edge) => edge < value).length] += 1;
  const sorted = values.toSorted((a, b) => a - b);
  for (const q of [0.05, 0.5, 0.95]) {
    const exact = sorted[Math.ceil(q * sorted.length) - 1];
    assert.ok(Math.abs(percentile({ edges_s, counts }, q) / exact - 1) < 0.05, `p${100 * q}`);
  }
});
