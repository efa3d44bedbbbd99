"""Several tenants on one scheduler: nobody's flood keeps another from queue, places or memory."""

from __future__ import annotations

import random

import pytest

from specdec.errors import OverloadedError
from specdec.sequence import SequenceStatus
from tests.unit.engine.scheduling import make_scheduler, make_sequence, run_step


def flood(scheduler, num, length=8, tenant="flood", **options):
    sequences = [make_sequence(length, tenant=tenant, **options) for _ in range(num)]
    for seq in sequences:
        scheduler.add(seq)
    return sequences


def run_and_end(scheduler):
    """One step; what has all of its tokens then ends."""
    schedule = run_step(scheduler)
    for seq in schedule.sequences:
        if seq.num_free_output_tokens <= 0:
            scheduler.finish(seq)
    return schedule


def steps_to_first_token(scheduler, seq):
    scheduler.add(seq)
    for num_steps in range(1, 10_000):
        run_and_end(scheduler)
        if seq.num_output_tokens:
            return num_steps
    raise AssertionError("no token came")


# -- the queue -------------------------------------------------------------------------------------


def test_a_full_queue_of_one_tenant_refuses_that_tenant_alone():
    scheduler, _ = make_scheduler(max_queue=2)
    flood(scheduler, 2)
    with pytest.raises(OverloadedError):
        scheduler.add(make_sequence(8, tenant="flood"))
    other = make_sequence(8, tenant="other")
    scheduler.add(other)
    assert scheduler.num_waiting == 3
    assert run_step(scheduler).admitted[-1] is other


def test_nobodys_traffic_has_a_queue_of_its_own():
    """The health check's token comes through a full queue, and its queue is not a tenant's."""
    scheduler, _ = make_scheduler(max_queue=1)
    flood(scheduler, 1)
    scheduler.add(make_sequence(8))
    assert len(run_step(scheduler).admitted) == 2


def test_a_tenants_own_limit_holds_while_others_leave_places_free():
    scheduler, _ = make_scheduler(max_num_sequences=8, max_num_sequences_per_tenant=3)
    flood(scheduler, 6)
    flood(scheduler, 1, tenant="other")
    run_step(scheduler)
    assert [seq.tenant for seq in scheduler.running] == ["flood"] * 3 + ["other"]


# -- places ----------------------------------------------------------------------------------------


def test_a_lone_tenant_has_every_place():
    scheduler, _ = make_scheduler(max_num_sequences=6)
    flood(scheduler, 10)
    run_step(scheduler)
    run_step(scheduler)
    assert scheduler.num_running == 6
    assert scheduler.num_preemptions == 0


def test_a_flood_gives_up_one_place_per_request_of_another_and_no_more_than_its_excess():
    scheduler, manager = make_scheduler(max_num_sequences=6, num_blocks=400)
    first = flood(scheduler, 20)
    for _ in range(3):
        run_step(scheduler)
    assert scheduler.running == tuple(first[:6])
    others = flood(scheduler, 5, tenant="other")
    while scheduler.running != (*first[:3], *others[:3]):
        run_step(scheduler)
    assert scheduler.num_preemptions == 3
    for _ in range(20):
        run_step(scheduler)
    assert scheduler.num_preemptions == 3  # both are at their share: nobody is put back again
    assert scheduler.waiting == (*first[3:], *others[3:])
    manager.check_integrity([seq.block_table for seq in scheduler.running])


@pytest.mark.parametrize("length", [4, 8, 16, 40])
def test_first_tokens_come_beside_a_flood_within_twice_the_steps_of_alone(length):
    """Alone and beside a flood of long prompts that fills queue, places and step; several
    requests one after the other, at all moments of the flood's course."""
    rng = random.Random(length)
    alone, _ = make_scheduler(num_blocks=400, budget=16)
    expected = steps_to_first_token(alone, make_sequence(length, tenant="other"))
    scheduler, _ = make_scheduler(num_blocks=400, budget=16, max_queue=1000)
    flood(scheduler, 68, length=30, max_tokens=20)
    needed = []
    for _ in range(12):
        for _ in range(rng.randint(1, 12)):
            run_and_end(scheduler)
        assert scheduler.num_waiting > 8
        seq = make_sequence(length, tenant="other", max_tokens=4)
        needed.append(steps_to_first_token(scheduler, seq))
        while seq.status is not SequenceStatus.FINISHED:
            run_and_end(scheduler)
    # A decode of the flood takes a token of each step besides, and a step of 16 has 8 of them.
    assert max(needed) <= 2 * expected * 2
    if length <= 4:
        assert max(needed) == 1


def test_more_tenants_than_places_take_them_in_turns_without_preemption():
    scheduler, _ = make_scheduler(max_num_sequences=2, num_blocks=400, budget=32)
    for tenant in "abcde":
        flood(scheduler, 3, tenant=tenant, max_tokens=3)
    admitted = []
    while scheduler.has_work:
        admitted += [seq.tenant for seq in run_and_end(scheduler).admitted]
    assert scheduler.num_preemptions == 0
    assert sorted(admitted[:5]) == list("abcde")  # everybody's first before anybody's second
    assert sorted(admitted[5:10]) == list("abcde")


# -- prompt tokens ---------------------------------------------------------------------------------


def test_long_prompts_of_two_tenants_share_each_step():
    scheduler, _ = make_scheduler(num_blocks=2000, budget=64)
    one, other = make_sequence(900, tenant="one"), make_sequence(900, tenant="other")
    scheduler.add(one)
    run_step(scheduler)
    scheduler.add(other)
    before = one.num_computed_tokens
    for _ in range(10):
        assert run_step(scheduler).num_tokens == 64
        behind = one.num_computed_tokens - before - other.num_computed_tokens
        assert abs(behind) <= 16


