"""A simulated engine: sequences with known acceptance, a step with known cost, seeded noise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from specdec.speculation.controller import (
    BatchState,
    Controller,
    SequenceResult,
    SequenceState,
    StepResult,
)
from specdec.speculation.controller.acceptance import prior_of
from specdec.speculation.controller.interface import Scored


def memory_bound(num_tokens: int, num_kv_tokens: int) -> float:
    """60 ms for one token, 4 % more for each further one, a little for the context."""
    return 0.060 * (1 + 0.04 * (num_tokens - 1)) + 1e-6 * num_kv_tokens


def draft_model(depth: int, num_draft_tokens: int) -> float:
    """2 ms of messages and 9 ms for each draft step."""
    return 0.002 + 0.009 * depth if depth else 0.0


def lookup(depth: int, num_draft_tokens: int) -> float:
    return 0.0


@dataclass
class World:
    """Runs a controller against sequences; `alpha[seq_id]` accepts each draft token alone."""

    controller: Controller
    alpha: dict[int, float]
    drafter: str = "draft"
    max_k: int = 8
    run_s: Callable[[int, int], float] = memory_bound
    propose_s: Callable[[int, int], float] = draft_model
    noise: float = 0.0
    seed: int = 0
    fixed_k: dict[int, int] = field(default_factory=dict)
    now_s: float = 0.0
    committed: int = 0
    kv: int = 200
    declining: bool = False
    first_tokens_s: tuple[float, ...] = ()
    confidence: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_lookup = prior_of(self.drafter).relative_draft_s == 0
        self.random = random.Random(self.seed)
        self.ks: dict[int, list[int]] = {seq_id: [] for seq_id in self.alpha}

    def steps(self, count: int, num_prefill_tokens: int = 0) -> None:
        for _ in range(count):
            self.step(num_prefill_tokens)

    def step(self, num_prefill_tokens: int = 0) -> None:
        states = [
            SequenceState(
                s, self.kv, self.max_k, self.fixed_k.get(s), self.drafter, "", self.confidence
            )
            for s in self.alpha
        ]
        kv = self.kv * len(states)
        ks = self.controller.plan(BatchState(states, num_prefill_tokens, kv, self.now_s))
        assert len(ks) == len(states)
        wait_s = self.controller.wait_s()
        propose_s = 0.0 if self.declining else self.noisy(self.propose_s(max(ks), sum(ks)))
        late = self.declining or propose_s > wait_s
        propose_s = min(propose_s, wait_s)
        num_tokens = num_prefill_tokens + len(ks) + (0 if late else sum(ks))
        run_s = self.noisy(self.run_s(num_tokens, kv))
        self.now_s += propose_s + run_s
        results = [
            self.outcome(s, k, 0 if late else k) for s, k in zip(self.alpha, ks, strict=True)
        ]
        self.controller.observe(
            StepResult(
                num_tokens=num_tokens,
                num_prefill_tokens=num_prefill_tokens,
                num_kv_tokens=kv,
                propose_s=propose_s,
                run_s=run_s,
                step_s=propose_s + run_s,
                sequences=results,
                now_s=self.now_s,
                first_tokens_s=self.first_tokens_s,
            )
        )

    def noisy(self, seconds: float) -> float:
        return seconds * (1 + self.noise * self.random.expovariate(1.0))

    def outcome(self, seq_id: int, planned_k: int, drafted: int) -> SequenceResult:
        """Lookup costs nothing to ask: what it would have said is compared with every committed
        token, one more than was accepted, whether it proposed or not."""
        right = 0
        while right <= drafted and self.random.random() < self.alpha[seq_id]:
            right += 1
        accepted = min(right, drafted)
        self.ks[seq_id].append(planned_k)
        self.committed += accepted + 1
        return SequenceResult(
            seq_id,
            self.drafter,
            planned_k,
            drafted,
            accepted,
            accepted + 1,
            finished=False,
            scored=(Scored(self.drafter, accepted + 1, right),) if self.is_lookup else (),
        )

    @property
    def speed(self) -> float:
        return self.committed / self.now_s

    def reset_clock(self) -> None:
        """Measure from here on; the controller's clock goes on."""
        self.committed = 0
        self.started_s = self.now_s

    @property
    def speed_since(self) -> float:
        return self.committed / (self.now_s - self.started_s)
