"""What holds for every baseline: the protocol, limits of sequences, memory, names, cost."""

from __future__ import annotations

import math
import pickle
import random
import time

import pytest

from specdec.errors import ConfigError
from specdec.speculation.baselines import DEFAULT_MAX_WAIT_S, POLICY_NAMES, make_policy
from specdec.speculation.controller import BatchState, Controller, SequenceResult
from tests.unit.speculation.baselines.script import (
    batch_of,
    outcome,
    result,
    sequence,
    state,
    step,
)

NAMES = ["fixed:3" if name == "fixed:K" else name for name in POLICY_NAMES]


@pytest.fixture(params=NAMES)
def policy(request: pytest.FixtureRequest) -> Controller:
    return make_policy(request.param, max_k=8)


def test_an_episode_through_the_whole_protocol(policy: Controller) -> None:
    """Sequences come, go, are aborted, draft less than planned: ks stay legal throughout."""
    draws = random.Random(1)
    live = {seq_id: draws.choice(["draft", "ngram", None]) for seq_id in range(6)}
    for number in range(200):
        room = {seq_id: draws.randrange(9) for seq_id in live}
        sequences = [
            sequence(s, room[s], 2 if s % 5 == 0 else None, drafter) for s, drafter in live.items()
        ]
        ks = policy.plan(state(sequences, 100 * len(live)))
        assert len(ks) == len(sequences)
        results = []
        for s, k in zip(sequences, ks, strict=True):
            assert isinstance(k, int)
            assert 0 <= k <= s.max_k
            drafted = draws.randrange(k + 1)
            accepted = draws.randrange(drafted + 1)
            finished = draws.random() < 0.05
            results.append(
                SequenceResult(s.seq_id, s.drafter, k, drafted, accepted, accepted + 1, finished)
            )
        assert 0 < policy.wait_s() < math.inf
        policy.observe(result(results, propose_s=0.001 * max(ks)))
        if draws.random() < 0.1:
            policy.close(next(iter(live)))
            live.pop(next(iter(live)))
        for done in results:
            if done.finished:
                live.pop(done.seq_id, None)
        while len(live) < 6:
            live[1000 + 10 * number + len(live)] = draws.choice(["draft", "ngram"])
    snapshot = policy.snapshot()
    assert all(isinstance(value, float | str) for value in snapshot.values())
    assert all(math.isfinite(value) for value in snapshot.values() if isinstance(value, float))
    assert snapshot["steps"] == 200
    options = [("ngram", "draft"), (), ("draft",)]
    assert policy.choose_drafters(BatchState([], 0, 0, 0.0), options) == ["ngram", None, "draft"]
    assert policy.explain(0) == ()


def test_a_step_without_decodes_is_no_error(policy: Controller) -> None:
    assert policy.plan(state([])) == []
    policy.observe(result([]))


def test_a_sequence_without_a_drafter_gets_nothing_even_where_k_is_fixed(
    policy: Controller,
) -> None:
    sequences = [sequence(0, 8, None, None), sequence(1, 8, 5, None)]
    assert policy.plan(state(sequences)) == [0, 0]


def test_a_fixed_k_is_kept_within_the_limits_of_the_sequence(policy: Controller) -> None:
    sequences = [sequence(0, 8, 5), sequence(1, 4, 5), sequence(2, 100, 50), sequence(3, 8, 0)]
    for _ in range(40):
        assert step(policy, sequences, lambda k: 0) == [5, 4, 8, 0]


def test_no_k_exceeds_the_room_of_its_sequence(policy: Controller) -> None:
    sequences = [sequence(room, room) for room in range(9)]
    for _ in range(40):
        ks = step(policy, sequences, lambda k: k)
        assert all(k <= room for room, k in enumerate(ks))


