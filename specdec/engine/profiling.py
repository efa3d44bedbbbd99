"""Measures what steps of a target and rounds of a draft take, on the real model runner.

A target's steps overwrite its KV pool, cached prefixes included: only before the first request.
It decides which shapes are run and how often; what the times mean is the cost model's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from specdec.engine.draft_engine import DraftEngine
from specdec.errors import UnavailableError
from specdec.model.executor import Executor
from specdec.params import SamplingParams
from specdec.sequence import Verification
from specdec.speculation.controller.profile import DraftPoint, ProfilePoint
from specdec.speculation.messages import Commit, Open, Proposal
from specdec.step_plan import StepPlan

STEPS_PER_OCTAVE = 8
KV_LEVELS = tuple(4**power for power in range(4, 12))
KV_COLUMNS = (1, 16, 128)
DRAFT_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
DRAFT_PROMPT_TOKENS = 16
# Noise only adds, so the least of a few is the time; a step that takes seconds is not noisy.
REPEATS = 3
MAX_SECONDS_PER_POINT = 1.5
TARGET = "profile"

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class StepShape:
    """A step of `num_tokens` query tokens over `num_kv_tokens` cached ones."""

    num_tokens: int
    num_kv_tokens: int


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How large a step may become, and how many draft tokens a sequence may have in it."""

    max_num_tokens: int
    max_num_sequences: int
    max_k: int


def step_shapes(executor: Executor, limits: StepLimits) -> list[StepShape]:
    """A cross: all numbers of tokens without cached text, and a few over rising amounts of it.

    The time over tokens is a staircase and needs eight points an octave; over cached text it is
    memory read at one speed.
    """
    tokens = list(_token_counts(limits.max_num_tokens))
    shapes = [StepShape(n, 0) for n in tokens]
    shapes += [StepShape(n, kv) for n in KV_COLUMNS if n in tokens for kv in KV_LEVELS]
    return [shape for shape in shapes if _fits(shape, executor, limits)]


