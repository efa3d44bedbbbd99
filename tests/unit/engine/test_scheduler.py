"""The scheduler on its own: order, budget, memory, drafts. No model runs here."""

from __future__ import annotations

import pytest

from specdec.errors import InvalidRequestError, OverloadedError
from specdec.sequence import SequenceStatus
from tests.unit.engine.scheduling import decoding, make_scheduler, make_sequence, run_step, verify

# -- prefill, decode, budget -----------------------------------------------------------------------


def test_a_prompt_is_computed_in_chunks_and_its_last_chunk_gives_a_token():
    scheduler, _ = make_scheduler(budget=5)
    seq = make_sequence(12)
    scheduler.add(seq)
    chunks = []
    while seq.num_output_tokens == 0:
        schedule = run_step(scheduler)
        assert schedule.decodes == []
        chunks += [chunk for _, chunk in schedule.prefills]
    assert chunks == [5, 5, 2]
    assert seq.num_computed_tokens == 12
    assert run_step(scheduler).decodes == [seq]
    assert (seq.num_tokens, seq.num_computed_tokens) == (14, 13)


def test_a_prompt_of_which_one_token_is_left_is_still_a_prefill():
    scheduler, _ = make_scheduler(budget=4)
    for num_tokens in (1, 5):
        seq = make_sequence(num_tokens)
        scheduler.add(seq)
        if num_tokens == 5:
            run_step(scheduler)
        schedule = scheduler.schedule()
        assert schedule.prefills == [(seq, 1)]
        assert scheduler.reserve_draft(seq, 3) == 0
        seq.token_ids.append(7)
        scheduler.advance(seq, 1)
        scheduler.finish(seq)


def test_decodes_come_first_then_prefills_under_way_then_admission():
    scheduler, _ = make_scheduler(budget=10)
    first, second, third = make_sequence(3), make_sequence(20), make_sequence(4)
    decoding(scheduler, first)
    scheduler.add(second)
    scheduler.add(third)
    schedule = run_step(scheduler)
    assert (schedule.decodes, schedule.prefills) == ([first], [(second, 9)])
    assert schedule.admitted == [second]
    assert run_step(scheduler).prefills == [(second, 9)]
    schedule = run_step(scheduler)
    assert schedule.prefills == [(second, 2), (third, 4)]
    assert schedule.admitted == [third]
    assert schedule.num_tokens == 7


def test_at_most_max_num_sequences_run():
    scheduler, _ = make_scheduler(max_num_sequences=2)
    sequences = [make_sequence(2) for _ in range(3)]
    decoding(scheduler, *sequences[:2])
    scheduler.add(sequences[2])
    assert run_step(scheduler).prefills == []
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    scheduler.finish(sequences[0])
    assert run_step(scheduler).admitted == [sequences[2]]


def test_more_sequences_than_budget_never_exceed_the_budget():
    scheduler, _ = make_scheduler(max_num_sequences=8, budget=3)
    for _ in range(6):
        scheduler.add(make_sequence(1))
    for _ in range(5):
        assert run_step(scheduler).num_tokens == 3
    assert scheduler.num_running == 3


def test_draft_reservation_leaves_prefill_one_token_and_no_less():
    scheduler, _ = make_scheduler(budget=10)
    first, second = make_sequence(3), make_sequence(20)
    decoding(scheduler, first)
    scheduler.add(second)
    assert run_step(scheduler, reserved=4).prefills == [(second, 5)]
    assert scheduler.num_budget_tokens_left == 4
    assert run_step(scheduler, reserved=1000).prefills == [(second, 1)]
    assert scheduler.num_budget_tokens_left == 8


def test_nothing_is_reserved_for_drafts_when_nothing_decodes():
    scheduler, _ = make_scheduler(budget=10)
    seq = make_sequence(20)
    scheduler.add(seq)
    assert run_step(scheduler, reserved=9).prefills == [(seq, 10)]


# -- requests that cannot be taken -----------------------------------------------------------------


