"""Identities between what is counted, per request and in total: every output token has a source."""

from __future__ import annotations

import pytest

from specdec.engine.histogram import LATENCY_EDGES, STEP_EDGES, Histogram
from tests.unit.engine.engine_harness import (
    OFF,
    TellingProposer,
    fixed,
    generate,
    make_engine,
    random_prompt,
    request,
    run,
    token_ids,
)

PROMPT = random_prompt(11, seed=5)
GREEDY = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def truth(tiny_llama):
    return generate(make_engine(tiny_llama), PROMPT, speculation=OFF, **GREEDY)


def telling(tiny_llama, truth, **given):
    teller = TellingProposer({len(PROMPT): PROMPT + truth}, **given)
    return make_engine(tiny_llama, drafters=("draft",), draft_proposer=teller)


def check_totals(engine, outputs: dict[str, list]) -> None:
    """Against the outputs themselves, which the counters have not made."""
    counters = engine.counters
    steps = sum(counters.steps_by_k.values())
    emitting = [o for each in outputs.values() for o in each if o.token_ids]
    assert counters.num_generation_tokens == sum(len(o.token_ids) for o in emitting)
    assert counters.num_generation_tokens == (
        counters.num_prefill_outputs
        + steps
        + counters.num_emitted_accepted_tokens
        - counters.num_cut_target_tokens
    )
    assert len(emitting) == counters.num_prefill_outputs + steps
    assert counters.num_prefill_outputs == counters.num_requests + engine.scheduler.num_preemptions
    assert sum(n for k, n in counters.steps_by_k.items() if k) == counters.num_drafts
    assert sum(k * n for k, n in counters.steps_by_k.items()) == counters.num_draft_tokens
    assert sum(counters.accepted_per_position) == counters.num_accepted_tokens
    assert sum(o.num_accepted_tokens for o in emitting) == counters.num_accepted_tokens
    check_histograms(counters, len(emitting))
    reasons = engine.controller.snapshot()
    by_reason = {k: v for k, v in reasons.items() if k.startswith("steps_by_reason_")}
    assert sum(by_reason.values()) == steps


def check_histograms(counters, num_outputs: int) -> None:
    assert counters.time_to_first_token.count == counters.num_requests
    assert counters.queue.count == counters.num_requests
    assert counters.request.count == counters.finished.total()
    assert counters.inter_token_latency.count == num_outputs - counters.num_requests
    assert counters.step_run.count == counters.num_steps


def check_requests(outputs: dict[str, list]) -> None:
    """The same of each request, from its own summary."""
    for each in outputs.values():
        metrics = each[-1].metrics
        stats, preempted = metrics.stats, metrics.num_preemptions
        assert (
            metrics.num_output_tokens
            == len(token_ids(each))
            == (
                1
                + preempted
                + stats.num_steps
                + stats.num_emitted_accepted_tokens
                - stats.num_cut_target_tokens
            )
        )
        assert len(stats.per_step_drafted) == stats.num_drafts


@pytest.mark.parametrize("wrong_at", [None, 0, 2])
@pytest.mark.parametrize("k", [0, 1, 5])
def test_every_token_is_counted_by_where_it_comes_from(tiny_llama, truth, k, wrong_at):
    engine = telling(tiny_llama, truth, wrong_at=wrong_at)
    wish = fixed(k) if k else OFF
    outputs = run(engine, [request(PROMPT, f"r{i}", speculation=wish, **GREEDY) for i in range(3)])
    check_totals(engine, outputs)
    check_requests(outputs)
    assert (engine.counters.num_drafts > 0) == (k > 0)


