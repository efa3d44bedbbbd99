"""Proposals over real gRPC: everything that can happen to a draft, and what it costs the target."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from specdec.speculation.messages import Close, Open, Proposal, Resync
from tests.integration.rpc.servers import PATIENCE_S, PROMPT, free_port, member_at
from tests.unit.rpc.scripted_draft import (
    VOCAB,
    VOCABULARY,
    Decoding,
    ScriptedDraft,
    identity,
    wait_until,
)


def test_every_draft_token_is_used(serve, connect) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()
    assert decoding.steps(20, k=4, wait_s=PATIENCE_S) == 80
    counters = decoding.proposer.counters
    assert (counters.num_asks, counters.num_hits, counters.num_misses) == (20, 20, 0)
    assert not counters.faults
    decoding.proposer.close([1])
    wait_until(lambda: not server.draft.sessions)
    assert server.draft.received[-1] == Close(1, 1)


def test_one_message_carries_all_sequences_of_a_step(serve, connect) -> None:
    server = serve()
    proposer = connect(server.member)
    decodings = [Decoding(proposer, seq_id, [seq_id]) for seq_id in range(1, 9)]
    for decoding in decodings:
        decoding.until_available()
    sizes: list[int] = []
    server.draft.rewrite = lambda answers: sizes.append(len(answers)) or answers
    drafts = proposer.propose(dict.fromkeys(range(1, 9), 3), PATIENCE_S)
    assert {seq_id: len(d.token_ids) for seq_id, d in drafts.items()} == dict.fromkeys(
        range(1, 9), 3
    )
    assert sizes == [8]


def test_a_draft_that_is_absent_at_start(serve, connect) -> None:
    port = free_port()
    proposer = connect(member_at(port))
    decoding = Decoding(proposer, 1, PROMPT)
    assert decoding.steps(50) == 0
    assert decoding.longest_s == 0, "it was not even asked"
    asked_s = time.monotonic()
    assert proposer.propose({1: 4}, PATIENCE_S) == {}
    assert time.monotonic() - asked_s < PATIENCE_S / 2, "nobody was waited for"
    assert proposer.disabled_reason(1) == "draft_unavailable"
    serve(port=port)
    decoding.until_available()
    assert decoding.steps(5, wait_s=PATIENCE_S) == 20
    assert proposer.disabled_reason(1) is None


def test_a_silent_draft_costs_no_more_than_the_wait(serve, connect) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()
    server.draft.rewrite = lambda answers: []
    started_s = time.monotonic()
    assert decoding.steps(5, wait_s=0.1) == 0
    assert 0.45 < time.monotonic() - started_s < PATIENCE_S / 2
    assert decoding.proposer.counters.num_misses == 5


def test_late_proposals_serve_the_next_step(serve, connect) -> None:
    """Nobody waits, and still every step but the first has draft tokens: each answers the step
    before, reaching beyond what that one verified."""
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()
    server.draft.delay_s = 0.01
    counters = decoding.proposer.counters
    for _ in range(20):
        num_asks = counters.num_asks
        decoding.step(k=4, wait_s=0.0)
        if counters.num_asks > num_asks:
            wait_until(lambda: decoding.proposer.take_timing().asked is not None)
    assert decoding.num_accepted > 50
    assert counters.num_late_used > 15


def test_duplicates_and_reordering_change_nothing(serve, connect) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()
    past: list[Proposal] = []

    def repeat(answers: list) -> list:
        past.extend(answers)
        copies = [replace(p, token_ids=list(p.token_ids)) for p in past[-5:]]
        return [*reversed(copies), *copies]

    server.draft.rewrite = repeat
    assert decoding.steps(30, wait_s=PATIENCE_S) == 120
    # One message holds one proposal per session, so most copies die in the server's outbox.
    assert not decoding.proposer.counters.faults


GARBAGE = [
    lambda p: replace(p, token_ids=[2**32 - 1, *p.token_ids]),
    lambda p: replace(p, token_ids=[VOCAB] * 4),
    lambda p: replace(p, token_ids=p.token_ids * 100),
    lambda p: replace(p, base_len=p.base_len + 1),
    lambda p: replace(p, base_len=2**32 - 1),
    lambda p: replace(p, epoch=p.epoch + 1),
    lambda p: replace(p, epoch=0),
    lambda p: replace(p, session_id=2**64 - 1),
    lambda p: replace(p, round=p.round + 1000),
    lambda p: replace(p, reason="no such reason"),
    lambda p: Resync(p.session_id, 999, "of the future"),
]


@pytest.mark.parametrize("spoil", GARBAGE)
def test_garbage_is_survived(serve, connect, spoil) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()
    spoiled = []

    def garbage(answers: list) -> list:
        spoiled.extend(spoil(answer) for answer in answers)
        return spoiled[-len(answers) :] if answers else []

    server.draft.rewrite = garbage
    decoding.steps(5, wait_s=0.05)
    wait_until(lambda: bool(spoiled))
    server.draft.rewrite = list
    decoding.until_available()
    assert decoding.steps(5, wait_s=PATIENCE_S) == 20  # the session was never lost
    counters = decoding.proposer.counters
    assert counters.faults or counters.num_stale or counters.declines
    assert counters.num_disconnects == 0


def test_a_draft_that_forgets_a_session_gets_it_again(serve, connect) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()
    decoding.steps(3, wait_s=PATIENCE_S)
    server.draft.sessions.clear()
    decoding.step(wait_s=0.05)
    wait_until(lambda: decoding.proposer.counters.num_resyncs == 1)
    decoding.until_available()
    assert decoding.steps(5, wait_s=PATIENCE_S) == 20
    assert decoding.proposer.counters.num_resyncs == 1
    last_open = [m for m in server.draft.received if isinstance(m, Open)][-1]
    assert last_open.epoch == 2
    assert len(last_open.output_token_ids) >= 15


def test_a_restarted_draft_heals(serve, connect) -> None:
    first = serve(ScriptedDraft(incarnation=1))
    decoding = Decoding(connect(first.member), 1, PROMPT)
    decoding.until_available()
    decoding.steps(3, wait_s=PATIENCE_S)
    first.stop()
    wait_until(lambda: not decoding.proposer.available(1))
    decoding.steps(10)  # goes on without
    serve(ScriptedDraft(incarnation=2), port=first.port)
    decoding.until_available()
    assert decoding.steps(5, wait_s=PATIENCE_S) == 20
    assert decoding.proposer.counters.num_disconnects == 1


def test_losing_the_stream_wakes_the_waiting_engine_at_once(serve, connect) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()

    def break_off(answers: list) -> list:
        for connection in list(server.server._servicer.connections.values()):
            connection.close()
        return []

    server.draft.rewrite = break_off
    decoding.step(wait_s=PATIENCE_S)
    assert decoding.longest_s < PATIENCE_S / 2


def test_the_first_differing_token_is_named(serve, connect) -> None:
    other = [*VOCABULARY[:17], "seventeen", *VOCABULARY[18:]]
    server = serve(ScriptedDraft(tokenizer_hash="other", vocabulary=other))
    proposer = connect(server.member, identity=identity(VOCABULARY))
    decoding = Decoding(proposer, 1, PROMPT)
    wait_until(lambda: "incompatible" in (proposer.disabled_reason(1) or ""))
    assert proposer.disabled_reason(1) == (
        "draft_incompatible: token 17 differs: '<17>' here, 'seventeen' at the draft"
    )
    assert decoding.steps(5) == 0
    assert server.draft.received == []


def test_padding_and_other_hashes_of_the_same_vocabulary_fit(serve, connect) -> None:
    server = serve(ScriptedDraft(tokenizer_hash="other", vocabulary=[*VOCABULARY, "", ""]))
    decoding = Decoding(connect(server.member, identity=identity(VOCABULARY)), 1, PROMPT)
    decoding.until_available()
    assert decoding.step(wait_s=PATIENCE_S) == 4


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (ScriptedDraft(tokenizer_hash="other"), "draft_incompatible: the tokenizers differ"),
        (
            ScriptedDraft(protocol_version=2),
            "draft_incompatible: protocol version 2 differs from 1",
        ),
    ],
)
def test_misfits_are_refused_by_name(serve, connect, draft, reason) -> None:
    proposer = connect(serve(draft).member)
    Decoding(proposer, 1, PROMPT)
    wait_until(lambda: proposer.disabled_reason(1) == reason)
    assert not proposer.available(1)


def test_a_shorter_context_ends_speculation_not_the_request(serve, connect) -> None:
    server = serve(ScriptedDraft(max_model_len=40))
    proposer = connect(server.member)
    decoding = Decoding(proposer, 1, PROMPT)
    long = Decoding(proposer, 2, list(range(100)))
    decoding.until_available()
    decoding.steps(30, wait_s=PATIENCE_S)
    assert proposer.disabled_reason(1) == "draft_context_full"
    assert 28 <= decoding.num_accepted <= 37
    assert proposer.disabled_reason(2) == "draft_context_full"
    assert long.steps(3) == 0
    wait_until(lambda: not server.draft.sessions)


def test_sessions_spread_and_move(serve, connect) -> None:
    one, two = serve(), serve()
    proposer = connect(one.member, two.member)
    wait_until(lambda: len(proposer.loads()) == 2)
    decodings = [Decoding(proposer, seq_id, [seq_id]) for seq_id in range(1, 7)]
    for decoding in decodings:
        decoding.until_available()
    assert (len(one.draft.sessions), len(two.draft.sessions)) == (3, 3)
    proposer.set_members([two.member])
    wait_until(lambda: len(two.draft.sessions) == 6 and not one.draft.sessions)
    for decoding in decodings:
        decoding.until_available()
        assert decoding.steps(3, wait_s=PATIENCE_S) == 12


def test_a_draining_draft_hands_its_sessions_over(serve, connect) -> None:
    one, two = serve(), serve()
    proposer = connect(one.member)
    decoding = Decoding(proposer, 1, PROMPT)
    decoding.until_available()
    decoding.steps(2, wait_s=PATIENCE_S)
    proposer.set_members([one.member, two.member])
    wait_until(lambda: bool(two.draft.hellos))
    one.drain()
    wait_until(lambda: len(two.draft.sessions) == 1 and not one.draft.sessions)
    decoding.until_available()
    assert decoding.steps(3, wait_s=PATIENCE_S) == 12
    two.drain()
    wait_until(lambda: proposer.disabled_reason(1) == "draft_draining")
    assert decoding.steps(3) == 0


def test_a_prompt_larger_than_a_message(serve, connect) -> None:
    """It goes in pieces, and a commit of another session does not wait for it."""
    server = serve(ScriptedDraft(max_model_len=10**7))
    proposer = connect(server.member)
    prompt = [i % VOCAB for i in range(1_000_000)]
    small = Decoding(proposer, 1, PROMPT)
    small.until_available()
    large = Decoding(proposer, 2, prompt)
    assert small.steps(5, wait_s=PATIENCE_S) == 20
    large.until_available()
    opened = [m for m in server.draft.received if isinstance(m, Open)][-1]
    assert opened.prompt_token_ids == prompt
    assert large.step(wait_s=PATIENCE_S) == 4


def test_buffered_commits_arrive_without_being_asked_for(serve, connect) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()

    def known() -> int:
        return sum(len(text) for _, _, text in server.draft.sessions.values())

    decoding.steps(32, k=0)
    wait_until(lambda: known() >= len(PROMPT) + 32)
    decoding.steps(3, k=0)
    wait_until(lambda: known() == len(PROMPT) + 35)


def test_shutdown_frees_the_draft(serve, connect) -> None:
    server = serve()
    proposer = connect(server.member)
    decoding = Decoding(proposer, 1, PROMPT)
    decoding.until_available()
    proposer.shutdown()
    wait_until(lambda: not server.draft.sessions and server.server.num_targets == 0)
    assert decoding.proposer.propose({1: 4}, 0.1) == {}
