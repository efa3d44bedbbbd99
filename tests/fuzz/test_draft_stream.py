"""What a hostile target sends to a draft, as messages on the wire, beside an honest target.

The draft never fails, its books agree after every step, and the honest target's proposals are what
they are without the other.
"""

from __future__ import annotations

import random

from specdec.rpc import convert
from specdec.rpc.draft_connection import OpenAssembly
from specdec.v1 import draft_pb2
from tests.fuzz.rounds import fuzz
from tests.fuzz.wire import message
from tests.unit.engine.draft_harness import COUPLED, MODES, VOCAB_SIZE, Peer, check, make_engine

HONEST, HOSTILE = "a", "b"
SESSIONS = (1, 2, 3)
MAX_MODEL_LEN = 256


class Hostile:
    """Sends what it likes on both streams, often about sessions that exist."""

    def __init__(self, engine, rng: random.Random) -> None:
        self._engine, self._rng = engine, rng
        self._assembly = OpenAssembly(
            lambda opened: engine.submit(HOSTILE, [opened]), MAX_MODEL_LEN, lambda declined: None
        )
        self._open = {session_id: Peer(engine, [5, 6, 7], COUPLED, HOSTILE, session_id)
                      for session_id in SESSIONS}  # fmt: skip

    def send(self) -> None:
        match self._rng.randrange(4):
            case 0:
                self._speculate()
            case 1:
                self._sync()
            case 2:
                peer = self._open[self._rng.choice(SESSIONS)]
                peer.commit([self._rng.randrange(VOCAB_SIZE)], self._rng.choice((0, 1, 8, 2**31)))
            case 3:
                self._follow_up()

    def _speculate(self) -> None:
        wire = message(self._rng, draft_pb2.SpeculateRequest)
        self._engine.submit(HOSTILE, convert.step_from_wire(wire))

    def _sync(self) -> None:
        wire = message(self._rng, draft_pb2.SyncRequest)
        match wire.WhichOneof("content"):
            case "open":
                self._assembly.start(wire.open)
            case "open_tokens":
                self._assembly.more(wire.open_tokens)
            case "close":
                self._engine.submit(HOSTILE, [convert.close_from_wire(wire.close)])

    def _follow_up(self) -> None:
        """A commit that names a living session and its epoch, the rest at random."""
        peer = self._open[self._rng.choice(SESSIONS)]
        wire = draft_pb2.SpeculateRequest()
        commit = message(self._rng, draft_pb2.Commit)
        commit.session_id, commit.epoch = peer.session_id, peer.epoch
        wire.commits.append(commit)
        self._engine.submit(HOSTILE, convert.step_from_wire(wire))


def proposals(params, hostility: random.Random | None, num_asks: int) -> list[list[int]]:
    """What the honest target is proposed, beside a hostile one or alone."""
    engine = make_engine()
    peer = Peer(engine, list(range(1, 12)), params, HONEST)
    hostile = Hostile(engine, hostility) if hostility is not None else None
    found = []
    for _ in range(num_asks):
        for _ in range(3 if hostile is not None else 0):
            hostile.send()
            engine.step()
            check(engine)
        found.append(peer.ask(peer.future(1), k=3).token_ids)
    assert engine.sessions.get(HONEST, peer.session_id) is not None
    return found


@MODES
def test_a_hostile_target_leaves_others_their_proposals(params):
    alone = proposals(params, None, 6)
    assert all(len(token_ids) == 3 for token_ids in alone), "it proposes at all"

    def one_round(rng: random.Random) -> None:
        beside = proposals(params, rng, 6)
        for mine, expected in zip(beside, alone, strict=True):
            # A draft may decline while it is busy or short of memory, never propose another text.
            assert mine == expected[: len(mine)]
        assert any(beside), "it still proposes"

    fuzz(one_round, 30)
