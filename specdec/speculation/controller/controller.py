"""The adaptive controller: K for every sequence in every step, by expected goodput.

Puts the parts together: estimates (acceptance, cost), the decision (policy), the safety net
(guard), trials (probe) and the wait. Plain Python and numpy; no I/O, no clock of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from specdec.config import SpeculationConfig
from specdec.sequence import Explanation
from specdec.speculation.controller.choice import DrafterChooser, Offer, preference
from specdec.speculation.controller.cost import TRUSTED, CostModel, ProfilePoint
from specdec.speculation.controller.decision_log import DecisionLog, Grounds
from specdec.speculation.controller.depth import DepthKeeper
from specdec.speculation.controller.estimates import Estimates
from specdec.speculation.controller.first_tokens import FirstTokenWatch
from specdec.speculation.controller.guard import FIRST_TOKENS_LATER, Guard
from specdec.speculation.controller.interface import (
    BatchState,
    DrafterTiming,
    StepResult,
)
from specdec.speculation.controller.latency_curve import MAX_SURPRISE
from specdec.speculation.controller.plain_step import PlainStep, plain_step
from specdec.speculation.controller.policy import Candidates, Decision, StepCosts, decide
from specdec.speculation.controller.probe import ProbeOption, Prober
from specdec.speculation.controller.profile import CostSeed
from specdec.speculation.controller.reason_counts import ReasonCounts
from specdec.speculation.controller.step import PlannedStep, asked_of
from specdec.speculation.controller.waiting import WaitPolicy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CALIBRATION_STEPS = 2
CALIBRATION_K = 2
# A drafter may decline, say while it computes the prompt: the prior serves if it goes on so.
MAX_CALIBRATION_TRIALS = 8
BASELINE_EVERY_STEPS = 400
BASELINE_GROWTH = 8
GUARDED_FROM_BASELINE_STEPS = 6
# Tokens gained over tokens that their time would have given: to begin, and to go on.
RETURN_TO_BEGIN = 1.1
RETURN_TO_STAY = 1.0
RATE_DECAY = 0.98
# While requests wait and less than this of the KV cache is free, draft tokens give way to them.
SCARCE_KV = 0.1
SCARCE_K = 1


class GoodputController:
    """`Controller` by survival ranking against an online cost model (design section 5).

    It starts with two steps at k = 0 and two at a small k for each drafter, to know what they
    cost; `profile` saves the first two, and `seed` those of the drafters that it tells of.
    """

    def __init__(self, config: SpeculationConfig, profile: SequenceOf[ProfilePoint] = ()) -> None:
        self._max_k = config.max_num_speculative_tokens
        self._estimates = Estimates(self._max_k)
        self._cost = CostModel(self._max_k)
        self._chooser = DrafterChooser()
        self._depth = DepthKeeper()
        self._guard = Guard()
        self._first_tokens = FirstTokenWatch()
        self._max_step_s = (config.max_tpot_ms or math.inf) / 1000
        self._prober = Prober()
        self._wait = WaitPolicy(config.max_wait_ms / 1000)
        self._num_trials: dict[str, int] = defaultdict(int)
        self._num_baseline_steps = 0
        self._steps_since_baseline = 0
        self._speculating = False
        self._decision: Decision | None = None
        self._log = DecisionLog()
        self._reasons = ReasonCounts()
        self._grounds: Grounds | None = None
        self._phase = "calibrating"
        self._fixed_ids: frozenset[int] = frozenset()
        self._num_late: dict[str, int] = defaultdict(int)
        self._committed = self._seconds = 0.0
        self._baseline_total_s = self._speculating_total_s = 0.0
        self._num_planned = self._num_steps = 0
        self.seed(CostSeed(steps=tuple(profile)))

    @property
    def knows_steps(self) -> bool:
        """Whether what the target's steps take was measured before or seen."""
        return self._cost.run.count > 0

    def seed(self, seed: CostSeed) -> None:
        """Start from measured times: what they tell needs no calibration."""
        self._cost.seed(seed)
        if seed.steps:
            self._num_baseline_steps = max(self._num_baseline_steps, CALIBRATION_STEPS)

    def choose_drafters(
        self, state: BatchState, options: SequenceOf[tuple[str, ...]]
    ) -> list[str | None]:
        """The drafters that promise most together, each sequence at its own best K."""
        names = sorted({name for names in options for name in names}, key=preference(options))
        if not self.knows_steps or len(names) < 2:
            return [choice[0] if choice else None for choice in options]
        offers = [self._offer(name, state, options) for name in names]
        num_tokens = state.num_prefill_tokens + len(state.sequences)

        def run_s(added: Floats) -> Floats:
            return self._cost.run_s(num_tokens + added, state.num_kv_tokens)

        price = self._decision.shadow_price if self._decision else 0.0
        chosen = self._chooser.choose(offers, run_s, price).tolist()
        return [
            names[index] if choice else None for index, choice in zip(chosen, options, strict=True)
        ]

    def _offer(self, name: str, state: BatchState, options: SequenceOf[tuple[str, ...]]) -> Offer:
        available = np.array([name in choice for choice in options], dtype=bool)
        survival = self._estimates.survival_by(name, state, available)
        return Offer(name, survival, available, self._cost.propose_cost(name))

    def plan(self, state: BatchState) -> list[int]:
        """k for each of `state.sequences`, in order, 0 <= k <= max_k."""
        step = PlannedStep(state, self._max_k)
        if state.num_waiting > 0 and state.free_kv < SCARCE_KV:
            step.max_k = np.minimum(step.max_k, SCARCE_K)
        self._fixed_ids = frozenset(s.seq_id for s in state.sequences if s.fixed_k is not None)
        self._grounds = None
        ks = self._choose(step, state.now_s)
        self._set_wait(step, ks)
        decided = self._grounds.decision.ks if self._grounds else None
        self._reasons.count(step, ks, decided, self._phase)
        self._log.append(step, ks, self._phase, state.now_s, self._guard.ratio, self._grounds)
        return list(map(int, ks.tolist()))

    def _choose(self, step: PlannedStep, now_s: float) -> Ints:
        if not step.max_k.any():
            self._phase = "idle"
            return step.fixed_ks
        if self._guard.is_off(now_s):
            self._phase = "guard_off"
            return step.fixed_ks
        calibration = self._calibrate(step)
        if calibration is not None:
            self._phase = "calibrating"
            return calibration
        if self._is_baseline_due(step):
            self._phase = "baseline"
            return step.fixed_ks
        return self._decide(step)

    def _is_baseline_due(self, step: PlannedStep) -> bool:
        """Beside a prompt a look tells of such steps only: one without is waited for, but no longer
        than until the next look is due."""
        has_prefill = step.num_tokens > step.num_decodes
        return self._steps_since_baseline >= self._baseline_interval * (2 if has_prefill else 1)

    @property
    def _baseline_interval(self) -> int:
        """Steps between two looks at k = 0: close together while the baseline is hardly known,
        and far apart where it is far off."""
        steps = min(BASELINE_EVERY_STEPS, BASELINE_GROWTH * self._num_baseline_steps)
        return round(steps * self._decision.gain) if self._decision else steps

    def _calibrate(self, step: PlannedStep) -> Ints | None:
        """The ks of a step that only learns what things cost, while that is not known."""
        if self._num_baseline_steps < CALIBRATION_STEPS:
            return step.fixed_ks
        for index, drafter in enumerate(step.drafters):
            if self._cost.num_proposals(drafter) >= CALIBRATION_STEPS:
                continue
            trial = np.where(step.drafter == index, np.minimum(step.max_k, CALIBRATION_K), 0)
            if trial.any() and self._num_trials[drafter] < MAX_CALIBRATION_TRIALS:
                self._num_trials[drafter] += 1
                return step.fixed_ks + trial
        return None

    def _decide(self, step: PlannedStep) -> Ints:
        candidates = Candidates(self._estimates.survival(step), step.max_k, step.drafter)
        required = RETURN_TO_STAY if self._speculating else RETURN_TO_BEGIN
        costs = self._costs(step)
        keep = self._depth.kept()
        scan = self._depth.is_scan_due
        decision = decide(candidates, step.fixed_ks, costs, required, keep, scan)
        self._depth.observe(decision)
        self._decision = decision
        self._grounds = Grounds(candidates.survival, costs.propose, decision)
        self._speculating = bool(decision.ks.sum() > step.fixed_ks.sum())
        self._phase = "on" if self._speculating else "off"
        return self._probe(step, decision.ks, costs)

    def _costs(self, step: PlannedStep) -> StepCosts:
        alone_s, with_prefill_s = self._cost.run_s(
            [step.num_decodes, step.num_tokens], step.num_kv_tokens
        )
        return StepCosts(
            run_s=lambda added: self._cost.run_s(step.num_tokens + added, step.num_kv_tokens),
            propose=tuple(self._cost.propose_cost(name) for name in step.drafters),
            excused_s=max(float(with_prefill_s - alone_s), 0.0),
            max_s=self._max_step_s,
        )

    def _probe(self, step: PlannedStep, ks: Ints, costs: StepCosts) -> Ints:
        """Raise the k of one sequence where there is credit for a trial."""
        if not self._prober.is_due:
            return ks
        rows = np.flatnonzero((ks < step.max_k) & self._is_open(step, ks, costs))
        options = self._options(step, ks, rows)

        def price_s(option: ProbeOption) -> float:
            tried = ks.copy()
            tried[option.row] = option.probe_k
            return step.seconds(tried, costs) - step.seconds(ks, costs)

        option = self._prober.choose(options, price_s)
        if option is None:
            return ks
        tried = ks.copy()
        tried[option.row] = option.probe_k
        return tried if step.seconds(tried, costs) <= costs.max_s else ks

    def _options(self, step: PlannedStep, ks: Ints, rows: Ints) -> list[ProbeOption]:
        """The one to try again, and the one whose turn it is: those that draft nothing first."""
        undrafted = rows[ks[rows] == 0]
        turn = undrafted if len(undrafted) else rows
        seq_ids = [step.seq_ids[row] for row in turn.tolist()]
        chosen = [int(turn[self._prober.longest_waiting(seq_ids)])] if seq_ids else []
        if self._prober.follow_up in seq_ids:
            chosen.append(int(turn[seq_ids.index(self._prober.follow_up)]))
        return [
            ProbeOption(row, step.seq_ids[row], int(ks[row]), int(step.max_k[row]))
            for row in chosen
        ]

    def _is_open(self, step: PlannedStep, ks: Ints, costs: StepCosts) -> NDArray[np.bool_]:
        """[sequences]: whether trying a token more would tell anything. What lookup would have had
        accepted is known without trying; of a model, a depth that was often tried is."""
        is_open = np.zeros(len(ks), dtype=bool)
        for index, drafter in enumerate(step.drafters):
            if not costs.propose[index].is_flat:
                unknown = np.append(~self._estimates.is_known(drafter), False)
                is_open |= (step.drafter == index) & ((ks == 0) | unknown[ks])
        return is_open

    def _set_wait(self, step: PlannedStep, ks: Ints) -> None:
        asked = step.asked(ks)
        self._num_planned = int(ks.sum())
        error = max((self._cost.propose_error(drafter) for drafter in asked), default=0.0)
        expected = None
        # Who fixed K waits as long as the operator allows; who did not is not made to.
        is_own_choice = bool(step.fixed_ks.all())
        if all(map(self._is_time_known, asked)) and not is_own_choice:
            seconds = (self._cost.propose_s(name, *amount) for name, amount in asked.items())
            expected = sum(seconds)
        is_fixed = bool(step.fixed_ks.any())
        self._wait.set(expected, error, self._worth_s(step), self._cost.jitter_s(asked), is_fixed)

    def _is_time_known(self, drafter: str) -> bool:
        """Where a drafter was late again and again, the prior has to do."""
        known = self._cost.num_proposals(drafter) >= TRUSTED
        return known or self._num_late[drafter] >= MAX_CALIBRATION_TRIALS

    def _worth_s(self, step: PlannedStep) -> float:
        """Seconds of k = 0 that give as many tokens as this step's draft tokens are expected to;
        those that a client fixed are expected to be accepted.

        Unlimited where the purpose of the step is to learn.
        """
        decision, num_fixed = self._decision, int(step.fixed_ks.sum())
        tokens = float(num_fixed)
        if self._num_planned > num_fixed:
            if self._phase != "on" or decision is None:
                return math.inf
            if self._num_planned != int(decision.ks.sum()):
                return math.inf
            tokens += decision.expected_tokens
        if not tokens or not self.knows_steps:
            return math.inf
        return tokens * self._cost.run.at(step.num_decodes, step.num_kv_tokens) / step.num_decodes

    def wait_s(self) -> float:
        """How long the step just planned may wait for proposals; at most max_wait_ms."""
        return self._wait.limit_s

    def observe(self, result: StepResult) -> None:
        """Learn from an executed step."""
        self._num_steps += 1
        self._log.observe(result.sequences)
        # A clock that failed tells nothing of times; what was accepted stands.
        is_timed = result.num_tokens > 0 and result.has_sound_times
        if is_timed:
            result = result.with_physical_step()
            self._observe_costs(result)
        self._estimates.observe(result.sequences, self._prober)
        for sequence in result.sequences:
            if sequence.finished:
                self.close(sequence.seq_id)
        self._prober.end_step(result.step_s if is_timed else 0.0, self._speculating)
        if is_timed:
            plain = plain_step(result, self._fixed_ids)
            self._observe_speed(result, plain)
            self._observe_first_tokens(result, plain)

    def _observe_costs(self, result: StepResult) -> None:
        asked = asked_of(result.sequences)
        run_s = result.step_s - result.propose_s
        timings = tuple(t.within(result.step_s) for t in result.timings if t.is_sound)
        self._cost.observe_run(result.num_tokens, result.num_kv_tokens, run_s)
        self._cost.observe_timings(timings, asked)
        if asked:
            self._observe_wait(result, asked, timings)
        self._count_baseline(result)

    def close(self, seq_id: int) -> None:
        """Forget a sequence, however it ended; what it taught about its drafter stays."""
        self._estimates.close(seq_id)
        self._prober.close(seq_id)

    def _observe_wait(
        self,
        result: StepResult,
        asked: dict[str, tuple[int, int]],
        timings: tuple[DrafterTiming, ...],
    ) -> None:
        """A drafter that declined at once has not shown how long drafting takes. Nor has one that
        was late where a client fixed K: it is asked in every step, and learning from waits that
        were cut short would prolong the next ones up to `max_wait_ms`."""
        is_late = self._wait.observe(result.propose_s)
        is_fixed = any(r.planned_k > 0 and r.seq_id in self._fixed_ids for r in result.sequences)
        if not is_late or is_fixed:
            answered = {r.drafter for r in result.sequences if r.num_draft_tokens > 0}
            for name in asked.keys() - answered:
                self._num_late[name] += is_late
            asked = {name: amount for name, amount in asked.items() if name in answered}
        self._cost.observe_propose(asked, result.propose_s, timings)

    def _count_baseline(self, result: StepResult) -> None:
        """A step in which the controller asked for nothing shows the baseline, whatever clients
        fixed beside it: none must be able to put it off."""
        if not result.sequences:
            return
        if any(r.planned_k > 0 and r.seq_id not in self._fixed_ids for r in result.sequences):
            self._steps_since_baseline += 1
            return
        self._num_baseline_steps += 1
        if result.num_prefill_tokens == 0 or self._phase == "baseline":
            self._steps_since_baseline = 0

    def _observe_speed(self, result: StepResult, plain: PlainStep) -> None:
        """Compare speculation with its baseline: prompts and fixed K are in both."""
        committed = sum(r.num_committed_tokens for r in result.sequences)
        self._committed = RATE_DECAY * self._committed + committed
        self._seconds = RATE_DECAY * self._seconds + result.step_s
        if self._phase != "on" or not result.sequences:
            return
        if self._num_baseline_steps < GUARDED_FROM_BASELINE_STEPS:
            return
        baseline_s = plain.baseline_s(self._cost, result.num_kv_tokens)
        self._baseline_total_s += baseline_s
        self._speculating_total_s += result.step_s
        self._guard.observe(baseline_s, result.step_s, result.now_s)

    def _observe_first_tokens(self, result: StepResult, plain: PlainStep) -> None:
        """Trip the guard where drafting keeps those waiting whose first token is still to come."""
        decodes, kv_tokens = len(result.sequences), result.num_kv_tokens
        if decodes:
            plain_s = plain.seconds(self._cost, kv_tokens)
            faster = min(plain_s / result.step_s, MAX_SURPRISE)
            self._first_tokens.observe_gain(plain.num_committed / decodes * faster)
        gain = self._first_tokens.gain
        more = (gain - 1) * decodes
        plain_s = plain.seconds(self._cost, gain * kv_tokens, more)
        added_s = result.step_s - plain_s if self._speculating else 0.0
        self._first_tokens.observe(added_s, result.first_tokens_s, result.now_s)
        if self._first_tokens.take_alarm() and self._speculating:
            self._guard.trip(FIRST_TOKENS_LATER, result.now_s)

    def explain(self, seq_id: int, last_steps: int | None = None) -> tuple[Explanation, ...]:
        """Why a sequence got its k, step by step, as far as the log reaches."""
        return self._log.explanations(seq_id, last_steps)

    def snapshot(self) -> dict[str, float | str]:
        """State for metrics and for people who ask why K is what it is."""
        decision = self._decision
        values: dict[str, float | str] = {
            "phase": self._phase,
            "shadow_price": decision.shadow_price if decision else 0.0,
            "predicted_goodput": decision.goodput if decision else 0.0,
            "predicted_baseline": decision.baseline if decision else 0.0,
            "measured_goodput": self._committed / self._seconds if self._seconds else 0.0,
            "depth": float(decision.depth if decision else 0),
            "guard_ratio": self._guard.ratio,
            "guard_trips": float(self._guard.num_trips),
            "guard_reason": self._guard.reason,
            "baseline_s": self._baseline_total_s,
            "speculating_s": self._speculating_total_s,
            "first_token_rise": self._first_tokens.rise,
            "probes": float(self._prober.num_probes),
            "wait_s": self._wait.limit_s,
            "timeouts": float(self._wait.num_timeouts),
            "steps": float(self._num_steps),
            **self._estimates.snapshot(),
            **self._cost.snapshot(),
            **{f"guard_trips_{why}": float(n) for why, n in self._guard.trips.items()},
            **{f"steps_by_reason_{why}": float(n) for why, n in self._reasons.totals.items()},
        }
        return values
