"""A drafter that dials in, keeps all that it is told, and wants a certain token to come out.

It knows the target's law, the request with its seed, and every message of the protocol; it computes
what the target would draw from whatever of that could be a seed. The output stays the target's own.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from specdec.config import SpeculationConfig
from specdec.engine.request import GenerateRequest, Limits, make_sequence
from specdec.params import SamplingParams, SpeculationParams
from specdec.rpc import convert
from specdec.rpc.dialling_drafter import draft_for
from specdec.rpc.remote_proposer import RemoteProposer
from specdec.rpc.transport import LoopThread
from specdec.sampling.law import SparseLaw
from specdec.sampling.processors import SequenceRows
from specdec.sampling.request_logits import RequestLogits
from specdec.sequence import Sequence, Verification
from specdec.speculation.draft_sessions import DraftSessions
from specdec.speculation.messages import Commit, DraftMessage, Open, Proposal
from specdec.speculation.proposal_check import LAW_MODES
from specdec.speculation.proposer import Committed
from specdec.speculation.verifier import VerifyItem, verify_step
from tests.integration.rpc.servers import PATIENCE_S, PATIENT, TOKENS
from tests.unit.rpc.scripted_draft import VOCAB, ScriptedDraft, identity, wait_until

LAW = (0.4, 0.3, 0.2, 0.1)
WANTED = 3
CLIENT_SEED = 42
PROMPT = [1, 2, 3]
NUM_ROUNDS = 1000
STANDARD_ERRORS = 5.0  # by chance beyond this once in two million runs


def logits(num_rows: int) -> torch.Tensor:
    rows = torch.full((num_rows, VOCAB), -math.inf, dtype=torch.float64)
    rows[:, : len(LAW)] = torch.tensor(LAW, dtype=torch.float64).log()
    return rows


def verify(request: Sequence, seed: int, position: int, round: int, draft: list[int]) -> list[int]:
    """What the target commits in one pass."""
    rows = SequenceRows(RequestLogits(request.params, PROMPT, len(PROMPT)), draft)
    item = VerifyItem(rows, request.verification, seed, position, round)
    (verdict,) = verify_step(logits(len(draft) + 1), [item])
    return [*draft[: verdict.num_accepted_tokens], verdict.next_token_id]


def make_request(verification: str, seq_id: int = 1) -> Sequence:
    params = SamplingParams(
        temperature=1.0,
        seed=CLIENT_SEED,
        max_tokens=10**6,
        ignore_eos=True,
        speculation=SpeculationParams(verification=verification),
    )
    return make_sequence(
        GenerateRequest("r", list(PROMPT), params),
        seq_id,
        SpeculationConfig(drafters=("draft",)),
        Limits(VOCAB, 10**7, frozenset()),
        now_s=0.0,
    )


class Liar(ScriptedDraft):
    """Proposes the token that makes the target's draws end in WANTED, for the likeliest seed that
    it has heard of."""

    def __init__(self) -> None:
        super().__init__(max_model_len=10**7)
        self.rewrite = lambda answers: [self._lie(answer) for answer in answers]
        self.opened: Open | None = None

    def submit(self, target, messages) -> None:
        self.opened = next((m for m in messages if isinstance(m, Open)), self.opened)
        super().submit(target, messages)

    def _lie(self, answer: DraftMessage) -> DraftMessage:
        if not isinstance(answer, Proposal) or not answer.token_ids:
            return answer
        seeds = (self.opened.seed, self.opened.params.seed, CLIENT_SEED)
        seed = next(seed for seed in seeds if seed)
        request = make_request(self.opened.verification.value)
        position = len(PROMPT) + answer.base_len
        drafts = [[token_id] for token_id in range(len(LAW))]
        answer.token_ids = max(
            drafts,
            key=lambda draft: verify(request, seed, position, answer.round - 1, draft)[0] == WANTED,
        )
        law = SparseLaw(np.arange(2, dtype=np.uint32) + 2, np.array([65534, 1], np.uint16))
        answer.laws = [law]
        return answer


class Liars:
    """A target, and the liar that dialled in."""

    def __init__(self) -> None:
        self.proposer = RemoteProposer(identity(), PATIENT)
        port = self.proposer.serve_verifier("127.0.0.1:0", TOKENS)
        self._thread = LoopThread("liar")
        call = draft_for(Liar(), f"127.0.0.1:{port}", "liar", TOKENS.issue("liar"))
        asyncio.run_coroutine_threadsafe(call, self._thread.loop)

    def stop(self) -> None:
        self._thread.stop()
        self.proposer.shutdown()

    def generate(self, request: Sequence, num_rounds: int) -> list[int]:
        """The first token of each of so many passes in rejection and block mode, where the tokens
        after it are the law's again; the text in coupled mode."""
        self.proposer.open([request])
        wait_until(lambda: self.proposer.available(request.seq_id))
        first, text = [], list(PROMPT)
        for round in range(num_rounds):
            drafts = self.proposer.propose({request.seq_id: 1}, PATIENCE_S).get(request.seq_id)
            assert drafts is not None
            assert drafts.laws == []
            committed = verify(request, request.seed, len(text), round, drafts.token_ids)
            num_accepted = len(committed) - 1
            self.proposer.commit([Committed(request.seq_id, committed, 1, num_accepted)])
            text += committed
            first += committed[:1] if request.verification in LAW_MODES else committed
        self.proposer.close([request.seq_id])
        return first


