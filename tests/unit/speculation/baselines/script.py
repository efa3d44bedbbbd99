"""Drives a policy step by step with outcomes that a test states."""

from __future__ import annotations

from collections.abc import Callable

from specdec.speculation.controller import (
    BatchState,
    Controller,
    SequenceResult,
    SequenceState,
    StepResult,
)

Accept = Callable[[int], int]
"""k -> accepted draft tokens."""


def sequence(
    seq_id: int = 0, max_k: int = 100, fixed_k: int | None = None, drafter: str | None = "draft"
) -> SequenceState:
    return SequenceState(seq_id, 100, max_k, fixed_k, drafter)


def batch_of(size: int, drafter: str = "draft") -> list[SequenceState]:
    return [sequence(seq_id, drafter=drafter) for seq_id in range(size)]


def state(sequences: list[SequenceState], num_kv_tokens: int = 100) -> BatchState:
    return BatchState(sequences, 0, num_kv_tokens, 0.0)


def outcome(s: SequenceState, k: int, drafted: int, accepted: int) -> SequenceResult:
    return SequenceResult(s.seq_id, s.drafter, k, drafted, accepted, accepted + 1, False)


def result(
    sequences: list[SequenceResult],
    num_kv_tokens: int = 100,
    propose_s: float = 0.0,
    target_s: float = 0.01,
) -> StepResult:
    num_tokens = sum(1 + s.num_draft_tokens for s in sequences)
    return StepResult(
        num_tokens=num_tokens,
        num_prefill_tokens=0,
        num_kv_tokens=num_kv_tokens,
        propose_s=propose_s,
        run_s=target_s,
        step_s=propose_s + target_s,
        sequences=sequences,
        now_s=0.0,
    )


def step(policy: Controller, sequences: list[SequenceState], accept: Accept) -> list[int]:
    """One step in which every proposal has its full length; the planned ks."""
    ks = policy.plan(state(sequences))
    policy.observe(
        result([outcome(s, k, k, accept(k)) for s, k in zip(sequences, ks, strict=True)])
    )
    return ks


def steps(policy: Controller, size: int, accept: Accept, count: int) -> list[int]:
    """The k of the first of `size` sequences in `count` steps."""
    return [step(policy, batch_of(size), accept)[0] for _ in range(count)]
