"""One session as the draft keeps it: the target's committed text, and what was drafted beyond it.

Pure state. It aligns itself to commits and says what is to be computed next; it runs no model,
owns no memory (the engine fills and frees its block table) and knows no other session.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec.sampling.law import SparseLaw
from specdec.sampling.request_logits import RequestLogits
from specdec.sequence import Verification
from specdec.speculation.messages import Commit, Open, Proposal

LAW_MODES = frozenset({Verification.REJECTION, Verification.BLOCK})


class OutOfStep(Exception):
    """A commit does not continue the text that this draft holds; the target must open anew."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Ask:
    """A wish for `k` draft tokens, not answered yet. Times in seconds of the engine's clock."""

    k: int
    round: int
    received_s: float
    deadline_s: float


@dataclass(slots=True, eq=False)
class Session:
    """The draft's copy of one sequence.

    `token_ids` is committed text, prompt included; `tail` are drafted tokens behind it, with one
    law each in `tail_laws` in rejection and block mode. `num_computed_tokens` counts the leading
    tokens of text + tail whose keys and values are in `block_table`; the last token of text + tail
    is never among them, since its logits are what the next draft token is sampled from.

    `num_lawful`: length of the tail before the first row that made no law, None where all did. What
    stands behind it is never sent; it keeps the answer's time, which must not tell of values.

    `is_wanted`: memory and computation may be spent on it. `is_ready`: the target knows that the
    text is computed.
    """

    target: str
    opened: Open
    token_ids: list[int]
    stop_token_ids: frozenset[int]
    request_logits: RequestLogits
    max_model_len: int
    last_used_s: float
    tail: list[int] = field(default_factory=list)
    tail_laws: list[SparseLaw] = field(default_factory=list)
    num_lawful: int | None = None
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    ask: Ask | None = None
    last_round: int = 0
    is_wanted: bool = True
    is_ready: bool = False

    @classmethod
    def of(
        cls,
        target: str,
        opened: Open,
        eos_token_ids: frozenset[int],
        max_model_len: int,
        now_s: float,
    ) -> Session:
        params = opened.params
        eos = frozenset() if params.ignore_eos else eos_token_ids
        stops = eos.union(params.stop_token_ids)
        text = opened.prompt_token_ids + opened.output_token_ids
        return cls(
            target=target,
            opened=opened,
            token_ids=text,
            stop_token_ids=stops,
            request_logits=RequestLogits(params, text, len(opened.prompt_token_ids), stops),
            max_model_len=max_model_len,
            last_used_s=now_s,
        )

    @property
    def key(self) -> tuple[str, int]:
        return self.target, self.opened.session_id

    @property
    def num_tokens(self) -> int:
        """Length of the committed text."""
        return len(self.token_ids)

    @property
    def room(self) -> int:
        """Draft tokens that the draft's context has room for behind the committed text."""
        return self.max_model_len - self.num_tokens

    @property
    def num_known_tokens(self) -> int:
        """Length of committed text + tail."""
        return len(self.token_ids) + len(self.tail)

    @property
    def base_len(self) -> int:
        """Number of committed output tokens."""
        return len(self.token_ids) - len(self.opened.prompt_token_ids)

    @property
    def num_verified_tokens(self) -> int:
        """Leading computed tokens that are committed and will not be computed again."""
        return min(self.num_computed_tokens, self.num_tokens - 1)

    @property
    def num_lagging_tokens(self) -> int:
        """Tokens to compute before drafting needs a single pass; the last token is that pass's."""
        return max(0, self.num_tokens - 1 - self.num_computed_tokens)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens to compute before the next draft token can be sampled; at least 1."""
        return self.num_known_tokens - self.num_computed_tokens

    @property
    def is_answerable(self) -> bool:
        """Whether the tail holds all that is asked for, or, in greedy and coupled mode, ends the
        text: what would follow is never part of the output.

        With a law that must not be a reason to answer: a proposal that is ready early for the sake
        of its last token's value arrives where others are late, so that lateness would select by
        value and bias the output (design section 3, selection trap).
        """
        if self.ask is None or not self.tail:
            return False
        if len(self.tail) >= self.ask.k or self.num_lawful == 0:
            return True
        is_over = self.num_lawful is not None or self.tail[-1] in self.stop_token_ids
        return self.opened.verification not in LAW_MODES and is_over

    def query_token_ids(self, num_tokens: int) -> list[int]:
        """The next `num_tokens` tokens to compute, from text and tail."""
        start, num_text = self.num_computed_tokens, self.num_tokens
        end = start + num_tokens
        tail = self.tail[max(0, start - num_text) : max(0, end - num_text)]
        return self.token_ids[start:end] + tail

    def apply(self, commit: Commit, max_k: int, now_s: float) -> None:
        """Align to a commit of the same epoch and take its ask; a duplicate changes nothing.

        `max_k` and the draft's context cap the ask. Raises OutOfStep, and then nothing has changed.
        """
        overlap = self.base_len - commit.base_len
        if overlap < 0:
            raise OutOfStep("gap")
        start = len(self.opened.prompt_token_ids) + commit.base_len
        known = self.token_ids[start : start + len(commit.token_ids)]
        if commit.base_len < 0 or known != commit.token_ids[: len(known)]:
            raise OutOfStep("mismatch")
        self._extend(commit.token_ids[overlap:])
        if commit.round <= self.last_round:
            return
        self.last_round = commit.round
        self._take_ask(commit, max_k, now_s)

    def _extend(self, token_ids: list[int]) -> None:
        """Append committed tokens; keys and values survive as far as the tail agrees with them."""
        if not token_ids:
            return
        if self.num_lawful is not None:
            self.drop_tail()
        num_same = _num_common(self.tail, token_ids)
        num_valid = self.num_tokens + num_same
        self.token_ids.extend(token_ids)
        if num_same == len(token_ids):
            del self.tail[:num_same]
            del self.tail_laws[:num_same]
        else:
            self.drop_tail()
            self.num_computed_tokens = min(self.num_computed_tokens, num_valid)

    def drop_tail(self) -> None:
        """Forget what was drafted; the text's last token must be computed again for its logits."""
        self.tail.clear()
        self.tail_laws.clear()
        self.num_lawful = None
        self.num_computed_tokens = min(self.num_computed_tokens, self.num_tokens - 1)

    def _take_ask(self, commit: Commit, max_k: int, now_s: float) -> None:
        # A newer commit voids the ask before it. Where a law was sent, verification may have
        # looked at any token of the tail before it discarded it: draw all of them anew (design
        # section 3). Greedy and coupled tokens are a function of the text and may stay.
        self.ask = None
        if self.opened.verification in LAW_MODES:
            self.drop_tail()
        if commit.k <= 0 or self.room <= 0:
            return
        k = min(commit.k, max_k, self.room)
        self.ask = Ask(k, commit.round, now_s, now_s + commit.deadline_ms / 1000)
        self.is_wanted = True
        self.last_used_s = now_s

    def append_draft(self, token_id: int, law: SparseLaw | None) -> None:
        """Add a token sampled behind text + tail, with the law it was drawn from."""
        self.tail.append(token_id)
        if law is not None:
            self.tail_laws.append(law)

    def append_unlawful(self) -> None:
        """Stand in for a token that could not be sampled, since its row made no law."""
        if self.num_lawful is None:
            self.num_lawful = len(self.tail)
        in_law_mode = self.opened.verification in LAW_MODES
        self.append_draft(0, SparseLaw.one_hot(0) if in_law_mode else None)

    def answer(self, now_s: float, reason: str = "") -> Proposal:
        """Settle the ask, if there is one: what was drafted, or else why nothing was.

        Without an ask it is a notice, of round 0: ready (no reason), or no longer so.
        """
        ask, self.ask = self.ask, None
        token_ids = self.tail[: self.num_lawful][: ask.k] if ask is not None else []
        return Proposal(
            session_id=self.opened.session_id,
            epoch=self.opened.epoch,
            base_len=self.base_len,
            round=ask.round if ask is not None else 0,
            token_ids=token_ids,
            laws=self.tail_laws[: len(token_ids)],
            reason="" if token_ids else reason,
            draft_ms=(now_s - ask.received_s) * 1000 if ask is not None else 0.0,
        )


def _num_common(left: list[int], right: list[int]) -> int:
    """Length of the common prefix."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
