"""A draft session aligns itself to commits: pure state, no model."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.engine.draft_session import OutOfStep, Session
from specdec.params import SamplingParams
from specdec.sampling.law import SparseLaw
from specdec.sequence import Verification
from specdec.speculation.messages import Commit, Open

PROMPT = [1, 2, 3]
FAR_MS = 1000.0
LAW = SparseLaw(np.array([7], np.uint32), np.array([65535], np.uint16))


def make(output=(), tail=(), verification=Verification.COUPLED, max_model_len=50, **params):
    """A session that has drafted `tail`: all but its last known token are computed."""
    opened = Open(1, 1, PROMPT, list(output), SamplingParams(**params), 5, verification)
    session = Session.of("a", opened, frozenset({0}), max_model_len, now_s=0.0)
    for token_id in tail:
        session.append_draft(token_id, LAW if verification is Verification.BLOCK else None)
    session.num_computed_tokens = session.num_known_tokens - 1
    return session


def commit(base_len, token_ids, k=4, round=1, deadline_ms=FAR_MS):
    return Commit(1, 1, base_len, round, list(token_ids), k, deadline_ms)


def snapshot(session):
    return (list(session.token_ids), list(session.tail), session.num_computed_tokens, session.ask)


@pytest.mark.parametrize(
    ("tail", "committed", "new_tail", "num_pending"),
    [
        pytest.param([7, 8, 9], [7, 8, 9, 4], [], 2, id="full acceptance: last draft + bonus"),
        pytest.param([7, 8, 9], [7, 8, 4], [], 1, id="rejected at the end: the recovered token"),
        pytest.param([7, 8, 9], [4], [], 1, id="rejected at once"),
        pytest.param([7, 8, 9], [7], [8, 9], 1, id="the target went on without the draft"),
        pytest.param([7, 8, 9], [7, 8, 9], [], 1, id="exactly the tail"),
        pytest.param([7, 8, 9], [7, 4, 5, 6], [], 3, id="several commits at once"),
        pytest.param([7, 8, 9], [4, 5, 9], [], 3, id="agreeing again later is no agreement"),
        pytest.param([], [4, 5], [], 3, id="nothing drafted"),
    ],
)
def test_commit_keeps_what_agrees(tail, committed, new_tail, num_pending):
    session = make(tail=tail)
    session.apply(commit(0, committed), max_k=8, now_s=0.0)
    assert session.token_ids == PROMPT + committed
    assert session.tail == new_tail
    assert session.num_pending_tokens == num_pending
    computed = session.num_computed_tokens
    # What counts as computed really was: it agrees with the text and tail of before.
    assert (PROMPT + tail)[:computed] == (PROMPT + committed + new_tail)[:computed]
    assert computed + num_pending == session.num_known_tokens


def test_the_last_committed_token_is_never_a_cacheable_one():
    """It may be computed, but it is computed again for its logits, which writes into its block."""
    session = make(tail=[7, 8, 9])
    session.apply(commit(0, [7], k=0), max_k=8, now_s=0.0)
    assert session.num_computed_tokens == 5  # 3 of the prompt, 7 and 8
    assert session.num_verified_tokens == 3


def test_query_tokens_cross_from_text_into_tail():
    session = make(output=[4, 5], tail=[7, 8])
    session.num_computed_tokens = 2
    assert session.query_token_ids(1) == [3]
    assert session.query_token_ids(5) == [3, 4, 5, 7, 8]
    session.num_computed_tokens = 6
    assert session.query_token_ids(1) == [8]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (commit(3, [6]), "gap"),
        (commit(1, [9, 6]), "mismatch"),
        (commit(-1, [3, 4]), "mismatch"),
    ],
)
def test_commit_out_of_step_changes_nothing(message, reason):
    session = make(output=[4, 5], tail=[6])
    before = snapshot(session)
    with pytest.raises(OutOfStep, match=reason):
        session.apply(message, max_k=8, now_s=0.0)
    assert snapshot(session) == before


def test_commits_may_overlap():
    session = make(output=[4, 5])
    session.apply(commit(1, [5, 6, 7]), max_k=8, now_s=0.0)
    assert session.token_ids == [*PROMPT, 4, 5, 6, 7]


def test_duplicate_changes_nothing_even_after_its_answer():
    session = make()
    message = commit(0, [4], round=3)
    session.apply(message, max_k=8, now_s=0.0)
    before = snapshot(session)
    session.apply(message, max_k=8, now_s=9.0)
    assert snapshot(session) == before
    session.append_draft(7, None)
    assert session.answer(1.0).token_ids == [7]
    session.apply(message, max_k=8, now_s=9.0)
    assert session.ask is None
    session.apply(commit(0, [4], round=2), max_k=8, now_s=9.0)  # older still
    assert session.ask is None


def test_newer_commit_voids_the_ask_before_it():
    session = make()
    session.apply(commit(0, [4], round=1), max_k=8, now_s=0.0)
    session.apply(commit(1, [5], k=0, round=2), max_k=8, now_s=0.0)
    assert session.ask is None
    session.apply(commit(2, [6], k=2, round=3, deadline_ms=250.0), max_k=8, now_s=1.0)
    assert session.ask is not None
    assert (session.ask.k, session.ask.round, session.ask.deadline_s) == (2, 3, 1.25)


@pytest.mark.parametrize("verification", [Verification.BLOCK, Verification.REJECTION])
def test_sent_laws_are_never_used_again(verification):
    """Verification may have looked at every drafted token before it discarded some."""
    session = make(tail=[7, 8, 9], verification=verification)
    session.apply(commit(0, [7]), max_k=8, now_s=0.0)
    assert session.tail == session.tail_laws == []
    assert session.num_pending_tokens == 1  # 7 is computed, but its logits are needed again


def test_pause_keeps_a_coupled_tail_that_still_fits():
    session = make(tail=[7, 8, 9])
    session.apply(commit(0, [7], k=0, round=1), max_k=8, now_s=0.0)
    session.apply(commit(1, [8], k=1, round=2), max_k=8, now_s=0.0)
    assert session.is_answerable
    assert session.answer(0.0).token_ids == [9]


@pytest.mark.parametrize(("max_model_len", "expected"), [(50, 5), (10, 5), (6, 2), (5, 1)])
def test_k_is_capped_by_operator_and_context(max_model_len, expected):
    session = make(max_model_len=max_model_len)
    session.apply(commit(0, [4], k=9), max_k=5, now_s=0.0)
    assert session.ask is not None
    assert session.ask.k == expected


def test_no_ask_where_the_context_is_full():
    session = make(max_model_len=4)
    session.apply(commit(0, [4], k=3), max_k=5, now_s=0.0)
    assert session.room == 0
    assert session.ask is None


@pytest.mark.parametrize(
    ("params", "token_id", "ends"),
    [
        ({}, 0, True),
        ({"ignore_eos": True}, 0, False),
        ({"stop_token_ids": (9,)}, 9, True),
        ({"stop_token_ids": (9,), "ignore_eos": True}, 9, True),
        ({}, 9, False),
    ],
)
def test_drafting_ends_behind_a_token_that_ends_the_output(params, token_id, ends):
    session = make(**params)
    session.apply(commit(0, [4], k=5), max_k=8, now_s=0.0)
    session.append_draft(token_id, None)
    assert session.is_answerable is ends
    assert session.answer(0.0).token_ids == [token_id]


@pytest.mark.parametrize("verification", [Verification.BLOCK, Verification.REJECTION])
def test_a_sampled_value_never_makes_an_answer_early(verification):
    """A proposal that were ready sooner for ending in a stop token would reach the target where
    others are late: stop tokens would be accepted more often than the target's law has them."""
    session = make(verification=verification, stop_token_ids=(9,))
    session.apply(commit(0, [4], k=3), max_k=8, now_s=0.0)
    for token_id in (9, 9):
        session.append_draft(token_id, LAW)
        assert not session.is_answerable
    session.append_draft(5, LAW)
    assert session.is_answerable
    assert session.answer(0.0).token_ids == [9, 9, 5]


def test_answer_carries_where_it_belongs():
    session = make(verification=Verification.BLOCK)
    session.apply(commit(0, [4, 5], k=2, round=6), max_k=8, now_s=1.0)
    for token_id in (7, 8, 9):
        session.append_draft(token_id, LAW)
    proposal = session.answer(1.25, "overloaded")
    assert (proposal.epoch, proposal.base_len, proposal.round) == (1, 2, 6)
    assert (proposal.token_ids, len(proposal.laws)) == ([7, 8], 2)
    assert (proposal.reason, proposal.draft_ms) == ("", 250.0)
    notice = session.answer(2.0, "evicted")
    assert (notice.round, notice.token_ids, notice.laws) == (0, [], [])
    assert (notice.reason, notice.draft_ms) == ("evicted", 0.0)
