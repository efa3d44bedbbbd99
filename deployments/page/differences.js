/**
 * What happened between two readings of /live, whose counters only grow.
 *
 * Everything is null where it is not known: a reading lacks the number, or nothing happened.
 */

/** Growth of a counter; null where either reading lacks it. */
function grown(before, after) {
  const known = typeof before === "number" && typeof after === "number";
  return known ? after - before : null;
}

function ratio(part, whole) {
  return part === null || !whole ? null : part / whole;
}

/** Growth of one of `totals`. */
export function growth(before, after, name) {
  return grown(before.totals[name], after.totals[name]);
}

/** Growth of one of `totals` per second. */
export function perSecond(before, after, name) {
  return ratio(growth(before, after, name), after.time_s - before.time_s);
}

/** Growth of one of `totals` per growth of another. */
export function perOther(before, after, part, whole) {
  return ratio(growth(before, after, part), growth(before, after, whole));
}

/** Times as fast as without speculation, over the steps that speculated. */
export function speedup(before, after) {
  return perOther(before, after, "baseline_s", "speculating_s");
}

/** Committed tokens per decode step of a sequence. */
export function tokensPerStep(before, after) {
  const steps = stepsByK(before, after).reduce((sum, { steps: n }) => sum + n, 0);
  const requests = growth(before, after, "requests");
  const tokens = growth(before, after, "generation_tokens");
  // A prefill makes each request's first token.
  return tokens === null || requests === null ? null : ratio(Math.max(0, tokens - requests), steps);
}

/** [{position, ratio}]: how often the draft token at a position was accepted, per draft. */
export function acceptanceByPosition(before, after) {
  const drafts = growth(before, after, "drafts");
  if (!drafts) return [];
  const earlier = before.totals.accepted_per_position ?? [];
  const later = after.totals.accepted_per_position ?? [];
  return later.map((accepted, position) => ({
    position,
    ratio: ratio(grown(earlier[position] ?? 0, accepted), drafts),
  }));
}

/** [{k, steps}] for all k from 0 to the largest that any step had. */
export function stepsByK(before, after) {
  const earlier = before.totals.steps_by_k ?? {};
  const later = after.totals.steps_by_k ?? {};
  const largest = Math.max(-1, ...Object.keys(later).map(Number));
  return Array.from({ length: largest + 1 }, (_, k) => ({
    k,
    steps: (later[k] ?? 0) - (earlier[k] ?? 0),
  }));
}

/** Share of the decode steps that verified a draft token. */
export function speculatingShare(before, after) {
  const bars = stepsByK(before, after);
  const all = bars.reduce((sum, { steps }) => sum + steps, 0);
  return ratio(all - (bars[0]?.steps ?? 0), all);
}

/** {class: mean K} of the classes that had decode steps. */
export function meanKByClass(before, after) {
  const means = {};
  for (const [name, later] of Object.entries(after.classes ?? {})) {
    const earlier = before.classes?.[name] ?? { steps: 0, draft_tokens: 0 };
    const mean = ratio(
      grown(earlier.draft_tokens, later.draft_tokens),
      grown(earlier.steps, later.steps),
    );
    if (mean !== null) means[name] = mean;
  }
  return means;
}

/** {reason: trips} of the guard, those that happened. */
export function guardTrips(before, after) {
  const earlier = before.totals.guard_trips ?? {};
  const grownBy = Object.entries(after.totals.guard_trips ?? {}).map(([reason, trips]) => [
    reason,
    trips - (earlier[reason] ?? 0),
  ]);
  return Object.fromEntries(grownBy.filter(([, trips]) => trips > 0));
}

/** The observations between two readings of a latency: {edges_s, counts}; null where unknown. */
export function histogram(before, after, name) {
  const later = after.latency?.[name];
  if (!later) return null;
  const earlier = before.latency?.[name]?.counts ?? [];
  return {
    edges_s: later.edges_s,
    counts: later.counts.map((n, bucket) => n - (earlier[bucket] ?? 0)),
  };
}
