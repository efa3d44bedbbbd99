"""Turns by deficit round robin: shares, work conservation, debts, and what is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.engine.fair_queue import FairQueue

TENANTS = st.integers(2, 6)


def serve_step(queue: FairQueue, wanted: dict[str, int], budget: int) -> dict[str, int]:
    """One step over tenants that want so many tokens each; what each of them got."""
    served = dict.fromkeys(wanted, 0)
    queue.contend([name for name, left in wanted.items() if left])
    while budget and (turn := queue.turn()) is not None:
        name, credit = turn
        most = budget if credit is None else min(budget, credit)
        num_tokens = min(most, wanted[name] - served[name])
        if num_tokens == 0:
            queue.leave(name)
            continue
        served[name] += num_tokens
        budget -= num_tokens
        queue.spend(name, num_tokens)
    return served


@given(num=TENANTS, quantum=st.integers(1, 20), steps=st.lists(st.integers(1, 60), min_size=1))
def test_backlogged_tenants_differ_by_at_most_a_quantum_whatever_the_steps(num, quantum, steps):
    queue = FairQueue(quantum, max_debt=0)
    total = dict.fromkeys(map(str, range(num)), 0)
    for budget in steps:
        got = serve_step(queue, dict.fromkeys(total, 10**6), budget)
        assert sum(got.values()) == budget
        for name, tokens in got.items():
            total[name] += tokens
        assert max(total.values()) - min(total.values()) <= quantum


@given(
    quantum=st.integers(1, 20),
    steps=st.lists(
        st.tuples(st.integers(1, 60), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 40))),
        min_size=1,
    ),
    generated=st.integers(0, 30),
)
def test_nothing_is_left_undone_while_there_is_budget(quantum, steps, generated):
    queue = FairQueue(quantum, max_debt=50)
    for budget, wanted in steps:
        got = serve_step(queue, wanted, budget)
        assert sum(got.values()) == min(budget, sum(wanted.values()))
        for name in "ab":
            queue.charge(name, generated)
        assert queue.num_known <= 4


@given(num=TENANTS, quantum=st.integers(1, 20), max_debt=st.integers(0, 100))
def test_whoever_generates_without_end_still_gets_its_turn(num, quantum, max_debt):
    """A debt is paid within max_debt / quantum + 2 rounds of the others."""
    queue = FairQueue(quantum, max_debt)
    wanted = dict.fromkeys(map(str, range(num)), 10**6)
    served_others = 0
    for _ in range((max_debt // quantum + 2) * num + 1):
        queue.charge("0", 10**9)
        got = serve_step(queue, wanted, quantum)
        if got["0"]:
            break
        served_others += sum(got.values())
    assert got["0"]
    assert served_others <= (max_debt // quantum + 2) * quantum * (num - 1)


def test_generated_tokens_count_against_prompt_tokens():
    queue = FairQueue(10, max_debt=1000)
    total = {"talks": 0, "reads": 0}
    for _ in range(100):
        got = serve_step(queue, dict.fromkeys(total, 10**6), 40)
        queue.charge("talks", 20)
        for name, tokens in got.items():
            total[name] += tokens
    assert abs(total["talks"] + 20 * 100 - total["reads"]) <= 20


def test_what_one_tenant_used_while_it_was_alone_is_not_held_against_it():
    queue = FairQueue(10, max_debt=1000)
    for _ in range(50):
        serve_step(queue, {"a": 10**6}, 40)
        queue.charge("a", 30)
    assert serve_step(queue, {"a": 10**6, "b": 10**6}, 40) == {"a": 20, "b": 20}
    assert serve_step(queue, {"b": 10**6}, 40) == {"b": 40}
    assert queue.num_known == 0


def test_no_credit_is_saved_up_by_staying_away():
    queue = FairQueue(10, max_debt=1000)
    for _ in range(20):
        serve_step(queue, {"a": 10**6, "b": 10**6, "c": 0}, 40)
    got = serve_step(queue, {"a": 10**6, "b": 10**6, "c": 10**6}, 30)
    assert got == {"a": 10, "b": 10, "c": 10}


def test_a_debt_is_not_lost_by_leaving_for_a_moment():
    queue = FairQueue(10, max_debt=1000)
    serve_step(queue, {"a": 10**6, "b": 10**6, "c": 10**6}, 30)
    queue.charge("c", 60)
    serve_step(queue, {"a": 10**6, "b": 10**6}, 20)
    got = serve_step(queue, {"a": 10**6, "b": 10**6, "c": 10**6}, 100)
    assert got["c"] == 0


def test_who_could_not_go_on_is_asked_first_in_the_next_step():
    queue = FairQueue(10, max_debt=0)
    queue.contend(["a", "b"])
    assert queue.turn() == ("a", 10)
    queue.leave("a")
    assert queue.turn() == ("b", 10)
    queue.spend("b", 10)
    queue.contend(["a", "b"])
    assert queue.turn() == ("a", 10)


def test_a_queue_that_gives_nobody_a_turn_is_refused():
    with pytest.raises(ValueError, match="turn"):
        FairQueue(0, 10)
