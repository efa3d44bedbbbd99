"""One sequence as the target sees its draft: what was sent, what was asked, what is in hand.

Knows the committed text and decides whether draft tokens still extend it. It knows neither the
network nor the other sequences, and it trusts nothing that the draft says about the text.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace

from specdec.params import SamplingParams
from specdec.sequence import Sequence, Verification
from specdec.speculation.messages import Close, Commit, DraftInfo, Open, Proposal
from specdec.speculation.proposal_check import LAW_MODES
from specdec.speculation.proposer import DraftTokens

NUM_REMEMBERED_ASKS = 16


@dataclass(slots=True)
class DraftSession:
    """The target's side of one session.

    `sent_len` output tokens have been told to the draft; the draft's committed text is always
    that prefix of ours or an older one. `opened` means that the draft has answered the Open of
    this epoch, `ready` that it has computed the context. `law_floor`: in rejection and block mode
    nothing drafted from a shorter text may be used, since a verification that rejected has looked
    at the values of those tokens (design section 3). `seed` is all the randomness that the draft
    is told, and `params` hold none: the noise in coupled mode, else a key of this session's own for
    the draft's proposals, from which nothing follows about what the target accepts.
    """

    seq_id: int
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    params: SamplingParams
    seed: int
    verification: Verification
    traceparent: str = ""
    member: str | None = None
    info: DraftInfo | None = None
    trusted: bool = True
    epoch: int = 0
    sent_len: int = 0
    round: int = 0
    opened: bool = False
    ready: bool = False
    answered_round: int = 0
    asked_k: dict[int, int] = field(default_factory=dict)
    held: Proposal | None = None
    held_late: bool = False
    law_floor: int = 0
    refused: str | None = None
    paused: str | None = None
    num_commits_paused: int = 0
    num_fruitless_opens: int = 0

    @classmethod
    def of(cls, sequence: Sequence) -> DraftSession:
        is_coupled = sequence.verification is Verification.COUPLED
        return cls(
            seq_id=sequence.seq_id,
            prompt_token_ids=sequence.prompt_token_ids,
            output_token_ids=sequence.output_token_ids,
            params=replace(sequence.params, seed=None),
            seed=sequence.seed if is_coupled else secrets.randbits(64),
            verification=sequence.verification,
            traceparent=sequence.traceparent,
        )

    @property
    def num_unsent_tokens(self) -> int:
        return len(self.output_token_ids) - self.sent_len

    @property
    def room(self) -> int:
        """Draft tokens that still fit the draft's context after the committed text."""
        assert self.info is not None
        num_tokens = len(self.prompt_token_ids) + len(self.output_token_ids)
        return self.info.max_model_len - num_tokens

    @property
    def needs_laws(self) -> bool:
        """Whether a draft token counts only together with the law that it was drawn from.

        The law of a draft that is not ours is not believed: its tokens are verified as one-hot,
        which is exact whatever they are.
        """
        return self.trusted and self.verification in LAW_MODES

    @property
    def told_seed(self) -> int:
        """The seed for the draft that is connected. One that dialled in has no use for a key of
        proposals: they count as one-hot."""
        return self.seed if self.trusted or self.verification is Verification.COUPLED else 0

    @property
    def is_waiting(self) -> bool:
        """Whether an asked proposal is still to come."""
        return self.answered_round < self.round and bool(self.asked_k.get(self.round))

    def open(self) -> Open:
        """Send the whole text under the next epoch; everything in flight becomes void."""
        self.epoch += 1
        self.sent_len = len(self.output_token_ids)
        self.opened = self.ready = False
        self.answered_round = self.round
        self.asked_k.clear()
        self.held = None
        self.paused = None
        return Open(
            session_id=self.seq_id,
            epoch=self.epoch,
            prompt_token_ids=self.prompt_token_ids,
            output_token_ids=self.output_token_ids.copy(),
            params=self.params,
            seed=self.told_seed,
            verification=self.verification,
            traceparent=self.traceparent if self.trusted else "",
        )

    def close(self) -> Close:
        return Close(session_id=self.seq_id, epoch=self.epoch)

    def append(self, token_ids: list[int], rejected: bool) -> bool:
        """Commit tokens; True if the proposal in hand no longer extends the text and was dropped.

        `rejected`: the pass verified draft tokens and did not accept them all.
        """
        self.output_token_ids.extend(token_ids)
        if self.paused is not None:
            self.num_commits_paused += 1
        if rejected:
            self.law_floor = len(self.output_token_ids)
        if self.held is None or self.extends(self.held):
            return False
        self.held = None
        return True

    def commit(self, k: int, deadline_ms: float) -> Commit:
        """Tell what is new since the last one, and ask for k draft tokens after it."""
        self.round += 1
        self.asked_k[self.round] = k
        if len(self.asked_k) > NUM_REMEMBERED_ASKS:
            del self.asked_k[next(iter(self.asked_k))]
        base_len = self.sent_len
        self.sent_len = len(self.output_token_ids)
        return Commit(
            session_id=self.seq_id,
            epoch=self.epoch,
            base_len=base_len,
            round=self.round,
            token_ids=self.output_token_ids[base_len:],
            k=k,
            deadline_ms=deadline_ms,
        )

    def extends(self, proposal: Proposal) -> bool:
        """Whether the proposal agrees with the committed text wherever they overlap and has at
        least one token beyond it."""
        base_len, output = proposal.base_len, self.output_token_ids
        overlap = len(output) - base_len
        if self.verification in LAW_MODES and base_len < self.law_floor:
            return False
        if not 0 <= overlap < len(proposal.token_ids):
            return False
        return proposal.token_ids[:overlap] == output[base_len:]

    def hold(self, proposal: Proposal, num_trusted: int) -> None:
        """Keep a checked proposal that extends the text, in place of an older one."""
        del proposal.token_ids[num_trusted:]
        if self.needs_laws:
            del proposal.laws[num_trusted:]
        else:
            proposal.laws = []
        self.held = proposal
        self.held_late = proposal.base_len < len(self.output_token_ids)

    def drafts(self, k: int) -> DraftTokens | None:
        """At most k tokens in hand that follow the committed text; they stay in hand."""
        if self.held is None or k <= 0:
            return None
        start = len(self.output_token_ids) - self.held.base_len
        token_ids = self.held.token_ids[start : start + k]
        return DraftTokens(token_ids, self.held.laws[start : start + k])
