/** Columns over time for the charts: one point per reading, over the seconds before it. */

import { histogram, meanKByClass, perSecond } from "./differences.js";
import { percentile } from "./percentiles.js";

// A rate over fewer seconds jumps with every step; a percentile needs some requests.
export const RATE_SPAN_S = 5;
export const PERCENTILE_SPAN_S = 30;
// Longer than that without a reading is a gap in the line.
export const GAP_S = 5;
export const MAX_CLASSES = 6;

const isBusy = ({ now }) => (now.running ?? 0) > 0;

/** One point for the reading number `at`: what each chart draws there. */
export function point(history, at) {
  const reading = history.at(at);
  const recent = history.start(RATE_SPAN_S, at);
  const longer = history.start(PERCENTILE_SPAN_S, at);
  const timeToFirst = histogram(longer, reading, "time_to_first_token");
  const perToken = histogram(longer, reading, "time_per_output_token");
  return {
    time_s: reading.time_s,
    throughput: perSecond(recent, reading, "generation_tokens"),
    // Expected by the last decision, which may be long ago on an idle service.
    baseline: isBusy(reading) ? reading.now.predicted_baseline : null,
    ttftP50: percentile(timeToFirst, 0.5),
    ttftP95: percentile(timeToFirst, 0.95),
    tpotP50: percentile(perToken, 0.5),
    tpotP95: percentile(perToken, 0.95),
    shadowPrice: isBusy(reading) ? reading.now.shadow_price : null,
    k: meanKByClass(recent, reading),
  };
}

/** Points of the last `windowS` seconds, with an empty one wherever readings are missing. */
export function withGaps(points, windowS) {
  const begin = (points.at(-1)?.time_s ?? 0) - windowS;
  const shown = [];
  for (const each of points) {
    if (each.time_s < begin) continue;
    const last = shown.at(-1);
    if (last && each.time_s - last.time_s > GAP_S) shown.push({ time_s: last.time_s + 1, k: {} });
    shown.push(each);
  }
  return shown;
}

/** uPlot's columns: times, then one column per name; null where a point has no such number. */
export function columns(points, names) {
  return [
    points.map((each) => each.time_s),
    ...names.map((name) => points.map((each) => each[name] ?? null)),
  ];
}

/** The classes to draw: those with the most decode steps in the points' latest reading. */
export function busiestClasses(reading) {
  const classes = Object.entries(reading.classes ?? {});
  const most = classes.sort(([, a], [, b]) => (b.steps ?? 0) - (a.steps ?? 0));
  return most.slice(0, MAX_CLASSES).map(([name]) => name).sort();
}

/** uPlot's columns of K: times, then one per class. */
export function columnsOfK(points, classes) {
  return [
    points.map((each) => each.time_s),
    ...classes.map((name) => points.map((each) => each.k[name] ?? null)),
  ];
}