def test_the_queue_has_an_end():
    scheduler, _ = make_scheduler(max_queue=2)
    for _ in range(2):
        scheduler.add(make_sequence(2))
    refused = make_sequence(2)
    with pytest.raises(OverloadedError):
        scheduler.add(refused)
    assert scheduler.abort(refused.seq_id) is None
    assert scheduler.num_waiting == 2


@pytest.mark.parametrize("num_tokens", [7, 8, 9])
@pytest.mark.parametrize(("num_blocks", "max_model_len"), [(2, 1000), (100, 8)])
def test_a_prompt_that_can_never_fit_is_refused(num_tokens, num_blocks, max_model_len):
    scheduler, _ = make_scheduler(num_blocks=num_blocks, max_model_len=max_model_len)
    seq = make_sequence(num_tokens)
    if num_tokens == 7:
        scheduler.add(seq)
        assert run_step(scheduler).prefills == [(seq, 7)]
        return
    with pytest.raises(InvalidRequestError, match="of 8 tokens") as error:
        scheduler.add(seq)
    assert error.value.field == "prompt"
    assert not scheduler.has_work


def test_a_sequence_that_outgrows_the_pool_alone_ends():
    scheduler, manager = make_scheduler(num_blocks=2)
    seq = make_sequence(6)
    decoding(scheduler, seq)
    schedules = [run_step(scheduler) for _ in range(3)]
    assert [s.out_of_memory for s in schedules] == [[], [], [seq]]
    assert seq.num_tokens == 9  # eight have a slot, the last needs none
    assert schedules[2].is_empty
    assert seq.status is SequenceStatus.FINISHED
    assert manager.num_free_blocks == 2
    assert not scheduler.has_work
    scheduler.finish(seq)


# -- preemption ------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocked", [None, "a", "b"])
def test_a_sequence_that_was_paused_when_it_outgrew_the_pool_ends_and_holds_up_nobody(blocked):
    scheduler, manager = make_scheduler(num_blocks=1, block_size=2, max_num_sequences=1)
    seq = make_sequence(1, max_tokens=10, tenant="a")
    decoding(scheduler, seq)
    run_step(scheduler)
    scheduler.pause(seq)  # with a third token to compute, and one block of two
    other = make_sequence(1, max_tokens=1, tenant=blocked)
    if blocked:
        scheduler.add(other)
    scheduler.resume(seq)
    schedule = run_step(scheduler)
    assert (schedule.out_of_memory, seq.status) == ([seq], SequenceStatus.FINISHED)
    assert [s for s, _ in schedule.prefills] == ([other] if blocked else [])
    scheduler.finish(other)
    manager.check_integrity([])
    assert not scheduler.has_work


def test_the_latest_arrival_is_preempted_and_comes_back_first():
    scheduler, manager = make_scheduler(num_blocks=7)
    first, second, third = (make_sequence(7) for _ in range(3))
    decoding(scheduler, first, second)
    scheduler.add(third)
    while not (schedule := run_step(scheduler)).preempted:
        pass
    assert schedule.preempted == [second]
    assert schedule.decodes == [first]
    assert schedule.admitted == []
    assert scheduler.waiting == (second, third)
    assert second.status is SequenceStatus.WAITING
    assert (second.num_computed_tokens, second.block_table) == (0, [])
    assert second.num_output_tokens > 0
    assert (second.num_preemptions, scheduler.num_preemptions) == (1, 1)
    scheduler.finish(first)
    known = second.num_tokens
    schedule = scheduler.schedule()
    assert schedule.admitted[0] is second
    assert second.num_computed_tokens + schedule.prefills[0][1] == known
    manager.check_integrity([second.block_table, third.block_table])


def test_a_preempted_sequence_computes_its_output_again_in_chunks_then_decodes():
    scheduler, _ = make_scheduler(num_blocks=8, budget=6)
    first = make_sequence(7)
    second = make_sequence(7, prompt_logprobs=0)  # reads no cache, so that all is recomputed
    decoding(scheduler, first, second)
    while not run_step(scheduler).preempted:
        pass
    scheduler.finish(first)
    known = list(second.token_ids)
    chunks = []
    while second.token_ids == known:
        ((_, chunk),) = run_step(scheduler).prefills
        chunks.append(chunk)
    assert sum(chunks) == len(known) > 12
    assert second.token_ids == [*known, 7]
    assert run_step(scheduler).decodes == [second]