@pytest.fixture(scope="module")
def liars() -> Iterator[Liars]:
    liars = Liars()
    yield liars
    liars.stop()


@pytest.mark.parametrize("verification", ["block", "rejection"])
def test_a_drafter_that_computes_what_it_can_steers_nothing(liars, verification) -> None:
    request = make_request(verification)
    first = liars.generate(request, NUM_ROUNDS)
    for token_id, probability in enumerate(LAW):
        error = math.sqrt(probability * (1 - probability) / NUM_ROUNDS)
        share = first.count(token_id) / NUM_ROUNDS
        assert abs(share - probability) < STANDARD_ERRORS * error, (token_id, share)
    assert liars.proposer.counters.faults["law_ignored"] > NUM_ROUNDS / 2


def test_coupled_noise_may_be_known_since_no_draft_token_changes_what_it_says(liars) -> None:
    """The liar has the seed, and proposes what it likes; the text is that without any drafter."""
    request = make_request("coupled")
    text = liars.generate(request, 50)
    alone = [verify(request, CLIENT_SEED, len(PROMPT) + i, 0, [])[0] for i in range(len(text))]
    assert text == alone


@pytest.mark.parametrize("verification", ["block", "rejection", "greedy"])
@pytest.mark.parametrize("trusted", [True, False])
def test_what_decides_acceptance_leaves_no_trace_on_the_wire(
    verification, trusted, monkeypatch
) -> None:
    """Two targets that differ in the secret alone send the same bytes for the same text."""
    monkeypatch.setattr(secrets, "randbits", lambda bits: 77)

    def transcript(seed: int) -> list[bytes]:
        request = make_request("block")
        request.seed, request.verification = seed, Verification(verification)
        sessions = DraftSessions(VOCAB)
        sessions.add(request)
        opened = sessions.connect(1, "m", ScriptedDraft().info(), trusted)
        sessions.receive("m", Proposal(1, 1, 0, 0, []))
        commits: list[Commit] = []
        for token_id in range(4):
            commits.append(sessions.ask(1, 4, 5.0))
            sessions.commit(Committed(1, [token_id], 0, 0))
        wire = [*convert.verify_bulk_to_wire(opened), *convert.verify_steps_to_wire(commits)]
        return [message.SerializeToString(deterministic=True) for message in wire]

    assert transcript(seed=1) == transcript(seed=2**63 + 5)
