/** Readings of /live as the tests need them: everything null or empty but what is given. */

export function reading(time_s, { totals = {}, latency = {}, classes = {}, now = {}, ...lists } = {}) {
  return {
    time_s,
    model: "tiny",
    version: "0",
    totals: {
      requests: 0,
      generation_tokens: 0,
      accepted_per_position: [],
      steps_by_k: {},
      guard_trips: {},
      ...totals,
    },
    latency,
    classes,
    now: { running: 0, waiting: 0, ...now },
    targets: lists.targets ?? [{ replica_id: "t", phase: "on", guard_reason: null }],
    drafters: lists.drafters ?? [{ name: "draft", broken: false }],
    drafts: lists.drafts ?? [{ replica_id: "d", state: "ready" }],
  };
}