def test_a_prefill_is_never_stopped_half_way_by_a_later_arrival():
    scheduler, _ = make_scheduler(num_blocks=10, budget=4)
    first, second = make_sequence(30), make_sequence(10)
    scheduler.add(first)
    scheduler.add(second)
    while first.num_output_tokens == 0:
        schedule = run_step(scheduler)
        assert schedule.preempted == []
        assert [s for s, _ in schedule.prefills] == [first]


def test_admission_leaves_every_running_sequence_a_block_to_grow():
    scheduler, manager = make_scheduler(num_blocks=5)
    first, second = make_sequence(7), make_sequence(8)
    decoding(scheduler, first)
    scheduler.add(second)
    assert run_step(scheduler).admitted == [second]  # two and two of five: one is left
    scheduler.finish(second)
    run_step(scheduler)
    assert len(first.block_table) == 3
    third = make_sequence(8)
    scheduler.add(third)
    assert run_step(scheduler).admitted == []
    assert manager.num_free_blocks == 2
    scheduler.finish(first)
    assert run_step(scheduler).admitted == [third]


def test_nobody_overtakes_the_head_of_the_queue():
    scheduler, _ = make_scheduler(num_blocks=6)
    first, large, small = make_sequence(7), make_sequence(20), make_sequence(1)
    decoding(scheduler, first)
    scheduler.add(large)
    scheduler.add(small)
    assert run_step(scheduler).admitted == []
    scheduler.finish(first)
    assert run_step(scheduler).admitted == [large]


# -- the end of a sequence -------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["waiting", "prefill", "decode", "preempted", "during a step"])
def test_abort_frees_everything_at_any_time(when):
    scheduler, manager = make_scheduler(num_blocks=8, budget=4)
    seq = make_sequence(7)
    scheduler.add(seq)
    if when == "prefill":
        run_step(scheduler)
    if when in ("decode", "preempted"):
        while seq.num_output_tokens == 0:
            run_step(scheduler)
    if when == "preempted":
        scheduler._residents._preempt(seq)
    if when == "during a step":
        scheduler.schedule()
    assert scheduler.abort(seq.seq_id) is seq
    assert scheduler.abort(seq.seq_id) is None
    scheduler.advance(seq, 4)
    assert seq.status is SequenceStatus.FINISHED
    assert not scheduler.has_work
    assert manager.num_used_blocks == 0
    manager.check_integrity([])


def test_a_sequence_cannot_be_added_twice():
    scheduler, _ = make_scheduler()
    seq = make_sequence(3)
    scheduler.add(seq)
    with pytest.raises(ValueError, match="twice"):
        scheduler.add(seq)


