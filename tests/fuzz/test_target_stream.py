"""What a hostile draft sends to a target, as messages on the wire.

Whatever comes: nothing raises, what is handed to the engine is sound (ids in the vocabulary, at
most k, laws that the verifier can use), and after the noise an honest draft is heard again.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from specdec.params import SamplingParams
from specdec.rpc import convert
from specdec.sampling.law import SparseLaw
from specdec.sequence import Sequence, Verification
from specdec.speculation.draft_sessions import DraftSessions
from specdec.speculation.messages import DraftInfo, Proposal
from specdec.speculation.proposer import Committed, DraftTokens
from specdec.v1 import draft_pb2, verify_pb2
from tests.fuzz.rounds import fuzz
from tests.fuzz.wire import message

VOCAB_SIZE = 288
MEMBER = "draft"
SEQUENCES = (1, 2)
WEIGHTS = 65535


def target(verification: Verification) -> DraftSessions:
    sessions = DraftSessions(VOCAB_SIZE)
    for seq_id in SEQUENCES:
        sessions.add(
            Sequence(
                seq_id=seq_id,
                request_id="r",
                token_ids=[1, 2, 3],
                num_prompt_tokens=3,
                params=SamplingParams(),
                seed=1,
                verification=verification,
                eos_token_ids=frozenset(),
                max_model_len=10_000,
            )
        )
        connect(sessions, seq_id)
    return sessions


def connect(sessions: DraftSessions, seq_id: int) -> None:
    info = DraftInfo("m", "h", VOCAB_SIZE, 10_000, "model", 1, 1, 8)
    opened = sessions.connect(seq_id, MEMBER, info)
    assert opened is not None
    sessions.receive(MEMBER, Proposal(seq_id, opened.epoch, len(opened.output_token_ids), 0, []))


def noise(rng: random.Random, sessions: DraftSessions) -> None:
    kind = rng.choice((draft_pb2.SpeculateResponse, verify_pb2.VerifyRequest))
    wire = message(rng, kind)
    for record in [*wire.proposals, *wire.resyncs]:
        session = sessions.get(rng.choice(SEQUENCES))
        if session is not None and rng.random() < 0.7:  # else it is dropped at the door
            record.session_id, record.epoch = session.seq_id, session.epoch
            if rng.random() < 0.7 and hasattr(record, "base_len"):
                record.base_len = session.sent_len
    for received in convert.ready_from_wire(wire):
        sessions.receive(MEMBER, received)


def check_sound(drafts: DraftTokens | None, k: int, verification: Verification) -> None:
    if drafts is None:
        return
    assert len(drafts.token_ids) <= k
    assert all(0 <= token_id < VOCAB_SIZE for token_id in drafts.token_ids)
    if drafts.laws:
        assert verification == Verification.BLOCK
        assert len(drafts.laws) == len(drafts.token_ids)
    for law, token_id in zip(drafts.laws, drafts.token_ids, strict=False):
        check_law(law, token_id)


def check_law(law: SparseLaw, token_id: int) -> None:
    ids = law.ids.astype(np.int64)
    assert len(ids) == len(law.weights)
    assert (np.diff(ids) > 0).all()
    assert ids.max() < VOCAB_SIZE
    assert int(law.weights.astype(np.int64).sum()) == WEIGHTS
    assert law.weights[list(ids).index(token_id)] > 0


@pytest.mark.parametrize("verification", [Verification.GREEDY, Verification.BLOCK])
def test_a_hostile_draft_hands_over_nothing_unsound(verification):
    def one_round(rng: random.Random) -> None:
        sessions = target(verification)
        for _ in range(30):
            seq_id, k = rng.choice(SEQUENCES), rng.randint(0, 8)
            sessions.ask(seq_id, k, 1.0)
            noise(rng, sessions)
            drafts = sessions.drafts(seq_id, k)
            check_sound(drafts, k, verification)
            num_drafts = len(drafts.token_ids) if drafts is not None else 0
            accepted = drafts.token_ids[: rng.randint(0, num_drafts)] if drafts is not None else []
            committed = [*accepted, rng.randrange(VOCAB_SIZE)]
            sessions.commit(Committed(seq_id, committed, num_drafts, len(accepted)))
        check_heard_again(sessions)

    fuzz(one_round, 150)


def check_heard_again(sessions: DraftSessions) -> None:
    """A new connection to a draft that means well brings its tokens through."""
    for seq_id in SEQUENCES:
        sessions.disconnect(seq_id)
        connect(sessions, seq_id)
        asked = sessions.ask(seq_id, 2, 1.0)
        law = SparseLaw(np.array([7], np.uint32), np.array([WEIGHTS], np.uint16))
        end = asked.base_len + len(asked.token_ids)
        sessions.receive(
            MEMBER, Proposal(seq_id, asked.epoch, end, asked.round, [7, 7], [law, law])
        )
        drafts = sessions.drafts(seq_id, 2)
        assert drafts is not None
        assert drafts.token_ids == [7, 7]
