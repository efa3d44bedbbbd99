"""A draft without a model: it knows the text that the target is going to write.

Speaks the protocol faithfully, and misbehaves on demand. `truth` is the target's continuation, so
that a test can tell a good draft token from a stale one without a model on either side.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from specdec.params import SamplingParams
from specdec.rpc.remote_proposer import RemoteProposer
from specdec.sequence import Sequence, Verification
from specdec.speculation.draft_backend import Deliver
from specdec.speculation.handshake import TargetIdentity
from specdec.speculation.messages import (
    PROTOCOL_VERSION,
    Close,
    Commit,
    DraftInfo,
    DraftMessage,
    Heartbeat,
    Hello,
    Open,
    Proposal,
    Resync,
    TargetMessage,
)
from specdec.speculation.proposer import Committed

VOCAB = 1000
TARGET_ID = "target-1"
# For what comes within milliseconds on an idle machine; it passes only where a test fails.
WAIT_S = 60.0
VOCABULARY = [f"<{i}>" for i in range(VOCAB)]

Rewrite = Callable[[list[DraftMessage]], list[DraftMessage]]


def truth(text: list[int]) -> int:
    """The target's next token."""
    return (text[-1] * 31 + len(text) * 7) % VOCAB


def continuation(prompt: list[int], num_tokens: int) -> list[int]:
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(truth(text))
    return text[len(prompt) :]


class ScriptedDraft:
    """A DraftBackend. `rewrite` may change, drop, repeat or invent messages before they leave;
    `delay_s` makes the draft slow."""

    def __init__(
        self,
        incarnation: int = 1,
        max_model_len: int = 10_000,
        tokenizer_hash: str = "hash",
        vocabulary: list[str] | None = None,
        protocol_version: int = PROTOCOL_VERSION,
    ) -> None:
        self._info = DraftInfo(
            model="scripted",
            tokenizer_hash=tokenizer_hash,
            vocab_size=VOCAB,
            max_model_len=max_model_len,
            drafter_kind="model",
            protocol_version=protocol_version,
            incarnation=incarnation,
            max_num_speculative_tokens=8,
        )
        self._vocabulary = vocabulary if vocabulary is not None else VOCABULARY
        self.rewrite: Rewrite = list
        self.delay_s = 0.0
        self.hellos: dict[str, Hello] = {}
        self.received: list[TargetMessage] = []
        self.dropped: list[str] = []
        self.sessions: dict[tuple[str, int], tuple[int, int, list[int]]] = {}
        self._deliver: dict[str, Deliver] = {}

    def info(self) -> DraftInfo:
        return self._info

    def vocabulary(self) -> list[str]:
        return self._vocabulary

    def attach(self, target: str, hello: Hello, deliver: Deliver) -> None:
        self.hellos[target] = hello
        self._deliver[target] = deliver

    def drop_target(self, target: str) -> None:
        self.dropped.append(target)
        self._deliver.pop(target, None)
        for key in [key for key in self.sessions if key[0] == target]:
            del self.sessions[key]

    def behind(self, target: str) -> None:
        return None

    def load(self) -> Heartbeat:
        return Heartbeat(0, 0, num_free_blocks=42, idle_fraction=0.5)

    def submit(self, target: str, messages: list[TargetMessage]) -> None:
        self.received.extend(messages)
        answers = [answer for message in messages for answer in self._answer(target, message)]
        answers = self.rewrite(answers)
        deliver = self._deliver.get(target)
        if not answers or deliver is None:
            return
        if self.delay_s:
            threading.Timer(self.delay_s, deliver, (answers,)).start()
        else:
            deliver(answers)

    def _answer(self, target: str, message: TargetMessage) -> list[DraftMessage]:
        key = (target, message.session_id)
        match message:
            case Open():
                text = message.prompt_token_ids + message.output_token_ids
                self.sessions[key] = (message.epoch, len(message.prompt_token_ids), text)
                base_len = len(message.output_token_ids)
                return [Proposal(message.session_id, message.epoch, base_len, 0, [])]
            case Close():
                self.sessions.pop(key, None)
            case Commit():
                return self._propose(key, message)
        return []

    def _propose(self, key: tuple[str, int], message: Commit) -> list[DraftMessage]:
        epoch, num_prompt, text = self.sessions.get(key, (0, 0, []))
        if epoch != message.epoch or message.base_len != len(text) - num_prompt:
            return [Resync(message.session_id, message.epoch, "cannot follow")]
        text.extend(message.token_ids)
        if message.k == 0:
            return []
        base_len = len(text) - num_prompt
        token_ids = continuation(text, message.k)
        return [Proposal(message.session_id, message.epoch, base_len, message.round, token_ids)]


def identity(vocabulary: list[str] | None = None, tokenizer_hash: str = "hash") -> TargetIdentity:
    return TargetIdentity(TARGET_ID, 1, "model", tokenizer_hash, VOCAB, vocabulary)


def sequence(seq_id: int, prompt: list[int]) -> Sequence:
    return Sequence(
        seq_id=seq_id,
        request_id=f"r{seq_id}",
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        params=SamplingParams(temperature=0.0),
        seed=3,
        verification=Verification.GREEDY,
        eos_token_ids=frozenset(),
        max_model_len=10**6,
    )


class Decoding:
    """A target without a model: verifies against `truth` and commits, as the engine does.

    Whatever the proposer hands out, the text is the target's own; what can go wrong is that a
    call blocks or raises. `longest_s` is the longest that a `propose` took.
    """

    def __init__(self, proposer: RemoteProposer, seq_id: int, prompt: list[int]) -> None:
        self.proposer = proposer
        self.seq_id = seq_id
        self.text = list(prompt)
        self.num_accepted = 0
        self.longest_s = 0.0
        proposer.open([sequence(seq_id, prompt)])

    def step(self, k: int = 4, wait_s: float = 0.25) -> int:
        """One engine step; returns the accepted draft tokens."""
        token_ids: list[int] = []
        if k and self.proposer.available(self.seq_id):
            started_s = time.monotonic()
            drafts = self.proposer.propose({self.seq_id: k}, wait_s).get(self.seq_id)
            self.longest_s = max(self.longest_s, time.monotonic() - started_s)
            token_ids = drafts.token_ids if drafts is not None else []
        assert len(token_ids) <= k
        committed = continuation(self.text, len(token_ids) + 1)
        num_accepted = next(
            (i for i, t in enumerate(token_ids) if t != committed[i]), len(token_ids)
        )
        committed = committed[: num_accepted + 1]
        self.text += committed
        self.num_accepted += num_accepted
        self.proposer.commit([Committed(self.seq_id, committed, len(token_ids), num_accepted)])
        return num_accepted

    def steps(self, num_steps: int, k: int = 4, wait_s: float = 0.25) -> int:
        return sum(self.step(k, wait_s) for _ in range(num_steps))

    def until_available(self, timeout_s: float = WAIT_S) -> None:
        wait_until(lambda: self.proposer.available(self.seq_id), timeout_s)


def wait_until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never came to be"
        time.sleep(0.005)