@pytest.mark.parametrize("name", ["sglang", "turbospec"])
def test_a_fixed_sequence_teaches_a_batch_policy_nothing(name: str) -> None:
    """Its K is the client's: two policies that differ only in what it accepted stay alike."""
    lucky, unlucky = make_policy(name, 8), make_policy(name, 8)
    sequences = [sequence(0, 8), sequence(1, 8, 7)]
    for policy, accepted in ((lucky, 7), (unlucky, 0)):
        for _ in range(60):
            ks = policy.plan(state(sequences))
            policy.observe(
                result(
                    [outcome(sequences[0], ks[0], ks[0], 0), outcome(sequences[1], 7, 7, accepted)]
                )
            )
    assert lucky.snapshot() == unlucky.snapshot()


def test_memory_is_bounded_after_ten_thousand_sequences(policy: Controller) -> None:
    """The state of a policy, pickled, is no larger after 10,000 sequences than after 100."""
    sizes = []
    for seq_id in range(10_000):
        s = sequence(seq_id)
        k = policy.plan(state([s]))[0]
        done = SequenceResult(seq_id, "draft", k, k, k // 2, k // 2 + 1, finished=seq_id % 2 == 0)
        policy.observe(result([done]))
        if not done.finished:
            policy.close(seq_id)
        policy.close(seq_id)  # a second time, and unknown ones: no error
        if seq_id in (99, 9_999):
            sizes.append(len(pickle.dumps(policy)))
    assert sizes[1] <= sizes[0] + 64


@pytest.mark.parametrize("name", ["threshold", "hf"])
def test_a_result_after_the_close_does_not_bring_a_request_back(name: str) -> None:
    """An abort may come between the plan and the result of a step."""
    policy = make_policy(name, 8)
    k = policy.plan(state([sequence(1)]))[0]
    policy.close(1)
    policy.observe(result([outcome(sequence(1), k, k, k)]))
    assert policy.snapshot()["requests"] == 0


def test_256_sequences_are_planned_in_a_fraction_of_half_a_millisecond(
    policy: Controller,
) -> None:
    """The best of many: what a busy machine adds is not the policy's."""
    sequences = batch_of(256)
    batch = state(sequences)
    times = []
    for _ in range(60):
        started_s = time.perf_counter()
        ks = policy.plan(batch)
        times.append(time.perf_counter() - started_s)
        policy.observe(result([outcome(s, k, k, 0) for s, k in zip(sequences, ks, strict=True)]))
    assert min(times) < 0.5e-3


def test_waits_are_the_given_constant() -> None:
    for name in NAMES:
        assert make_policy(name, 8).wait_s() == DEFAULT_MAX_WAIT_S
        assert make_policy(name, 8, max_wait_s=0.02).wait_s() == 0.02


@pytest.mark.parametrize("name", ["", "Off", "adaptiv", "oracle", "vllm ", "hf:3", "threshold:2"])
def test_an_unknown_name_is_refused_with_the_allowed_ones(name: str) -> None:
    with pytest.raises(ConfigError, match="off, fixed:K, threshold, vllm, sglang") as raised:
        make_policy(name, 8)
    assert raised.value.field == "policy"


@pytest.mark.parametrize(
    "name",
    ["fixed", "fixed:", "fixed:9", "fixed:-1", "fixed:2.5", "fixed: 2", "fixed:x", "fixed:3:4",
     "fixed:\N{ARABIC-INDIC DIGIT THREE}", "fixed:" + "9" * 5000],
)  # fmt: skip
def test_a_fixed_k_that_is_no_whole_number_up_to_the_limit_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="a whole K from 0 to 8") as raised:
        make_policy(name, 8)
    assert raised.value.field == "policy"


def test_off_is_fixed_at_zero_and_a_fixed_k_stands() -> None:
    sequences = [sequence(0, 8), sequence(1, 2)]
    assert make_policy("off", 8).plan(state(sequences)) == [0, 0]
    assert make_policy("fixed:0", 8).plan(state(sequences)) == [0, 0]
    assert make_policy("fixed:8", 8).plan(state(sequences)) == [8, 2]
    assert make_policy("fixed:0", 8).snapshot()["policy"] == "off"
