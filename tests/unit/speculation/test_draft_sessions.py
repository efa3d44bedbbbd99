"""The target's side of the draft protocol, message by message."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.params import SamplingParams
from specdec.sampling.law import SparseLaw
from specdec.sequence import Sequence, Verification
from specdec.speculation.draft_sessions import (
    MAX_FRUITLESS_OPENS,
    NUM_PAUSED_COMMITS,
    DraftSessions,
)
from specdec.speculation.messages import Close, Commit, DraftInfo, Open, Proposal, Resync
from specdec.speculation.proposer import Committed

VOCAB = 100
PROMPT = [1, 2, 3]


def draft_info(max_model_len: int = 1000, max_k: int = 8) -> DraftInfo:
    return DraftInfo("tiny", "hash", VOCAB + 28, max_model_len, "model", 1, 7, max_k)


def sequence(verification: Verification, seq_id: int = 1) -> Sequence:
    return Sequence(
        seq_id=seq_id,
        request_id=f"r{seq_id}",
        token_ids=list(PROMPT),
        num_prompt_tokens=len(PROMPT),
        params=SamplingParams(temperature=0.0 if verification == Verification.GREEDY else 1.0),
        seed=5,
        verification=verification,
        eos_token_ids=frozenset(),
        max_model_len=4096,
    )


def ready_sessions(
    verification: Verification = Verification.GREEDY, info: DraftInfo | None = None
) -> DraftSessions:
    """One session, at member "a", whose draft has said that it is ready."""
    sessions = DraftSessions(VOCAB)
    sessions.add(sequence(verification))
    opened = sessions.connect(1, "a", info or draft_info())
    assert isinstance(opened, Open)
    sessions.receive("a", Proposal(1, 1, 0, 0, []))
    assert sessions.available(1)
    return sessions


def commit(sessions: DraftSessions, token_ids: list[int], drafted: int = 0, accepted: int = 0):
    sessions.commit(Committed(1, token_ids, drafted, accepted))


def law(*ids: int) -> SparseLaw:
    """The uniform law over ids, ascending."""
    weights = np.full(len(ids), 65535 // len(ids))
    weights[0] += 65535 - weights.sum()
    return SparseLaw(np.array(sorted(ids), np.uint32), weights.astype(np.uint16))


def test_commits_are_contiguous_and_coalesced() -> None:
    sessions = ready_sessions()
    commit(sessions, [10])
    first = sessions.ask(1, 4, 5.0)
    commit(sessions, [11, 12])
    commit(sessions, [13])
    second = sessions.ask(1, 4, 5.0)
    assert isinstance(first, Commit)
    assert isinstance(second, Commit)
    assert (first.base_len, first.token_ids, first.k) == (0, [10], 4)
    assert (second.base_len, second.token_ids) == (1, [11, 12, 13])
    assert second.round > first.round


def test_nothing_is_asked_before_the_draft_is_ready() -> None:
    sessions = DraftSessions(VOCAB)
    sessions.add(sequence(Verification.GREEDY))
    assert sessions.disabled_reason(1) == "draft_unavailable"
    sessions.connect(1, "a", draft_info())
    assert sessions.ask(1, 4, 5.0) is None
    assert sessions.flush(1) is None
    sessions.receive("a", Proposal(1, 1, 0, 0, [], reason="prefilling"))
    assert sessions.ask(1, 4, 5.0) is None
    assert sessions.disabled_reason(1) == "draft_prefilling"
    commit(sessions, [10])
    flushed = sessions.flush(1)
    assert isinstance(flushed, Commit)
    assert (flushed.token_ids, flushed.k) == ([10], 0)
    sessions.receive("a", Proposal(1, 1, 0, 0, []))
    assert sessions.available(1)
    assert sessions.disabled_reason(1) is None


def test_a_late_proposal_serves_the_next_step_where_it_still_extends_the_text() -> None:
    sessions = ready_sessions()
    ask = sessions.ask(1, 3, 5.0)
    commit(sessions, [20])  # the step went on without the draft, and sampled its first token
    sessions.receive("a", Proposal(1, 1, 0, ask.round, [20, 21, 22]))
    assert sessions.drafts(1, 8).token_ids == [21, 22]
    assert (sessions.counters.num_late, sessions.counters.num_late_used) == (1, 1)
    commit(sessions, [21, 30], drafted=2, accepted=1)
    assert sessions.drafts(1, 8) is None
    assert sessions.counters.num_stale == 1


def test_a_late_proposal_for_another_text_is_dropped() -> None:
    sessions = ready_sessions()
    ask = sessions.ask(1, 3, 5.0)
    commit(sessions, [30])
    sessions.receive("a", Proposal(1, 1, 0, ask.round, [20, 21, 22]))
    assert sessions.drafts(1, 8) is None
    assert sessions.counters.num_stale == 1


@pytest.mark.parametrize("verification", [Verification.REJECTION, Verification.BLOCK])
def test_tokens_that_a_rejecting_pass_has_seen_never_come_back(verification) -> None:
    """Block verification may recover the very token it rejected; what follows it was looked at."""
    sessions = ready_sessions(verification)
    ask = sessions.ask(1, 3, 5.0)
    laws = [law(20, 21), law(20, 21), law(20, 21)]
    answer = Proposal(1, 1, 0, ask.round, [20, 21, 20], laws=laws)
    sessions.receive("a", answer)
    assert sessions.drafts(1, 3).token_ids == [20, 21, 20]
    commit(sessions, [20], drafted=3, accepted=0)
    assert sessions.drafts(1, 3) is None
    sessions.receive("a", Proposal(1, 1, 0, ask.round, [20, 21, 20], laws=laws))  # a duplicate
    assert sessions.drafts(1, 3) is None


def test_full_acceptance_keeps_what_was_not_verified() -> None:
    sessions = ready_sessions(Verification.BLOCK)
    ask = sessions.ask(1, 4, 5.0)
    laws = [law(20, 21), law(21, 22), law(22, 23), law(23, 24)]
    sessions.receive("a", Proposal(1, 1, 0, ask.round, [20, 21, 22, 23], laws=laws))
    commit(sessions, [20, 21, 22], drafted=2, accepted=2)
    drafts = sessions.drafts(1, 4)
    assert drafts.token_ids == [23]
    assert drafts.laws == [laws[3]]


def test_duplicates_are_idempotent() -> None:
    sessions = ready_sessions()
    ask = sessions.ask(1, 3, 5.0)
    for _ in range(3):
        sessions.receive("a", Proposal(1, 1, 0, ask.round, [20, 21, 22]))
    assert sessions.drafts(1, 3).token_ids == [20, 21, 22]
    assert sessions.counters.num_duplicates == 2
    assert not sessions.is_waiting(1)


@pytest.mark.parametrize(
    ("token_ids", "kept", "reason"),
    [
        ([20, 2**32 - 1, 22], [20], "token_out_of_range"),  # -1 as unsigned
        ([20, VOCAB, 22], [20], "token_out_of_range"),
        ([2**31 - 1], [], "token_out_of_range"),
        ([20, 21, 22, 23, 24], [20, 21, 22], "too_many_tokens"),
    ],
)
def test_bad_tokens_are_cut_off_and_counted(token_ids, kept, reason) -> None:
    sessions = ready_sessions()
    ask = sessions.ask(1, 3, 5.0)
    sessions.receive("a", Proposal(1, 1, 0, ask.round, token_ids))
    drafts = sessions.drafts(1, 8)
    assert (drafts.token_ids if drafts else []) == kept
    assert sessions.counters.faults == {reason: 1}
    assert not sessions.is_waiting(1)


def _weights(*weights: int) -> SparseLaw:
    return SparseLaw(
        np.arange(20, 20 + len(weights), dtype=np.uint32), np.array(weights, np.uint16)
    )


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (_weights(30000, 30000), "law_weights_do_not_sum"),
        (_weights(65535, 0), "law_zero_weight"),
        (law(30, 31), "token_outside_law"),
        (law(21, VOCAB), "law_id_out_of_range"),
        (SparseLaw(np.array([21, 21], np.uint32), np.array([1, 65534], np.uint16)), None),
        (SparseLaw(np.array([22, 21], np.uint32), np.array([1, 65534], np.uint16)), None),
        (SparseLaw(np.array([21], np.uint32), np.array([1, 65534], np.uint16)), None),
        (SparseLaw(np.array([], np.uint32), np.array([], np.uint16)), None),
    ],
)
def test_a_bad_law_ends_the_proposal_before_its_token(bad, reason) -> None:
    sessions = ready_sessions(Verification.REJECTION)
    ask = sessions.ask(1, 3, 5.0)
    laws = [law(20, 21), bad, law(20, 21)]
    sessions.receive("a", Proposal(1, 1, 0, ask.round, [20, 21, 20], laws=laws))
    assert sessions.drafts(1, 8).token_ids == [20]
    assert len(sessions.drafts(1, 8).laws) == 1
    assert sessions.counters.faults.total() == 1
    if reason is not None:
        assert sessions.counters.faults == {reason: 1}


def test_missing_laws_end_the_proposal_and_unwanted_ones_are_ignored() -> None:
    sessions = ready_sessions(Verification.BLOCK)
    ask = sessions.ask(1, 3, 5.0)
    sessions.receive("a", Proposal(1, 1, 0, ask.round, [20, 21], laws=[law(20, 21)]))
    assert sessions.drafts(1, 8).token_ids == [20]
    assert sessions.counters.faults == {"law_missing": 1}

    sessions = ready_sessions(Verification.COUPLED)
    ask = sessions.ask(1, 3, 5.0)
    sessions.receive("a", Proposal(1, 1, 0, ask.round, [20, 21], laws=[law(50, 51)]))
    assert sessions.drafts(1, 8).token_ids == [20, 21]
    assert sessions.drafts(1, 8).laws == []
    assert sessions.counters.faults == {"law_ignored": 1}


def test_strangers_and_the_past_are_not_heard() -> None:
    sessions = ready_sessions()
    ask = sessions.ask(1, 3, 5.0)
    sessions.receive("a", Proposal(99, 1, 0, 1, [20]))
    sessions.receive("b", Proposal(1, 1, 0, ask.round, [20]))
    sessions.receive("a", Proposal(1, 1, 5, ask.round, [20]))  # knows more than it was told
    sessions.receive("a", Proposal(1, 1, 0, ask.round + 1, [20]))
    assert sessions.counters.faults == {"unknown_session": 2, "ahead_of_commits": 2}
    sessions.receive("a", Proposal(1, 2, 0, ask.round, [20]))
    sessions.receive("a", Proposal(1, 0, 0, ask.round, [20]))
    assert sessions.counters.num_stale == 2
    assert sessions.drafts(1, 8) is None
    assert sessions.is_waiting(1)


def test_resync_opens_anew_with_the_whole_text() -> None:
    sessions = ready_sessions()
    commit(sessions, [10, 11])
    ask = sessions.ask(1, 3, 5.0)
    reopened = sessions.receive("a", Resync(1, 1, "unknown session"))
    assert isinstance(reopened, Open)
    assert (reopened.epoch, reopened.output_token_ids) == (2, [10, 11])
    assert not sessions.is_waiting(1)
    assert sessions.receive("a", Resync(1, 1, "unknown session")) is None  # a duplicate
    sessions.receive("a", Proposal(1, 1, 2, ask.round, [20]))  # of the first epoch
    assert sessions.drafts(1, 8) is None
    sessions.receive("a", Proposal(1, 2, 2, 0, []))
    commit(sessions, [12])
    again = sessions.ask(1, 3, 5.0)
    assert (again.epoch, again.base_len, again.token_ids) == (2, 2, [12])
    assert again.round > ask.round


def test_a_draft_that_never_follows_is_given_up() -> None:
    sessions = ready_sessions()
    replies = [sessions.receive("a", Resync(1, 1 + i, "gap")) for i in range(20)]
    assert [type(reply) for reply in replies[: MAX_FRUITLESS_OPENS + 1]] == (
        [Open] * MAX_FRUITLESS_OPENS + [Close]
    )
    assert replies[MAX_FRUITLESS_OPENS + 1 :] == [None] * (19 - MAX_FRUITLESS_OPENS)
    assert sessions.disabled_reason(1) == "draft_out_of_step"


def test_the_draft_context_ends_before_the_targets() -> None:
    info = draft_info(max_model_len=len(PROMPT) + 6)
    sessions = ready_sessions(info=info)
    commit(sessions, [10, 11])
    assert sessions.ask(1, 8, 5.0).k == 4
    commit(sessions, [12, 13, 14])
    assert sessions.ask(1, 8, 5.0).k == 1
    commit(sessions, [15])
    assert isinstance(sessions.ask(1, 8, 5.0), Close)
    assert sessions.disabled_reason(1) == "draft_context_full"
    assert not sessions.available(1)
    assert sessions.ask(1, 8, 5.0) is None

    sessions = DraftSessions(VOCAB)
    sessions.add(sequence(Verification.GREEDY))
    assert sessions.connect(1, "a", draft_info(max_model_len=3)) is None
    assert sessions.disabled_reason(1) == "draft_context_full"


def test_declines() -> None:
    sessions = ready_sessions()
    ask = sessions.ask(1, 3, 5.0)
    sessions.receive("a", Proposal(1, 1, 0, ask.round, [], reason="kv_full"))
    assert not sessions.is_waiting(1)
    assert sessions.disabled_reason(1) == "draft_kv_full"
    for token_id in range(NUM_PAUSED_COMMITS):
        assert not sessions.available(1)
        commit(sessions, [token_id])
    assert sessions.available(1)  # time to try again
    assert len(sessions.ask(1, 3, 5.0).token_ids) == NUM_PAUSED_COMMITS
    reply = sessions.receive("a", Proposal(1, 1, 0, 2, [], reason="context_full"))
    assert isinstance(reply, Close)
    assert sessions.disabled_reason(1) == "draft_context_full"
    assert sessions.counters.declines == {"kv_full": 1, "context_full": 1}


def test_reasons_that_the_protocol_does_not_know_share_one_counter() -> None:
    sessions = ready_sessions()
    for number in range(50):
        ask = sessions.ask(1, 3, 5.0)
        sessions.receive("a", Proposal(1, 1, 0, ask.round, [], reason=f"made up {number}"))
        assert not sessions.is_waiting(1)
    assert sessions.available(1)
    assert sessions.counters.declines == {"unknown": 50}


def test_moving_to_another_member_bumps_the_epoch_and_forgets_the_old_one() -> None:
    sessions = ready_sessions()
    commit(sessions, [10])
    ask = sessions.ask(1, 3, 5.0)
    assert isinstance(sessions.disconnect(1), Close)
    assert not sessions.is_waiting(1)
    assert sessions.disabled_reason(1) == "draft_unavailable"
    commit(sessions, [11])
    opened = sessions.connect(1, "b", draft_info())
    assert (opened.epoch, opened.output_token_ids) == (2, [10, 11])
    sessions.receive("a", Proposal(1, 1, 1, ask.round, [20]))
    sessions.receive("a", Proposal(1, 2, 2, 0, []))
    assert not sessions.available(1)
    sessions.receive("b", Proposal(1, 2, 2, 0, []))
    assert sessions.available(1)
    assert (sessions.num_at("a"), sessions.num_at("b")) == (0, 1)
    assert sessions.remove(1) == Close(1, 2)
    assert sessions.num_at("b") == 0


def test_an_unknown_sequence_harms_nothing() -> None:
    sessions = DraftSessions(VOCAB)
    sessions.commit(Committed(5, [1], 0, 0))
    assert sessions.ask(5, 3, 5.0) is None
    assert sessions.drafts(5, 3) is None
    assert sessions.remove(5) is None
    assert sessions.disconnect(5) is None
    assert not sessions.available(5)