@pytest.mark.parametrize("num_kept", range(3, 10))
def test_a_stop_inside_an_accepted_block_is_counted_apart(tiny_llama, truth, num_kept):
    """The first token, then a block of 8 accepted draft tokens and a bonus one, cut by a stop token
    behind num_kept of its nine."""
    engine = telling(tiny_llama, truth)
    assert truth[num_kept] not in truth[:num_kept]
    wanted = {**GREEDY, "stop_token_ids": (truth[num_kept],)}
    outputs = run(engine, [request(PROMPT, speculation=fixed(8), **wanted)])
    check_totals(engine, outputs)
    check_requests(outputs)
    counters = engine.counters
    assert counters.num_accepted_tokens == 8
    assert counters.num_emitted_accepted_tokens == min(num_kept, 8)
    assert counters.num_cut_target_tokens == (num_kept < 9)


def test_preempted_requests_count_their_second_prefill(tiny_llama, tiny_draft):
    engine = make_engine(tiny_llama, tiny_draft, ("draft",), num_blocks=22)
    prompts = [random_prompt(9, seed=i) for i in range(5)]
    wanted = {**GREEDY, "speculation": fixed(3)}
    outputs = run(engine, [request(p, f"r{i}", **wanted) for i, p in enumerate(prompts)])
    assert engine.scheduler.num_preemptions > 0
    check_totals(engine, outputs)
    check_requests(outputs)


def test_the_controller_counts_its_reasons(tiny_llama, truth):
    engine = telling(tiny_llama, truth)
    run(engine, [request(PROMPT, speculation=fixed(2), **GREEDY)])
    run(engine, [request(PROMPT, speculation=OFF, **GREEDY)])
    outputs = run(engine, [request(PROMPT, **GREEDY)])["r"]
    counts = engine.controller.snapshot()
    assert counts["steps_by_reason_fixed"] > 0
    assert counts["steps_by_reason_no_drafter"] == 23  # all but the first token
    asked = outputs[-1].metrics.stats.num_steps
    free = sum(
        value
        for key, value in counts.items()
        if key.startswith("steps_by_reason_") and not key.endswith(("_fixed", "_no_drafter"))
    )
    assert free == asked


def test_an_abort_tells_nothing_of_how_long_answers_take(tiny_llama):
    engine = make_engine(tiny_llama)
    sequence = engine.add_request(request(PROMPT, **GREEDY))
    engine.step()
    engine.abort(sequence.seq_id)
    assert engine.counters.finished["abort"] == 1
    assert engine.counters.request.count == 0
    assert engine.counters.time_to_first_token.count == 1


def test_a_histogram_counts_an_edge_inside_its_bucket_and_its_copy_stands_still():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    copy = histogram.__copy__()
    histogram.observe(9.0)
    assert copy.counts == [2, 2, 1]
    assert copy.total == 8.0
    assert histogram.counts == [2, 2, 2]


@pytest.mark.parametrize("edges", [LATENCY_EDGES, STEP_EDGES])
def test_edges_ascend_and_latencies_begin_at_a_millisecond(edges):
    assert list(edges) == sorted(set(edges))
    assert 1.0 in edges  # the objective that alerts look at
    assert 0.001 in edges
    assert LATENCY_EDGES[0] == 0.001


def test_requests_of_a_class_are_counted_apart(tiny_llama, truth):
    engine = telling(tiny_llama, truth, wrong_at=2)
    asked = []
    for name, traffic_class in (("a", "red"), ("b", "blue"), ("c", "red"), ("d", None)):
        each = request(PROMPT, name, speculation=fixed(4), **GREEDY)
        each.traffic_class = traffic_class
        asked.append(each)
    outputs = run(engine, asked)
    for traffic_class, names in (("red", "ac"), ("blue", "b")):
        mine = [output for name in names for output in outputs[name]]
        counted = engine.counters.classes[traffic_class]
        assert counted.num_generation_tokens == len(token_ids(mine))
        assert counted.num_steps == len(mine) - len(names)  # a prefill is no decode step
        assert counted.num_draft_tokens == sum(len(output.draft_token_ids) for output in mine)
        assert counted.num_accepted_tokens == sum(output.num_accepted_tokens for output in mine)
        assert counted.num_accepted_tokens > 0
    assert set(engine.counters.classes) == {"red", "blue"}
