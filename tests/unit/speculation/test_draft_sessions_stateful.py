"""Target and draft over a network that reorders, repeats, loses and delays.

The draft here is a reference one: its next token is a pure function of the whole text, so that a
draft token handed out for the wrong text shows. In block mode every drawn token carries a serial
number in its law, so that one which a rejecting verification has seen shows when it comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specdec.params import SamplingParams
from specdec.sampling.law import SparseLaw
from specdec.sequence import Sequence, Verification
from specdec.speculation.draft_sessions import DraftSessions
from specdec.speculation.messages import Close, Commit, DraftInfo, Open, Proposal, Resync
from specdec.speculation.proposer import Committed

VOCAB = 1_000_000
NUM_WORDS = 3  # few, so that texts often agree by accident
MEMBERS = ("a", "b")
FATES = st.sampled_from(["arrives", "arrives", "arrives", "repeated", "lost"])


def next_token(text: list[int]) -> int:
    return hash(tuple(text)) % NUM_WORDS


def drawn_law(token_id: int, serial: int) -> SparseLaw:
    """Nearly all weight on the token, a grain on the id that tells one draw from another."""
    return SparseLaw(np.array([token_id, serial], np.uint32), np.array([65534, 1], np.uint16))


@dataclass
class ReferenceDraft:
    """A draft replica as the protocol asks for, with unlimited memory."""

    with_laws: bool
    sessions: dict[int, tuple[int, int, list[int]]] = field(default_factory=dict)
    serial: int = NUM_WORDS

    def take(self, message) -> list:
        match message:
            case Open():
                return self._open(message)
            case Commit():
                return self._commit(message)
            case Close():
                if self.sessions.get(message.session_id, (0,))[0] <= message.epoch:
                    self.sessions.pop(message.session_id, None)
        return []

    def _open(self, message: Open) -> list:
        known = self.sessions.get(message.session_id)
        if known is not None and known[0] >= message.epoch:
            return []
        text = message.prompt_token_ids + message.output_token_ids
        self.sessions[message.session_id] = (message.epoch, len(message.prompt_token_ids), text)
        base_len = len(message.output_token_ids)
        return [
            Proposal(message.session_id, message.epoch, base_len, 0, [], reason="prefilling"),
            Proposal(message.session_id, message.epoch, base_len, 0, []),
        ]

    def _commit(self, message: Commit) -> list:
        epoch, num_prompt, text = self.sessions.get(message.session_id, (0, 0, []))
        known_len = len(text) - num_prompt
        if epoch > message.epoch:
            return []
        if epoch != message.epoch or message.base_len > known_len:
            return [Resync(message.session_id, message.epoch, "cannot follow")]
        end = message.base_len + len(message.token_ids)
        text.extend(message.token_ids[known_len - message.base_len :] if end > known_len else [])
        if message.k == 0:
            return []
        return [self._propose(message, text, len(text) - num_prompt)]

    def _propose(self, message: Commit, text: list[int], base_len: int) -> Proposal:
        token_ids: list[int] = []
        laws: list[SparseLaw] = []
        for _ in range(message.k):
            token_ids.append(next_token(text + token_ids))
            self.serial += 1
            laws.append(drawn_law(token_ids[-1], self.serial))
        return Proposal(
            message.session_id,
            message.epoch,
            base_len,
            message.round,
            token_ids,
            laws if self.with_laws else [],
        )


class Network(RuleBasedStateMachine):
    """One sequence, two draft replicas; every message may overtake, repeat or vanish."""

    verification = Verification.GREEDY

    @initialize(prompt=st.lists(st.integers(0, NUM_WORDS - 1), min_size=1, max_size=3))
    def start(self, prompt: list[int]) -> None:
        self.text = list(prompt)
        self.num_prompt = len(prompt)
        self.sessions = DraftSessions(VOCAB)
        self.sessions.add(
            Sequence(
                seq_id=1,
                request_id="r",
                token_ids=list(prompt),
                num_prompt_tokens=len(prompt),
                params=SamplingParams(),
                seed=1,
                verification=self.verification,
                eos_token_ids=frozenset(),
                max_model_len=10_000,
            )
        )
        self.with_laws = self.verification == Verification.BLOCK
        self.drafts = {name: ReferenceDraft(self.with_laws) for name in MEMBERS}
        self.to_draft: list = []
        self.to_target: list = []
        self.seen_serials: set[int] = set()
        self.member: str | None = None
        self.connect("a")
        self.calm()

    # The target

    def connect(self, member: str) -> None:
        self.send(self.sessions.disconnect(1))
        self.member = member
        self.send(self.sessions.connect(1, member, DraftInfo("m", "h", VOCAB, 10_000, "", 1, 1, 8)))

    def send(self, message) -> None:
        if message is not None:
            self.to_draft.append((self.member, message))

    @rule(k=st.integers(0, 5))
    def ask(self, k: int) -> None:
        self.send(self.sessions.ask(1, k, 1.0))

    @rule(k=st.integers(2, 5))
    def ask_in_peace(self, k: int) -> None:
        self.ask(k)
        self.calm()

    @rule()
    def flush(self) -> None:
        self.send(self.sessions.flush(1))

    @rule(k=st.integers(0, 5), num_accepted=st.integers(0, 5), off=st.sampled_from([0, 0, 1]))
    def step(self, k: int, num_accepted: int, off: int) -> None:
        """Verify what is in hand; accept a prefix, then commit a token of the target's own, which
        is often the one that the draft would have drawn."""
        drafts = self.sessions.drafts(1, k)
        token_ids = drafts.token_ids if drafts is not None else []
        num_accepted = min(num_accepted, len(token_ids))
        if drafts is not None and self.with_laws and num_accepted < len(token_ids):
            self.seen_serials.update(int(law.ids[-1]) for law in drafts.laws)
        committed = token_ids[:num_accepted]
        committed.append((next_token(self.text + committed) + off) % NUM_WORDS)
        self.text += committed
        self.sessions.commit(Committed(1, committed, len(token_ids), num_accepted))

    @rule(member=st.sampled_from(MEMBERS), restart=st.booleans())
    def upset(self, member: str, restart: bool) -> None:
        """A draft loses everything, or the session moves to another (or the same) draft."""
        if restart:
            self.drafts[member].sessions.clear()
        else:
            self.connect(member)

    # The network

    @precondition(lambda self: self.to_draft)
    @rule(data=st.data(), fate=FATES)
    def reach_draft(self, data, fate: str) -> None:
        index = data.draw(st.integers(0, len(self.to_draft) - 1))
        member, message = self.to_draft[index] if fate == "repeated" else self.to_draft.pop(index)
        if fate == "lost":
            return
        replies = self.drafts[member].take(message)
        self.to_target.extend((member, reply) for reply in replies)

    @precondition(lambda self: self.to_target)
    @rule(data=st.data(), fate=FATES)
    def reach_target(self, data, fate: str) -> None:
        index = data.draw(st.integers(0, len(self.to_target) - 1))
        member, message = self.to_target[index] if fate == "repeated" else self.to_target.pop(index)
        if fate == "lost":
            return
        self.deliver(member, message)

    def deliver(self, member: str, message) -> None:
        if isinstance(message, Proposal):  # the receiver may cut it; the network may repeat it
            message = Proposal(
                message.session_id,
                message.epoch,
                message.base_len,
                message.round,
                list(message.token_ids),
                list(message.laws),
                message.reason,
            )
        reply = self.sessions.receive(member, message)
        if reply is not None:
            self.to_draft.append((member, reply))

    @rule()
    def calm(self) -> None:
        """The network works for a moment."""
        for _ in range(200):
            if not self.to_draft and not self.to_target:
                return
            for member, message in [self.to_draft.pop(0)] if self.to_draft else []:
                replies = self.drafts[member].take(message)
                self.to_target.extend((member, reply) for reply in replies)
            for member, message in [self.to_target.pop(0)] if self.to_target else []:
                self.deliver(member, message)

    # What must hold after every step

    @invariant()
    def drafts_know_a_prefix(self) -> None:
        for draft in self.drafts.values():
            for _, _, text in draft.sessions.values():
                assert text == self.text[: len(text)]

    @invariant()
    def draft_tokens_extend_the_text(self) -> None:
        drafts = self.sessions.drafts(1, 8)
        if drafts is None:
            return
        text = list(self.text)
        for token_id in drafts.token_ids:
            assert token_id == next_token(text)
            text.append(token_id)

    @invariant()
    def seen_tokens_do_not_come_back(self) -> None:
        drafts = self.sessions.drafts(1, 8)
        serials = {int(law.ids[-1]) for law in drafts.laws} if drafts is not None else set()
        assert not serials & self.seen_serials

    def teardown(self) -> None:
        """Once the network works again, one reconnection brings the draft tokens back."""
        if not hasattr(self, "sessions"):
            return
        self.to_draft.clear()
        self.to_target.clear()
        self.connect("a")
        self.calm()
        self.ask(4)
        self.calm()
        drafts = self.sessions.drafts(1, 4)
        assert drafts is not None
        assert len(drafts.token_ids) == 4


class BlockNetwork(Network):
    """The same in block mode, where laws travel along."""

    verification = Verification.BLOCK


TestNetwork = Network.TestCase
TestBlockNetwork = BlockNetwork.TestCase
_settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestNetwork.settings = _settings
TestBlockNetwork.settings = _settings
