"""Everything that is slow the first time in a draft engine, done before a target is attached."""

from __future__ import annotations

from specdec.engine.draft_engine import DraftEngine
from specdec.engine.draft_store import Outbox
from specdec.engine.warmup import warm_up_executor
from specdec.params import SamplingParams
from specdec.sequence import Verification
from specdec.speculation.messages import Commit, Open, Proposal

TARGET = "warm-up"
MAX_STEPS = 100
PROMPT_TOKENS = 128


def warm_up_draft(engine: DraftEngine) -> None:
    """Run every reachable shape, then one session per verification rule through a draft."""
    scheduler = engine.config.scheduler
    warm_up_executor(engine.executor, scheduler.max_num_batched_tokens, scheduler.max_num_sequences)
    engine.add_target(TARGET, engine.executor.vocab_size)
    num_tokens = _prompt_length(engine)
    for session_id, verification in enumerate(Verification):
        engine.submit(TARGET, _session(session_id, verification, num_tokens))
    for _ in range(MAX_STEPS):
        if not engine.has_work:
            break
        _check(engine.step())
    engine.drop_target(TARGET)


def _check(sent: Outbox) -> None:
    """Plain parameters are refused only where sampling itself is broken: nobody could be served."""
    for _, message in sent:
        if isinstance(message, Proposal) and message.reason == "unsupported":
            raise RuntimeError("draft: sampling failed at warm-up")


def _prompt_length(engine: DraftEngine) -> int:
    """Long enough that the engine learns what prompts cost, where all sessions' fit."""
    num_slots = engine.executor.num_blocks * engine.executor.block_size
    room = min(num_slots // (2 * len(Verification)), engine.info.max_model_len - 4)
    return max(1, min(PROMPT_TOKENS, room))


def _session(
    session_id: int, verification: Verification, num_prompt_tokens: int
) -> list[Open | Commit]:
    temperature = 0.0 if verification is Verification.GREEDY else 1.0
    params = SamplingParams(temperature=temperature, ignore_eos=True)
    prompt = [1 + session_id] * num_prompt_tokens  # differing, so that none is found cached
    return [
        Open(session_id, 1, prompt, [], params, seed=1, verification=verification),
        Commit(session_id, 1, 0, 1, [1], k=2, deadline_ms=10_000.0),
    ]
