/** The live view: draws the history of readings, over the window that is chosen. */

import { Bars } from "./bars.js";
import { LineChart } from "./charts.js";
import {
  acceptanceByPosition,
  guardTrips,
  histogram,
  perOther,
  perSecond,
  speedup,
  stepsByK,
  tokensPerStep,
} from "./differences.js";
import { byId } from "./dom.js";
import { count, duration, fixed, percent, rate, times, words } from "./format.js";
import { percentile } from "./percentiles.js";
import { busiestClasses, columns, columnsOfK, point, withGaps } from "./series.js";
import { Facts, Table } from "./tables.js";
import { guardReason, phaseWords } from "./verdict.js";

const TILES = {
  "Tokens / s": "Output tokens of all requests, over the window",
  "Speed-up": "Estimated time without speculation over the time taken, in steps that speculated",
  "First token p50": "Median time to first token in the window",
  "Per token p50": "Median time per output token of requests that ended in the window",
  Acceptance: "Draft tokens accepted per draft token verified",
  "Tokens / step": "Tokens per decode step of a sequence",
  "Run / wait": "Sequences in the batch and in the queue, now",
  "KV memory": "Used share of KV blocks, now",
};
const CONTROLLER = {
  Phase: "What the controllers of the targets are doing",
  "Guard ratio": "Speed over plain speed in the guard's last window, worst target",
  "Guard trips": "Times that the guard turned speculation off, in the window",
  "Expected / measured": "Goodput that the last decision expects, and the measured one, tokens per second",
  "Deepest K": "Deepest K that the last decision considers",
};

export class LiveView {
  constructor() {
    this.tiles = new Facts(byId("tiles"), TILES);
    this.controller = new Facts(byId("controller"), CONTROLLER);
    this.charts = {
      throughput: new LineChart(byId("throughput"), rate),
      ttft: new LineChart(byId("ttft"), duration, duration),
      tpot: new LineChart(byId("tpot"), duration, duration),
      k: new LineChart(byId("k-by-class"), (k) => fixed(k, 1)),
      price: new LineChart(byId("shadow-price"), fixed),
    };
    this.acceptance = new Bars(byId("acceptance"), 6);
    this.stepsByK = new Bars(byId("steps-by-k"), 7);
    this.targets = new Table(byId("targets"), TARGETS, "No target answers.");
    this.drafters = new Table(byId("drafters"), DRAFTERS, "No drafter has proposed so far.");
    this.drafts = new Table(byId("drafts"), DRAFTS, "No draft replica is connected.");
  }

  /** Draw everything anew. */
  draw(history, points, windowS) {
    const after = history.latest;
    const before = history.start(windowS);
    this.tiles.draw(tileTexts(before, after));
    this.controller.draw(controllerTexts(before, after));
    this.#drawLines(withGaps(points, windowS), after);
    this.acceptance.draw(acceptanceBars(before, after));
    this.stepsByK.draw(stepBars(before, after));
    this.targets.draw(after.targets);
    this.drafters.draw(after.drafters);
    this.drafts.draw(after.drafts);
  }

  #drawLines(points, reading) {
    const draw = (chart, labels, names) => chart.draw(labels, columns(points, names));
    draw(this.charts.throughput, ["measured", "without speculation, estimated"], ["throughput", "baseline"]);
    draw(this.charts.ttft, ["p50", "p95"], ["ttftP50", "ttftP95"]);
    draw(this.charts.tpot, ["p50", "p95"], ["tpotP50", "tpotP95"]);
    draw(this.charts.price, ["price"], ["shadowPrice"]);
    const classes = busiestClasses(reading);
    this.charts.k.draw(classes, columnsOfK(points, classes));
  }
}

/** A point for the reading that came last. */
export function latestPoint(history) {
  return point(history, history.size - 1);
}