# -- drafts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(1, 9))
def test_kv_length_is_committed_length_minus_one_wherever_the_rejection_falls(k):
    for num_accepted in range(k + 1):
        scheduler, manager = make_scheduler()
        seq = make_sequence(6)
        decoding(scheduler, seq)
        for _ in range(3):
            scheduler.schedule()
            before = seq.num_tokens
            assert verify(scheduler, seq, list(range(k)), num_accepted) == k
            assert seq.num_tokens == before + num_accepted + 1
            assert seq.num_computed_tokens == seq.num_tokens - 1
            assert len(seq.block_table) == -(-seq.num_computed_tokens // 4)
            assert manager.num_used_blocks == len(seq.block_table)


@pytest.mark.parametrize(("max_tokens", "max_model_len"), [(6, 1000), (100, 9)])
def test_draft_tokens_stop_before_max_tokens_and_the_context(max_tokens, max_model_len):
    scheduler, _ = make_scheduler()
    seq = make_sequence(3, max_tokens, max_model_len)
    decoding(scheduler, seq)  # one of six output tokens is there
    scheduler.schedule()
    assert verify(scheduler, seq, list(range(8)), 2) == 4
    assert seq.num_free_output_tokens == 2
    scheduler.schedule()
    assert verify(scheduler, seq, list(range(8)), 0) == 1
    scheduler.schedule()
    assert verify(scheduler, seq, list(range(8)), 0) == 0
    assert seq.num_free_output_tokens == 0


def test_draft_tokens_share_the_budget_of_the_step():
    scheduler, _ = make_scheduler(budget=10)
    sequences = [make_sequence(3) for _ in range(3)]
    decoding(scheduler, *sequences)
    scheduler.schedule()
    assert [scheduler.reserve_draft(seq, 4) for seq in sequences] == [4, 3, 0]
    assert scheduler.num_budget_tokens_left == 0


def test_draft_tokens_take_no_block_that_a_running_sequence_may_need():
    scheduler, manager = make_scheduler(num_blocks=6)
    first, second = make_sequence(4), make_sequence(4)
    decoding(scheduler, first, second)
    scheduler.schedule()  # two blocks each, two free: one for each of them
    assert manager.num_free_blocks == 2
    assert [scheduler.reserve_draft(seq, 8) for seq in (first, second)] == [3, 3]
    assert manager.num_free_blocks == 2
    assert scheduler.num_preemptions == 0


def test_advance_refuses_what_was_not_committed():
    scheduler, _ = make_scheduler()
    seq = make_sequence(3)
    decoding(scheduler, seq)
    scheduler.schedule()
    with pytest.raises(ValueError, match="committed"):
        scheduler.advance(seq, 2)
    with pytest.raises(ValueError, match="committed"):
        scheduler.advance(seq, -1)


# -- prefix cache ----------------------------------------------------------------------------------


def test_a_cached_prefix_is_not_computed_again():
    scheduler, _ = make_scheduler()
    first = make_sequence(list(range(10)))
    decoding(scheduler, first)
    second = make_sequence(list(range(10)))
    scheduler.add(second)
    assert run_step(scheduler).prefills == [(second, 2)]
    assert second.num_cached_tokens == 8
    assert second.block_table[:2] == first.block_table[:2]
    assert scheduler.num_prefix_cache_queries == 20
    assert scheduler.num_prefix_cache_hits == 8


def test_other_tenants_and_prompt_logprobs_do_not_read_the_cache():
    scheduler, _ = make_scheduler()
    prompt = list(range(10))
    decoding(scheduler, make_sequence(prompt, partition="a"))
    others = [
        make_sequence(prompt, partition="b"),
        make_sequence(prompt, partition="a", prompt_logprobs=0),
    ]
    for other in others:
        scheduler.add(other)
        assert run_step(scheduler).prefills == [(other, 10)]
        assert other.num_cached_tokens == 0
    assert scheduler.num_prefix_cache_hits == 0


def test_a_rejected_draft_token_is_never_found_by_others():
    scheduler, _ = make_scheduler()
    prompt = list(range(8))
    first = make_sequence(prompt)
    decoding(scheduler, first)  # [0..7, 7], eight computed
    scheduler.schedule()
    verify(scheduler, first, [20, 21, 22, 23, 24], 1)
    assert first.token_ids == [*prompt, 7, 20, 7]
    scheduler.schedule()
    verify(scheduler, first, [30, 31, 32], 2)
    committed = [*prompt, 7, 20, 7, 30, 31, 7]
    assert first.token_ids == committed
    for text, expected in [
        ([*prompt, 7, 20, 21, 22, 23, 24], 8),  # drafted once, rejected
        ([*prompt, 7, 20, 7, 30, 31, 32], 12),
    ]:
        other = make_sequence(text)
        scheduler.add(other)
        run_step(scheduler)
        assert other.num_cached_tokens == expected


def test_cached_tokens_of_a_request_are_those_of_its_first_admission():
    scheduler, _ = make_scheduler(num_blocks=7)
    first, second = make_sequence(7), make_sequence(7)
    decoding(scheduler, first, second)
    while not run_step(scheduler).preempted:
        pass
    scheduler.finish(first)
    schedule = scheduler.schedule()
    assert schedule.admitted == [second]
    assert second.num_computed_tokens == (second.num_tokens - 1) // 4 * 4 > 4  # its own blocks
    assert second.num_cached_tokens == 0
    assert scheduler.num_prefix_cache_hits == 0
