/** Whether speculation pays, in one sentence, and why not where it does not. */

import { growth, speculatingShare, speedup } from "./differences.js";
import { fixed, percent, span, times } from "./format.js";

// Closer to 1 than this is within what an estimate may miss.
const FELT = 0.05;

const GUARD_REASONS = {
  slower_than_baseline: "it was slower than plain decoding",
  first_tokens_later: "first tokens came later than without it",
};
const PHASES = {
  on: "on",
  off: "off: would not pay now",
  idle: "idle",
  calibrating: "calibrating: measures what drafting costs",
  baseline: "on: measures plain speed for a few steps",
  guard_off: "paused by the guard",
};

/** Why the guard tripped. */
export function guardReason(reason) {
  return GUARD_REASONS[reason] ?? (reason ? reason.replaceAll("_", " ") : "no reason told");
}

/** What a target's controller is doing. */
export function phaseWords(phase) {
  return PHASES[phase] ?? (phase ? phase.replaceAll("_", " ") : "not known");
}

/** {tone, head, detail, figure?} for a gateway that does not answer. */
export function silent(secondsSince) {
  const detail =
    secondsSince === null
      ? "Nothing was heard from it yet."
      : `The numbers below are ${span(secondsSince)} old.`;
  return { tone: "bad", head: "The gateway does not answer", detail: `${detail} Asking again every second.` };
}

/** The same for one that wants another key, by the status that it answers with. */
export function keyWanted(status) {
  const head = status === 403 ? "This key is no operator's" : "The live view needs the key of an operator";
  return { tone: "quiet", head, detail: "It tells of all tenants. The playground takes any key." };
}

/**
 * {tone, head, detail, figure?} from the readings at both ends of the window.
 *
 * tone: good, even, bad or quiet. What holds now (the guard, lost drafters) comes before what the
 * window says.
 */
export function verdict(before, after) {
  const windowS = after.time_s - before.time_s;
  return (
    withoutTargets(after) ??
    idle(before, after, windowS) ??
    withoutDrafters(after) ??
    byGuard(after) ??
    byMeasure(before, after, windowS) ??
    byClients(before, after) ??
    byPhase(after)
  );
}

function withoutTargets({ targets }) {
  if (targets.length > 0) return null;
  return { tone: "bad", head: "No target answers", detail: "Requests cannot be served now." };
}

function idle(before, after, windowS) {
  const { running, waiting } = after.now;
  if (running || waiting || growth(before, after, "generation_tokens")) return null;
  return {
    tone: "quiet",
    head: "Idle",
    detail: windowS < 1 ? "No request runs." : `No request in the last ${span(windowS)}.`,
  };
}

function withoutDrafters({ targets, drafters, drafts }) {
  if (drafters.length === 0) return withoutProposals(targets);
  const usable = drafters.filter(({ broken }) => !broken);
  if (usable.length === 0) {
    const names = drafters.map(({ name }) => name).join(", ");
    return { tone: "bad", head: "No drafter works", detail: `Taken for broken: ${names}.` };
  }
  if (usable.every(({ name }) => name === "draft") && drafts.length === 0) {
    return {
      tone: "bad",
      head: "No draft is connected",
      detail: "The text stays the same; it comes at plain speed.",
    };
  }
  return null;
}

/** A drafter is known from its first proposal on: before it, there may be one all the same. */
function withoutProposals(targets) {
  if (targets.some(({ phase }) => phase === "calibrating")) return null;
  return {
    tone: "quiet",
    head: "No drafter",
    detail: "None has proposed so far: every token is the target's own.",
  };
}

function byGuard({ targets }) {
  const paused = targets.filter(({ phase }) => phase === "guard_off");
  if (paused.length === 0 || paused.length < targets.length) return null;
  const { guard_ratio: ratio, guard_reason: reason } = paused[0];
  const measured = typeof ratio === "number" ? ` It last ran at ${fixed(ratio)} of plain speed.` : "";
  return {
    tone: "even",
    head: "Off by the guard",
    detail: `Speculation pauses, since ${guardReason(reason)}.${measured}`,
  };
}

function byMeasure(before, after, windowS) {
  const measured = speedup(before, after);
  if (measured === null) return null;
  const share = percent(speculatingShare(before, after));
  const over = `Last ${span(windowS)}: the steps that speculated, ${share} of all, ran at ${times(measured)} the estimated plain speed.`;
  const told = { detail: over, figure: times(measured) };
  if (measured >= 1 + FELT) return { tone: "good", head: "Speculation pays", ...told };
  if (measured > 1 - FELT) return { tone: "even", head: "Speculation breaks even", ...told };
  return { tone: "bad", head: "Speculation costs speed", ...told };
}

/** Steps in which a client fixed K are no choice of the controller, and not in its estimate. */
function byClients(before, after) {
  if (!growth(before, after, "drafts")) return null;
  return {
    tone: "quiet",
    head: "K as clients ask",
    detail: "Clients fixed K in this window; no speed-up is estimated for such steps.",
  };
}

function byPhase({ targets }) {
  const phases = [...new Set(targets.map(({ phase }) => phase))];
  if (phases.every((phase) => phase === "calibrating")) {
    return {
      tone: "quiet",
      head: "Still measuring",
      detail: "The controller learns what steps and drafting cost.",
    };
  }
  return {
    tone: "quiet",
    head: "Not speculating now",
    detail: `Nothing was drafted in this window; controller: ${phases.map(phaseWords).join("; ")}.`,
  };
}