function tileTexts(before, after) {
  const { running, waiting, kv_usage: kvUsage } = after.now;
  const median = (name) => duration(percentile(histogram(before, after, name), 0.5));
  return {
    "Tokens / s": rate(perSecond(before, after, "generation_tokens")),
    "Speed-up": times(speedup(before, after)),
    "First token p50": median("time_to_first_token"),
    "Per token p50": median("time_per_output_token"),
    Acceptance: percent(perOther(before, after, "accepted_tokens", "draft_tokens")),
    "Tokens / step": fixed(tokensPerStep(before, after)),
    "Run / wait": `${count(running)} / ${count(waiting)}`,
    "KV memory": percent(kvUsage),
  };
}

function controllerTexts(before, after) {
  const { now } = after;
  const trips = Object.entries(guardTrips(before, after));
  const phases = [...new Set(after.targets.map(({ phase }) => phaseWords(phase)))];
  return {
    Phase: phases.join("; ") || "no target",
    "Guard ratio": times(now.guard_ratio),
    "Guard trips": trips.map(([why, n]) => `${n}: ${guardReason(why)}`).join("; ") || "none",
    "Expected / measured": `${rate(now.predicted_goodput)} / ${rate(now.measured_goodput)}`,
    "Deepest K": count(now.depth),
  };
}

function acceptanceBars(before, after) {
  return acceptanceByPosition(before, after).map(({ position, ratio }) => ({
    label: String(position + 1),
    share: ratio ?? 0,
    text: percent(ratio),
  }));
}

function stepBars(before, after) {
  const bars = stepsByK(before, after);
  const all = bars.reduce((sum, { steps }) => sum + steps, 0);
  if (all === 0) return [];
  return bars.map(({ k, steps }) => ({ label: String(k), share: steps / all, text: count(steps) }));
}

const guardTone = ({ phase }) => (phase === "guard_off" ? "even" : phase === "on" ? "good" : "quiet");

const TARGETS = [
  { head: "Replica", cell: ({ replica_id: id }) => words(id) },
  { head: "Speculation", cell: (t) => phaseOf(t), tone: guardTone },
  { head: "Running", cell: ({ running }) => count(running) },
  { head: "Waiting", cell: ({ waiting }) => count(waiting) },
  { head: "KV", cell: ({ kv_usage: usage }) => percent(usage) },
  { head: "Price", cell: ({ shadow_price: price }) => fixed(price) },
  { head: "Guard ratio", cell: ({ guard_ratio: ratio }) => times(ratio) },
  { head: "Tokens/s", cell: ({ measured_goodput: goodput }) => rate(goodput) },
];

function phaseOf({ phase, guard_reason: reason }) {
  return phase === "guard_off" ? `${phaseWords(phase)}: ${guardReason(reason)}` : phaseWords(phase);
}

const DRAFTERS = [
  { head: "Drafter", cell: ({ name }) => name },
  {
    head: "State",
    cell: ({ broken }) => (broken ? "taken for broken" : "in use"),
    tone: ({ broken }) => (broken ? "bad" : "good"),
  },
  { head: "1st accepted", cell: ({ acceptance_first: ratio }) => percent(ratio) },
  { head: "Delivered", cell: ({ delivered }) => percent(delivered) },
  { head: "Wire p50", cell: ({ network_p50_s: seconds }) => duration(seconds) },
  { head: "Wire p95", cell: ({ network_p95_s: seconds }) => duration(seconds) },
];

const DRAFTS = [
  { head: "Replica", cell: ({ replica_id: id }) => words(id) },
  { head: "State", cell: ({ state }) => words(state) },
  { head: "Sessions", cell: ({ num_sessions: n }) => count(n) },
  { head: "Free blocks", cell: ({ free_blocks: n }) => count(n) },
  { head: "Busy", cell: ({ busy_ratio: ratio }) => percent(ratio) },
  { head: "Round trip", cell: ({ round_trip_s: seconds }) => duration(seconds) },
];
