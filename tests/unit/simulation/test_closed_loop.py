"""The closed loop against a plain reimplementation, and its parts against counting by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specdec.errors import ConfigError
from specdec.simulation.closed_loop import WARM_UP_STEPS, ClosedLoop, LoopResult, Switches
from specdec.simulation.closed_runs import ClosedScenario, compare, constant, ramp
from specdec.simulation.costs import Llama8B
from specdec.simulation.policies import policy_setting
from specdec.simulation.requests import endless
from specdec.simulation.rows import Rows
from tests.unit.simulation.simulated import random_requests, request


def plainly(requests, seed, drafter, k, concurrency, num_steps):
    """The same simulation for a fixed K, one sequence after the other, written from its rules:
    (seconds, tokens, drafted, accepted) of the steps after 200."""
    random = np.random.default_rng(seed)
    order = itertools.chain.from_iterable(
        random.permutation(len(requests)) for _ in itertools.count()
    )
    batch, seconds, tokens, drafted, accepted = [], 0.0, 0, 0, 0
    for step in range(200 + num_steps):
        while len(batch) < concurrency:
            batch.append([requests[next(order)], 0])
        kv_tokens = sum(r.prompt_len + done for r, done in batch)
        counted = step >= 200
        draft_ms = {"eagle": 0.712 * k, "ngram": 0.05 if k else 0}[drafter]
        target_ms = 5.886 + 0.02101 * concurrency * (1 + k) + 3.926e-5 * kv_tokens + 1.207
        seconds += counted * (draft_ms + target_ms) / 1000
        for row in batch:
            good = min(int(row[0].acceptable[drafter][row[1]]), k)
            new = min(good + 1, row[0].output_len - row[1])
            row[1] += new
            tokens, drafted, accepted = (
                tokens + counted * new,
                drafted + counted * k,
                accepted + counted * good,
            )
        batch = [row for row in batch if row[1] < row[0].output_len]
    return seconds, tokens, drafted, accepted


@pytest.mark.parametrize(
    ("drafter", "k", "concurrency"), [("eagle", 3, 5), ("eagle", 0, 3), ("ngram", 4, 7)]
)
def test_a_fixed_k_equals_a_plain_reimplementation(drafter, k, concurrency):
    requests = random_requests(9, 1, "eagle", "ngram")
    loop = ClosedLoop(
        policy_setting(f"fixed:{k}", (drafter,), 4).controller(),
        Llama8B(),
        endless(requests, 7),
        (drafter,),
        4,
    )
    loop.run(WARM_UP_STEPS, concurrency)
    result = loop.run(150, concurrency)
    expected = plainly(requests, 7, drafter, k, concurrency, 150)
    counted = (result.seconds, result.num_committed, result.num_drafted, result.num_accepted)
    assert counted == pytest.approx(expected, rel=1e-12)
    assert result.num_sequence_steps == 150 * concurrency
    assert result.mean_k == pytest.approx(k)


def test_verification_advances_by_what_agrees_and_one():
    rows = Rows(("eagle", "ngram"), 4, ("ngram",))
    rows.add(request(10, eagle=[2, 0, 5, 0], ngram=[0, 0, 0, 0]))
    rows.add(request(20, eagle=[0, 0], ngram=[3, 0]))
    rows.add(request(30, eagle=[1, 1, 1], ngram=[0, 1, 1]))
    assert rows.num_kv_tokens == 60
    assert rows.scores()["ngram"].tolist() == [0, 3, 0]
    # One draft token too few to use all; a text that ends before its draft; nothing drafted.
    outcome = rows.verify(["eagle", "ngram", None], np.array([1, 4, 0]))
    assert outcome.num_accepted.tolist() == [1, 3, 0]
    assert outcome.num_committed.tolist() == [2, 2, 1]
    assert outcome.finished.tolist() == [False, True, False]
    results = rows.results(
        ["eagle", "ngram", None],
        [1, 4, 0],
        np.array([1, 4, 0]),
        outcome,
        {"ngram": np.array([0, 3, 0])},
    )
    # What lookup would have had accepted is known as far as tokens were committed.
    assert [(s.num_compared, s.num_matching) for r in results for s in r.scored] == [
        (2, 0),
        (2, 2),
        (1, 0),
    ]
    assert rows.drop(outcome.finished) == [2]
    assert rows.num_kv_tokens == 40 + 3
    assert rows.useful(8).tolist() == [[1, 1], [0, 1]]


def test_switches_are_levels_that_last():
    switches = Switches()
    for level in [3, 3, 3, 4, 4, 3, 3, 0, 3, 5, 5, 5, -1, -1, -1, 5, -1, -1]:
        switches.observe(level)
    # 4 lasted two steps and 0 one; 5 lasted, then -1, and the 5 between was a single look.
    assert switches.count == 2


def test_a_ramp_doubles_in_equal_steps():
    assert ramp([1, 16, 1], 9) == [1, 2, 4, 8, 16, 8, 4, 2, 1]
    assert ramp([4, 4], 3) == [4, 4, 4]
    assert ramp([2, 8], 1) == [2]
    for corners in ([1], [0, 4], [1, 5000]):
        with pytest.raises(ConfigError, match="ramp"):
            ramp(corners, 10)


def test_falling_concurrency_lets_the_youngest_go():
    requests = [request(1, eagle=[0] * 100)]
    loop = ClosedLoop(
        policy_setting("off", ("eagle",), 2).controller(),
        Llama8B(),
        endless(requests, 0),
        ("eagle",),
        2,
    )
    loop.run(5, 4)
    result = loop.run(5, 2)
    assert result.num_committed == 10
    # Two requests left, each with 5 tokens of its own before and 5..9 then; prompts of 1.
    kv_tokens = [2 * (1 + position) for position in range(5, 10)]
    seconds = sum(Llama8B().run_s(2, kv) for kv in kv_tokens)
    assert result.seconds == pytest.approx(seconds)


def scenario(drafters, **changes):
    values = {
        "requests": random_requests(12, 3, *drafters),
        "drafters": drafters,
        "cost": Llama8B(),
        "concurrency": constant(4, 80),
        "seed": 2,
        "max_k": 6,
    }
    return ClosedScenario(**(values | changes))


def test_policies_are_compared_with_off_on_the_same_requests():
    runs = compare(scenario(("eagle",), concurrency=constant(4, 90)), ["fixed:2", "off"])
    assert [run.setting.name for run in runs] == ["fixed:2", "off"]
    assert runs[1].speedup_vs_off == 1.0
    ratio = runs[0].total.goodput_tokens_per_s / runs[1].total.goodput_tokens_per_s
    assert runs[0].speedup_vs_off == pytest.approx(ratio)
    assert runs[0].total.num_steps == 90
    assert sum(part.num_steps for _, part in runs[0].parts) == 90
    assert [level for level, _ in runs[0].parts][:2] == [4, 4]


def test_where_load_changes_all_policies_meet_it_at_the_same_time():
    """A policy with longer steps takes fewer of them at every load, and as much time."""
    runs = compare(scenario(("eagle",), concurrency=ramp([2, 8], 400)), ["fixed:6", "off"])
    longest_s = max(run.total.seconds / run.total.num_steps for run in runs) * 2
    assert runs[0].total.seconds == pytest.approx(runs[1].total.seconds, abs=longest_s)
    assert runs[0].total.num_steps < 0.8 * runs[1].total.num_steps
    for long, short in zip(runs[0].parts, runs[1].parts, strict=True):
        assert long[0] == short[0]
        assert long[1].seconds == pytest.approx(short[1].seconds, abs=longest_s)


def test_the_same_seed_gives_the_same_run():
    first, second = (compare(scenario(("eagle", "ngram")), ["adaptive"]) for _ in range(2))
    assert first[0].total == second[0].total


def test_parts_add_up():
    whole = LoopResult(2, 1.0, 3, 4, 5, 1, 0, 1, {0: 1, 2: 3})
    whole.add(LoopResult(1, 0.5, 1, 1, 2, 2, 1, 0, {2: 1, 4: 1}))
    assert whole == LoopResult(3, 1.5, 4, 5, 7, 3, 1, 1, {0: 1, 2: 4, 4: 1})
