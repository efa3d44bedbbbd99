"""What the draft engine's tests share: an executor that imitates the paged pool exactly, a clock
that only passes when told to, and a target that speaks the protocol by hand."""

from __future__ import annotations

import math
import zlib
from array import array

import numpy as np
import pytest
import torch

from specdec.config import CacheConfig, DraftConfig, ModelConfig, SchedulerConfig
from specdec.engine.draft_engine import DraftEngine
from specdec.params import SamplingParams
from specdec.sequence import resolve_verification
from specdec.speculation.messages import Close, Commit, DraftInfo, Open, Proposal
from specdec.speculation.verifier import VerifyItem, verify_step
from specdec.step_plan import StepPlan
from tests.logit_rows import logit_rows

VOCAB_SIZE = 40
EOS = 0
FAR_MS = 1e6


class Clock:
    """Seconds that pass only by `advance`."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def context_logits(context: list[int]) -> np.ndarray:
    """Logits [V] that depend on every token of the context: one wrong or stale token anywhere in
    the pool changes them all."""
    seed = zlib.crc32(array("q", context).tobytes())
    return np.random.default_rng(seed).normal(scale=2.0, size=VOCAB_SIZE)


class PoolExecutor:
    """Keeps the token of every slot instead of its keys and values, and reads contexts back
    through the block tables, as attention would."""

    def __init__(
        self, num_blocks=64, block_size=4, model_max_len=256, clock=None, pass_s=0.0, token_s=0.0
    ):
        self.vocab_size = VOCAB_SIZE
        self.model_max_len = model_max_len
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.device = torch.device("cpu")
        self.plans: list[StepPlan] = []
        self.error: Exception | None = None
        self.num_errors = math.inf  # how often `error` is raised before all is well again
        self.is_shut_down = False
        self._slots = [None] * (num_blocks * block_size)
        self._clock, self._pass_s, self._token_s = clock, pass_s, token_s

    def execute(self, plan: StepPlan) -> torch.Tensor:
        if self.error is not None and self.num_errors > 0:
            self.num_errors -= 1
            raise self.error
        assert all(plan.query_lens)
        assert len(set(plan.slot_mapping)) == plan.num_tokens, "two tokens for one slot"
        self.plans.append(plan)
        for slot, token_id in zip(plan.slot_mapping, plan.token_ids, strict=True):
            self._slots[slot] = token_id
        if self._clock is not None:
            self._clock.advance(self._pass_s + self._token_s * plan.num_tokens)
        rows = [context_logits(context) for context in self._contexts(plan)]
        return torch.tensor(np.array(rows).reshape(len(rows), VOCAB_SIZE))

    def _contexts(self, plan: StepPlan) -> list[list[int]]:
        contexts, first = [], 0
        for query_len, context_len, table in zip(
            plan.query_lens, plan.context_lens, plan.block_tables, strict=True
        ):
            slots = [
                table[position // self.block_size] * self.block_size + position % self.block_size
                for position in range(context_len)
            ]
            context = [self._slots[slot] for slot in slots]
            for row in plan.logit_rows:
                if first <= row < first + query_len:
                    contexts.append(context[: plan.positions[row] + 1])
            first += query_len
        return contexts

    def shutdown(self) -> None:
        self.is_shut_down = True


def make_engine(executor=None, clock=None, eos=frozenset({EOS}), max_k=8, cache=True, **options):
    """A draft engine over a PoolExecutor; `options` go to DraftConfig and SchedulerConfig."""
    executor = executor or PoolExecutor()
    scheduler = {
        name: options.pop(name)
        for name in ("max_num_batched_tokens", "max_num_sequences")
        if name in options
    }
    config = DraftConfig(
        draft=ModelConfig(model="tiny"),
        cache=CacheConfig(block_size=executor.block_size, enable_prefix_caching=cache),
        scheduler=SchedulerConfig(**{"max_num_batched_tokens": 64, **scheduler}),
        max_num_speculative_tokens=max_k,
        **options,
    )
    info = DraftInfo("tiny", "", VOCAB_SIZE, executor.model_max_len, "draft_model", 1, 1, max_k)
    engine = DraftEngine(executor, config, info, eos, clock or Clock())
    for target in ("a", "b"):
        engine.add_target(target, VOCAB_SIZE)
    return engine


GREEDY = SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True)
COUPLED = SamplingParams(temperature=0.9, seed=11, max_tokens=500, ignore_eos=True)
BLOCK = SamplingParams(temperature=0.9, max_tokens=500, ignore_eos=True)
PROMPT = list(range(1, 12))
MODES = pytest.mark.parametrize(
    "params", [pytest.param(GREEDY, id="greedy"), pytest.param(COUPLED, id="coupled")]
)


def target_token(text: list[int], num_prompt: int, params: SamplingParams, seed: int) -> int:
    """What a target with the same model commits next when nothing is drafted (greedy, coupled)."""
    stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else {EOS})
    rows = logit_rows(params, text[:num_prompt], text[num_prompt:], (), stops)
    item = VerifyItem(rows, resolve_verification(params), seed, len(text), round=0)
    logits = torch.tensor(context_logits(text))[None]
    return verify_step(logits, [item])[0].next_token_id


class Peer:
    """One session as its target sees it, by hand: text, epoch, round."""

    def __init__(self, engine, prompt, params, target="a", session_id=1, seed=11):
        self.engine, self.target, self.session_id = engine, target, session_id
        self.params, self.seed = params, seed
        self.prompt, self.output = list(prompt), []
        self.epoch, self.round, self.sent_len = 0, 0, 0
        self.open()

    @property
    def text(self):
        return self.prompt + self.output

    @property
    def session(self):
        return self.engine.sessions.get(self.target, self.session_id)

    def open(self) -> None:
        self.epoch += 1
        self.sent_len = len(self.output)
        self._submit(
            Open(
                self.session_id,
                self.epoch,
                list(self.prompt),
                list(self.output),
                self.params,
                self.seed,
                resolve_verification(self.params),
            )
        )

    def commit(self, token_ids, k, deadline_ms=FAR_MS) -> Commit:
        """Commit tokens and tell the draft."""
        self.output += token_ids
        self.round += 1
        new = self.output[self.sent_len :]
        message = Commit(
            self.session_id, self.epoch, self.sent_len, self.round, new, k, deadline_ms
        )
        self.sent_len = len(self.output)
        self._submit(message)
        return message

    def close(self) -> None:
        self._submit(Close(self.session_id, self.epoch))

    def future(self, num_tokens: int) -> list[int]:
        """The target's own next tokens."""
        text = self.text
        for _ in range(num_tokens):
            text.append(target_token(text, len(self.prompt), self.params, self.seed))
        return text[len(self.text) :]

    def mine(self, sent) -> list[Proposal]:
        return [
            message
            for target, message in sent
            if target == self.target and message.session_id == self.session_id
        ]

    def ask(self, token_ids, k, deadline_ms=FAR_MS) -> Proposal:
        """Commit, ask, run the engine until the answer."""
        self.commit(token_ids, k, deadline_ms)
        for _ in range(200):
            answers = [m for m in self.mine(self.engine.step()) if m.round == self.round]
            check(self.engine)
            if answers:
                assert len(answers) == 1
                return answers[0]
        raise AssertionError("no answer")

    def _submit(self, message) -> None:
        self.engine.submit(self.target, [message])


def check(engine) -> None:
    """The books agree, and no session holds computed tokens that it may not trust."""
    sessions = engine.sessions.all()
    engine.memory.check_integrity(sessions)
    engine.sessions.check_books()
    for session in sessions:
        assert session.num_computed_tokens < max(1, session.num_known_tokens)


def run_idle(engine, max_steps=300):
    """Step until nothing is left to do; everything that was sent."""
    sent = []
    for _ in range(max_steps):
        if not engine.has_work:
            return sent
        sent += engine.step()
        check(engine)
    raise AssertionError("never idle")


def ready(engine, prompt=PROMPT, params=COUPLED, **options) -> Peer:
    """A session whose prompt is computed."""
    peer = Peer(engine, prompt, params, **options)
    assert [m.reason for m in peer.mine(run_idle(engine))] == [""]
    return peer


def other(token_id: int) -> int:
    """Another token than this one."""
    return (token_id + 1) % VOCAB_SIZE