def test_the_order_within_a_tenant_is_that_of_arrival_whatever_others_do():
    scheduler, _ = make_scheduler(max_num_sequences=3, num_blocks=60, budget=12)
    rng = random.Random(1)
    everybody, first_tokens = [], {"a": [], "b": [], "c": []}
    while len(everybody) < 60 or scheduler.has_work:
        if rng.random() < 0.2 and len(everybody) < 60:
            tenant = rng.choice("abc")
            everybody += flood(scheduler, 1, rng.randint(1, 30), tenant, max_tokens=12)
        for seq in run_and_end(scheduler).sequences:
            if seq.num_output_tokens == 1 and seq.seq_id not in first_tokens[seq.tenant]:
                first_tokens[seq.tenant].append(seq.seq_id)
    for ids in first_tokens.values():
        assert ids == sorted(ids)


# -- memory ----------------------------------------------------------------------------------------


def test_a_flood_gives_back_memory_beyond_its_share():
    scheduler, manager = make_scheduler(num_blocks=40, max_num_sequences=16)
    flood(scheduler, 4, length=38)  # ten blocks each, with their first token
    while scheduler.num_running < 3:
        run_step(scheduler)
    run_step(scheduler)
    other = make_sequence(30, tenant="other")
    assert manager.num_free_blocks < 8 + scheduler.num_running
    assert steps_to_first_token(scheduler, other) <= 2
    assert scheduler.num_preemptions >= 1


def test_a_sequence_larger_than_its_share_waits_but_not_for_ever():
    """Others overtake it until it is the oldest; then everybody waits until it fits."""
    scheduler, _ = make_scheduler(num_blocks=40, max_num_sequences=16)
    small = flood(scheduler, 3, length=16, max_tokens=20, tenant="small")
    run_step(scheduler)
    giant = make_sequence(140, tenant="giant", max_tokens=4)
    scheduler.add(giant)
    later = 0
    for _ in range(400):
        if scheduler.num_waiting < 6:
            flood(scheduler, 1, length=16, max_tokens=20, tenant="small")
        run_and_end(scheduler)
        later += not giant.num_output_tokens
        if giant.status is SequenceStatus.FINISHED:
            break
    assert giant.num_output_tokens == 4
    assert all(seq.status is SequenceStatus.FINISHED for seq in small)
    assert later <= 60


def test_one_that_is_preempted_again_and_again_still_ends():
    """A large sequence of one tenant beside a stream of small ones of another, in little memory."""
    scheduler, _ = make_scheduler(num_blocks=16, max_num_sequences=4, budget=8)
    large = make_sequence(30, tenant="large", max_tokens=20)
    flood(scheduler, 2, length=6, max_tokens=10, tenant="small")
    scheduler.add(large)
    for _ in range(2000):
        if scheduler.num_waiting < 5:
            flood(scheduler, 1, length=6, max_tokens=10, tenant="small")
        run_and_end(scheduler)
        if large.status is SequenceStatus.FINISHED:
            break
    assert large.num_output_tokens == 20


# -- paused sequences ------------------------------------------------------------------------------


def test_a_paused_sequence_computes_nothing_keeps_its_blocks_and_goes_on_as_a_decode():
    scheduler, manager = make_scheduler(max_num_sequences=2)
    one, two, three = flood(scheduler, 3)
    run_step(scheduler)
    run_step(scheduler)
    held, known = list(one.block_table), one.num_tokens
    scheduler.pause(one)
    scheduler.pause(one)
    assert run_step(scheduler).admitted == [three]
    for _ in range(5):
        assert one not in run_step(scheduler).sequences
    assert (one.block_table, one.num_tokens) == (held, known)
    scheduler.resume(one)
    assert one not in run_step(scheduler).sequences  # both places are taken
    scheduler.finish(two)
    schedule = run_step(scheduler)
    assert schedule.decodes == [three, one]
    assert schedule.admitted == []
    assert one.num_tokens == known + 1
    assert one.num_preemptions == 0
    scheduler.finish(one)
    scheduler.finish(three)
    assert manager.num_used_blocks == 0


def test_memory_of_paused_sequences_goes_first_where_it_is_short():
    scheduler, manager = make_scheduler(num_blocks=8, max_num_sequences=4)
    one, two = flood(scheduler, 2, length=14)
    run_step(scheduler)
    scheduler.pause(one)
    three = make_sequence(10, tenant="flood")
    scheduler.add(three)
    run_step(scheduler)
    assert three.num_output_tokens == 1
    assert (one.block_table, one.num_computed_tokens, one.num_preemptions) == ([], 0, 1)
    assert two.num_preemptions == 0
    scheduler.finish(two)
    scheduler.finish(three)
    scheduler.resume(one)
    assert run_step(scheduler).admitted == [one]
    manager.check_integrity([one.block_table])


def test_nothing_but_paused_sequences_is_no_work():
    scheduler, manager = make_scheduler()
    (one,) = flood(scheduler, 1)
    run_step(scheduler)
    scheduler.pause(one)
    assert not scheduler.has_work
    assert run_step(scheduler).is_empty
    assert scheduler.paused == (one,)
    assert scheduler.abort(one.seq_id) is one
    scheduler.resume(one)
    assert not scheduler.has_work
    assert manager.num_used_blocks == 0
