"""A draft engine in the target's own process and thread, behind the Proposer interface.

The same engine and the same session state machine as over gRPC, without the wire: for
`specdec generate`, for embedders and for tests. Drafting takes the target's own time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf

from specdec.config import DraftConfig
from specdec.engine.draft_builder import build_draft_engine
from specdec.engine.draft_engine import DraftEngine
from specdec.engine.draft_store import Outbox
from specdec.engine.draft_warmup import warm_up_draft
from specdec.errors import ConfigError
from specdec.model.tokenizer import Tokenizer, first_difference
from specdec.sequence import Sequence
from specdec.speculation.draft_sessions import PREFILLING, UNAVAILABLE, DraftSessions
from specdec.speculation.messages import Heartbeat, TargetMessage
from specdec.speculation.proposer import Committed, DraftTokens

logger = logging.getLogger(__name__)

TARGET = "local"
MEMBER = "local"
FAILED = "draft_failed"
PROMPT_TOO_LONG = "draft_prompt_too_long"
# Of the draft's time for all tokens that a request may still want.
PROMPT_SHARE = 0.25


class LocalDraftProposer:
    """Runs draft passes inside `propose`. `vocab_size` is the target's."""

    name = "draft"
    takes_time = True

    def __init__(
        self,
        engine: DraftEngine,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.sessions = DraftSessions(vocab_size)
        self._clock = clock
        engine.add_target(TARGET, vocab_size)

    def open(self, sequences: SequenceOf[Sequence]) -> None:
        for sequence in sequences:
            self.sessions.add(sequence)
            if self._pays(sequence):
                self._submit(self.sessions.connect(sequence.seq_id, MEMBER, self.engine.info))

    def _pays(self, sequence: Sequence) -> bool:
        """Whether the prompt takes little of the draft's time beside the tokens to be drafted.

        Here the target waits while the draft computes a prompt. A draft token in time saves about
        as much as a draft pass takes, and the text may end before its limit. A client that fixed K
        is not asked, and neither is the unknown.
        """
        cost = self.engine.cost
        if sequence.params.speculation.mode == "fixed" or not cost.token_s or not cost.draft_step_s:
            return True
        num_tokens = min(
            sequence.params.max_tokens, sequence.max_model_len - sequence.num_prompt_tokens
        )
        prompt_s = sequence.num_prompt_tokens * cost.token_s
        return prompt_s <= PROMPT_SHARE * num_tokens * cost.draft_step_s

    def available(self, seq_id: int) -> bool:
        """A text that is still to be computed is computed inside `propose`."""
        if self.sessions.available(seq_id):
            return True
        return self.sessions.disabled_reason(seq_id) == PREFILLING

    def confidence(self, seq_id: int) -> None:
        """It would have to draft to tell."""

    def prepare(self, seq_ids: SequenceOf[int]) -> None:
        """A sequence that is alone waits for its prompt here; among others the prompt proceeds in
        `propose`, a piece at a time."""
        if len(seq_ids) > 1:
            return
        for seq_id in seq_ids:
            while self.sessions.disabled_reason(seq_id) == PREFILLING and self.engine.has_work:
                self._step()

    def propose(self, ks: Mapping[int, int], wait_s: float) -> dict[int, DraftTokens]:
        deadline_s = self._clock() + wait_s
        unasked = dict(ks)
        self._ask_ready(unasked, deadline_s)
        must_wait_for_text = len(unasked) == len(ks)
        while self._is_waiting(ks) or (unasked and must_wait_for_text):
            if self._clock() >= deadline_s or not self.engine.has_work:
                break
            self._step()
            self._ask_ready(unasked, deadline_s)
        return self.sessions.collect(ks)

    def num_matching(self, seq_id: int, token_ids: SequenceOf[int]) -> None:
        """It would have to draft to tell."""

    def commit(self, results: SequenceOf[Committed]) -> None:
        for result in results:
            self.sessions.commit(result)

    def close(self, seq_ids: SequenceOf[int]) -> None:
        for seq_id in seq_ids:
            self._submit(self.sessions.remove(seq_id))

    def disabled_reason(self, seq_id: int) -> str | None:
        reason = self.sessions.disabled_reason(seq_id)
        is_known = self.sessions.get(seq_id) is not None
        return PROMPT_TOO_LONG if is_known and reason == UNAVAILABLE else reason

    def warm_up(self) -> None:
        """Run every kernel of the draft once, before the first sequence."""
        warm_up_draft(self.engine)

    def shutdown(self) -> None:
        self.engine.executor.shutdown()

    def _ask_ready(self, unasked: dict[int, int], deadline_s: float) -> None:
        """Ask for the sequences whose text is computed; the others stay in `unasked`."""
        left_ms = max(0.0, deadline_s - self._clock()) * 1000
        for seq_id, k in list(unasked.items()):
            if not self.sessions.available(seq_id):
                continue
            del unasked[seq_id]
            self._submit(self.sessions.ask(seq_id, k, left_ms))

    def _is_waiting(self, ks: Mapping[int, int]) -> bool:
        return any(self.sessions.is_waiting(seq_id) for seq_id in ks)

    def _submit(self, message: TargetMessage | None) -> None:
        if message is not None:
            self.engine.submit(TARGET, [message])

    def _step(self) -> None:
        """One draft pass; an error of the draft ends speculation for the sequences open now."""
        try:
            self._receive(self.engine.step())
        except Exception:
            logger.exception("the local draft failed")
            self.engine.fail()
            for seq_id in self.sessions.of_member(MEMBER):
                self._submit(self.sessions.disconnect(seq_id, FAILED))

    def _receive(self, sent: Outbox) -> None:
        for _, message in sent:
            if not isinstance(message, Heartbeat):
                self._submit(self.sessions.receive(MEMBER, message))


def build_local_draft(
    config: DraftConfig, tokenizer: Tokenizer | None, vocab_size: int
) -> LocalDraftProposer:
    """Load the draft model of `config` for a target with this tokenizer and vocabulary size.

    Raises ConfigError where a token means something else to the draft, naming it.
    """
    engine, draft_tokenizer = build_draft_engine(config)
    difference = tokenizer and first_difference(tokenizer, draft_tokenizer)
    if difference:
        engine.executor.shutdown()
        raise ConfigError(f"the draft does not fit the target: {difference}", field="draft.model")
    return LocalDraftProposer(engine, vocab_size)