def _token_counts(most: int) -> Iterator[int]:
    """1, 2, ... 8, then STEPS_PER_OCTAVE to each doubling, and the most."""
    n = 1
    while n < most:
        yield n
        n += max(1, (1 << n.bit_length() - 1) // STEPS_PER_OCTAVE)
    yield most


def measure_steps(
    executor: Executor,
    shapes: Iterable[StepShape],
    limits: StepLimits,
    repeats: int = REPEATS,
    advance: Callable[[], None] = lambda: None,
    clock: Clock = time.perf_counter,
) -> tuple[ProfilePoint, ...]:
    """Each shape is run once unmeasured, since kernels are made per shape, then `repeats` times.
    `advance` is called after each shape."""
    points = []
    for shape in shapes:
        plan = step_plan(shape, executor, limits)
        _run(executor, plan)
        seconds = _least(partial(_run, executor, plan), repeats, clock)
        points.append(ProfilePoint(shape.num_tokens, shape.num_kv_tokens, seconds))
        advance()
    return tuple(points)


def _least(work: Callable[[], object], repeats: int, clock: Clock) -> float:
    best, spent = float("inf"), 0.0
    for _ in range(repeats):
        started_s = clock()
        work()
        elapsed_s = max(clock() - started_s, 1e-9)
        best, spent = min(best, elapsed_s), spent + elapsed_s
        if spent >= MAX_SECONDS_PER_POINT:
            break
    return best


def _run(executor: Executor, plan: StepPlan) -> list[int]:
    """Up to the token ids of the argmax, which have to come from the device, as a step's do."""
    tokens: list[int] = executor.execute(plan).argmax(dim=-1).tolist()
    return tokens


# -- shapes of a target's step ---------------------------------------------------------------------


def step_plan(shape: StepShape, executor: Executor, limits: StepLimits) -> StepPlan:
    """Sequences with half of max_k draft tokens each; what exceeds all sequences at max_k is a
    prompt's chunk."""
    plan, block = StepPlan(), 0
    lens = _query_lens(shape.num_tokens, limits)
    for length, cached in zip(lens, _cached(shape, lens), strict=True):
        num_blocks = -(-(cached + length) // executor.block_size)
        table = list(range(block, block + num_blocks))
        block += num_blocks
        rows = length if length <= limits.max_k + 1 else 1
        plan.add([1] * length, cached, table, executor.block_size, rows)
    return plan


def _query_lens(num_tokens: int, limits: StepLimits) -> list[int]:
    usual = 1 + limits.max_k // 2
    num_sequences = min(-(-num_tokens // usual), limits.max_num_sequences)
    if num_tokens <= num_sequences * (limits.max_k + 1):
        cuts = [num_tokens * i // num_sequences for i in range(num_sequences + 1)]
        return [end - start for start, end in pairwise(cuts)]
    decodes = [usual] * (num_sequences - 1)
    return [*decodes, num_tokens - sum(decodes)]


def _cached(shape: StepShape, lens: list[int]) -> list[int]:
    cuts = [shape.num_kv_tokens * i // len(lens) for i in range(len(lens) + 1)]
    return [end - start for start, end in pairwise(cuts)]


def _fits(shape: StepShape, executor: Executor, limits: StepLimits) -> bool:
    lens = _query_lens(shape.num_tokens, limits)
    contexts = [length + cached for length, cached in zip(lens, _cached(shape, lens), strict=True)]
    num_blocks = sum(-(-context // executor.block_size) for context in contexts)
    return num_blocks <= executor.num_blocks and max(contexts) <= executor.model_max_len


# -- rounds of a draft -----------------------------------------------------------------------------


def draft_shapes(
    engine: DraftEngine, max_num_sequences: int, repeats: int = REPEATS
) -> list[tuple[int, int]]:
    """(sequences, depth): powers of two sequences, by depths up to the draft's limit, as far as
    the draft's KV pool holds them."""
    longest = engine.info.max_num_speculative_tokens
    context = DRAFT_PROMPT_TOKENS + repeats + 1 + longest
    room = engine.executor.num_blocks // -(-context // engine.executor.block_size)
    most = max(1, min(max_num_sequences, engine.config.scheduler.max_num_sequences, room))
    batches = sorted({*(2**power for power in range(most.bit_length())), most})
    depths = [depth for depth in DRAFT_DEPTHS if depth < longest] + [longest]
    return [(batch, depth) for batch in batches for depth in depths]


def measure_drafts(
    engine: DraftEngine,
    shapes: Iterable[tuple[int, int]],
    repeats: int = REPEATS,
    advance: Callable[[], None] = lambda: None,
    clock: Clock = time.perf_counter,
) -> tuple[DraftPoint, ...]:
    """Whole rounds, from a commit to the last proposal, in the default verification mode.

    Raises UnavailableError where the draft declines.
    """
    points = []
    for batch, depth in shapes:
        rounds = _Rounds(engine, batch, depth)
        try:
            rounds.run()
            points.append(DraftPoint(batch, depth, _least(rounds.run, repeats, clock)))
        finally:
            rounds.close()
        advance()
    return tuple(points)


class _Rounds:
    """`batch` sessions of one target that ask for `depth` draft tokens, round after round."""

    def __init__(self, engine: DraftEngine, batch: int, depth: int) -> None:
        self._engine = engine
        self._batch, self._depth = batch, depth
        self._round = 0
        engine.add_target(TARGET, engine.executor.vocab_size)
        engine.submit(TARGET, [self._open(session_id) for session_id in range(batch)])
        self._finish()

    def _open(self, session_id: int) -> Open:
        params = SamplingParams(ignore_eos=True)
        prompt = [1 + session_id] * DRAFT_PROMPT_TOKENS  # differing: none is found cached
        return Open(session_id, 1, prompt, [], params, seed=1, verification=Verification.BLOCK)

    def run(self) -> None:
        """One token committed to each session, and draft tokens asked for. A draft that does not
        give them all has not shown what they take."""
        base_len, self._round = self._round, self._round + 1
        asks = [
            Commit(i, 1, base_len, self._round, [1], k=self._depth, deadline_ms=600_000.0)
            for i in range(self._batch)
        ]
        self._engine.submit(TARGET, asks)
        proposals = self._finish()
        drafted = sum(len(proposal.token_ids) for proposal in proposals)
        if drafted != self._depth * self._batch:
            reasons = {proposal.reason for proposal in proposals} - {""}
            raise UnavailableError(f"the draft declined while measured: {', '.join(reasons)}")

    def _finish(self) -> list[Proposal]:
        proposals = []
        while self._engine.has_work:
            sent = self._engine.step()
            proposals += [message for _, message in sent if isinstance(message, Proposal)]
        return proposals

    def close(self) -> None:
        self._engine.drop_target(TARGET)
