"""Random lives of sessions from two targets over a tiny pool: the draft engine never stalls, never
loses a block, never invents text, and in coupled mode proposes nothing but the target's own."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specdec.speculation.messages import Proposal, Resync
from tests.unit.engine.draft_harness import (
    BLOCK,
    COUPLED,
    GREEDY,
    VOCAB_SIZE,
    Clock,
    Peer,
    PoolExecutor,
    check,
    make_engine,
    target_token,
)

MAX_SESSIONS = 6


class DraftEngineMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.executor = PoolExecutor(
            num_blocks=12, model_max_len=40, clock=self.clock, pass_s=0.01, token_s=0.0005
        )
        self.engine = make_engine(
            self.executor,
            self.clock,
            max_num_batched_tokens=8,
            max_num_sequences=3,
            max_share_per_target=0.75,
            idle_timeout_s=1.0,
        )
        self.peers: list[Peer] = []
        self.drafted: dict[Peer, list[int]] = {}
        self.messages = []
        self.num_opened = 0

    # -- what targets do -----------------------------------------------------------------------

    @precondition(lambda self: len(self.peers) < MAX_SESSIONS)
    @rule(
        target_name=st.sampled_from("ab"),
        prompt=st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=1, max_size=20),
        params=st.sampled_from([GREEDY, COUPLED, BLOCK]),
    )
    def open(self, target_name, prompt, params):
        self.num_opened += 1
        peer = Peer(self.engine, prompt, params, target_name, self.num_opened)
        self.peers.append(peer)

    @precondition(lambda self: self.peers)
    @rule(
        data=st.data(),
        num_accepted=st.integers(0, 4),
        following=st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=1, max_size=3),
        k=st.integers(0, 6),
        deadline_ms=st.sampled_from([0.0, 5.0, 25.0, 1e6]),
    )
    def commit(self, data, num_accepted, following, k, deadline_ms):
        peer = data.draw(st.sampled_from(self.peers))
        if len(peer.text) > 45:
            return
        accepted = self.drafted.pop(peer, [])[:num_accepted]
        self.messages.append((peer, peer.commit([*accepted, *following], k, deadline_ms)))

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def repeat(self, data):
        peer, message = data.draw(st.sampled_from(self.messages[-8:]))
        self.engine.submit(peer.target, [message])

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def lose_a_message(self, data):
        """The next commit leaves a gap."""
        peer = data.draw(st.sampled_from(self.peers))
        if len(peer.text) < 45:
            peer.output.append(1)
            peer.sent_len += 1

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def close(self, data):
        peer = data.draw(st.sampled_from(self.peers))
        peer.close()
        self._forget(peer)

    @rule(target_name=st.sampled_from("ab"))
    def reconnect(self, target_name):
        self.engine.drop_target(target_name)
        self.engine.add_target(target_name, VOCAB_SIZE)
        for peer in [p for p in self.peers if p.target == target_name]:
            self._forget(peer)

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.0]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps):
        for _ in range(num_steps):
            self._receive(self.engine.step())

    @rule()
    def settle(self):
        """Whatever happened, the engine comes to rest, and every ask is answered."""
        for _ in range(400):
            if not self.engine.has_work:
                break
            self._receive(self.engine.step())
        assert not self.engine.has_work, "stalled"
        assert not any(session.ask for session in self.engine.sessions.all())

    # -- what must hold ------------------------------------------------------------------------

    @invariant()
    def books_agree(self):
        check(self.engine)

    @invariant()
    def committed_text_is_a_prefix_of_the_targets(self):
        for peer in self.peers:
            if peer.session is not None:
                assert peer.session.token_ids == peer.text[: peer.session.num_tokens]

    def teardown(self):
        for peer in list(self.peers):
            peer.close()
            self._forget(peer)
        assert self.engine.memory.blocks.num_used_blocks == 0

    def _receive(self, sent):
        for target, message in sent:
            peer = self._peer(target, message.session_id)
            if peer is None:
                continue  # answered before the session was closed; a target ignores it
            if isinstance(message, Resync):
                if message.epoch == peer.epoch:
                    peer.open()
            elif message.epoch == peer.epoch:
                self._check_proposal(peer, message)

    def _peer(self, target, session_id):
        found = [p for p in self.peers if (p.target, p.session_id) == (target, session_id)]
        return found[0] if found else None

    def _check_proposal(self, peer: Peer, proposal: Proposal):
        assert not (proposal.reason and proposal.token_ids)
        text = peer.prompt + peer.output[: proposal.base_len]
        assert len(text) + len(proposal.token_ids) <= 40
        if peer.params is not BLOCK:
            for token_id in proposal.token_ids:
                assert token_id == target_token(text, len(peer.prompt), peer.params, peer.seed)
                text.append(token_id)
        if proposal.base_len == len(peer.output):
            self.drafted[peer] = proposal.token_ids

    def _forget(self, peer):
        self.peers.remove(peer)
        self.drafted.pop(peer, None)
        self.messages = [pair for pair in self.messages if pair[0] is not peer]


TestDraftEngineMachine = DraftEngineMachine.TestCase
TestDraftEngineMachine.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
