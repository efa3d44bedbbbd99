"""Probes: paid from a small share of the time, fair, and quick to follow a success."""

from __future__ import annotations

import pytest

from specdec.speculation.controller.probe import (
    MAX_FREE_IN_A_ROW,
    MAX_SAVED_PROBES,
    SHARE_OFF,
    SHARE_ON,
    ProbeOption,
    Prober,
)


def options(*ks: int) -> list[ProbeOption]:
    return [ProbeOption(row, seq_id=row + 10, k=k, max_k=8) for row, k in enumerate(ks)]


def run(prober: Prober, ks: tuple[int, ...], steps: int, price_s: float) -> list[int]:
    """Steps of one second whose probes fail; the sequences probed."""
    probed = []
    for _ in range(steps):
        if prober.is_due and (option := prober.choose(options(*ks), lambda _: price_s)):
            probed.append(option.seq_id)
        prober.end_step(1.0, is_on=any(ks))
    return probed


@pytest.mark.parametrize("price_s", [0.05, 0.5])
@pytest.mark.parametrize(("ks", "share"), [((0, 0), SHARE_OFF), ((2, 2), SHARE_ON)])
def test_probes_take_their_share_of_the_time(
    price_s: float, ks: tuple[int, int], share: float
) -> None:
    probed = run(Prober(), ks, 4000, price_s)
    assert 0.8 * share * 4000 <= len(probed) * price_s <= share * 4000 + price_s


def test_turns_are_fair_and_the_switched_off_go_first() -> None:
    assert run(Prober(), (0, 0, 0), 150, 0.2)[:5] == [10, 11, 12, 10, 11]
    assert set(run(Prober(), (3, 0), 300, 0.2)) == {11}


def test_the_longest_waiting_is_the_first_of_those_never_tried() -> None:
    prober = Prober()
    assert prober.longest_waiting([10, 11]) == 0
    assert run(prober, (0,), 50, 0.4)[:1] == [10]
    assert prober.longest_waiting([10, 11, 12]) == 1
    assert prober.longest_waiting([10]) == 0


def test_credit_does_not_pile_up_without_need() -> None:
    prober = Prober()
    for _ in range(10_000):
        prober.end_step(1.0, is_on=False)
    assert len(run(prober, (0,), 10, 0.5)) == MAX_SAVED_PROBES


def test_what_cannot_be_paid_is_not_looked_for_again_until_it_can() -> None:
    """A price of 1 s at a share of 1 % is due after 100 s."""
    prober = Prober()
    assert prober.choose(options(0), lambda _: 1.0) is None
    due = []
    for _ in range(120):
        prober.end_step(1.0, is_on=False)
        due.append(prober.is_due)
    assert due.index(True) in (99, 100)  # but for rounding of a hundred sums


def test_a_deeper_probe_that_costs_nothing_is_a_matter_of_ranking() -> None:
    prober = Prober()
    prober.end_step(1000.0, is_on=True)
    assert prober.choose(options(3), lambda _: 0.0) is None
    assert prober.choose(options(0), lambda _: 0.0) is not None


def test_success_is_followed_up_at_once_and_free_of_charge() -> None:
    prober = Prober()
    prober.end_step(0.5 / SHARE_OFF, is_on=False)
    in_a_row = 0
    while prober.is_due and prober.choose(options(0), lambda _: 0.5):
        assert prober.outcome(10, 1, 1)
        prober.try_again(10)
        assert prober.is_due
        in_a_row += 1
        prober.end_step(0.0, is_on=False)
    assert in_a_row == 1 + MAX_FREE_IN_A_ROW, "one was paid for"


def test_what_is_not_to_be_tried_again_is_not_free() -> None:
    prober = Prober()
    prober.end_step(0.5 / SHARE_OFF, is_on=False)
    for again in (True, True, False):
        assert prober.choose(options(0), lambda _: 0.5)
        if again:
            prober.try_again(10)
        prober.end_step(0.0, is_on=False)
    assert prober.choose(options(0), lambda _: 0.5) is None


def test_only_a_full_acceptance_of_the_probed_sequence_counts() -> None:
    prober = Prober()
    prober.end_step(100.0, is_on=False)
    assert prober.choose(options(0), lambda _: 0.5)
    assert prober.outcome(11, 2, 2) is None
    assert prober.outcome(10, 0, 0) is None, "not answered"
    assert prober.outcome(10, 2, 1) is False
    assert prober.outcome(10, 2, 2) is True
    prober.end_step(1.0, is_on=False)
    assert prober.outcome(10, 2, 2) is None, "the step after is no probe"


def test_a_deeper_k_is_no_way_back_from_0() -> None:
    prober = Prober()
    prober.end_step(1000.0, is_on=True)
    chosen = prober.choose([ProbeOption(0, 10, 3, 4)], lambda option: 0.1)
    assert chosen is not None
    assert chosen.probe_k == 4
    assert prober.outcome(10, 4, 4) is None


def test_a_closed_sequence_is_neither_awaited_nor_followed() -> None:
    prober = Prober()
    for closed_before in (True, False):
        prober.end_step(100.0, is_on=False)
        assert prober.choose(options(0), lambda _: 0.5)
        if closed_before:
            prober.close(10)
        assert prober.outcome(10, 1, 1) is (None if closed_before else True)
        prober.try_again(10)
        prober.close(10)
        assert prober.follow_up is None
    prober.close(4711)
