"""Plans: rounds by hand, the shared draft against the simulation, and what the plan concludes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdec.errors import ConfigError
from specdec.simulation.acceptance_process import DrafterLaw, WorkloadLaw, draw_requests
from specdec.simulation.planning.layouts import Demand, Layout, average_round
from specdec.simulation.planning.plan import (
    BESIDE,
    NONE,
    Load,
    best_round,
    layouts,
    make_plan,
    verdict,
)
from specdec.simulation.policies import policy_setting
from specdec.simulation.renewal import tokens_per_round
from specdec.simulation.roofline import Efficiency, Gpu, ModelSize, Placed, Roofline
from specdec.simulation.service.fleet import Fleet, Service, Stretch
from specdec.simulation.service.network import Latency
from tests.unit.simulation.simulated import request

FULL = Efficiency(1.0, 1.0, 1.0)
GPU = Gpu(operations_per_s=500e12, bytes_per_s=2e12, memory_bytes=80e9)
TARGET = Placed(ModelSize(10e9, 20e9, 100_000, 40), GPU, 1, FULL)
DRAFT = Placed(ModelSize(1e9, 2e9, 10_000, 16), GPU, 1, FULL)
DEMAND = Demand(100, 200, {0: 1.0, 1: 1.8, 2: 2.4, 3: 2.9, 4: 3.2})


def test_tokens_per_round_are_counted_along_texts():
    # K = 2: 1 + 2, 1 + 0, 1 + 1 tokens, of which the text has 5; a second text of one round.
    requests = [request(1, draft=[5, 9, 9, 0, 1]), request(1, draft=[0])]
    assert tokens_per_round(requests, "draft", 2) == pytest.approx(6 / 4)
    assert tokens_per_round(requests, "draft", 0) == 1


def target_s(batch: int, k: int, tokens: float) -> float:
    """10 ms for the weights, 40 us for each token, 50 ns for KV, 1.1 ms around; and the prompts."""
    bound = math.hypot(10.0, 0.04 * batch * (1 + k))
    prompts = batch * tokens / 200 * 100 * 0.04
    return (bound + batch * 200 * 5e-5 + 1.1 + prompts) / 1000


def test_rounds_without_a_draft_and_with_one_beside():
    none = average_round(Layout(NONE, TARGET), DEMAND, 16, 0)
    assert none.seconds == pytest.approx(target_s(16, 0, 1.0))
    assert none.goodput_tokens_per_s == pytest.approx(16 / none.seconds)
    beside = average_round(Layout(BESIDE, TARGET, DRAFT), DEMAND, 16, 3)
    # A draft step: 1 ms of weights, 4 us a token, 5 ns a KV token, 0.3 ms around; and its prompts.
    step = math.hypot(1.0, 0.004 * 16) + 16 * 200 * 5e-6 + 0.3
    prompts = 16 * 2.9 / 200 * 100 * 0.004
    assert beside.exposed_s == pytest.approx((3 * step + prompts) / 1000)
    assert beside.seconds == pytest.approx(target_s(16, 3, 2.9) + beside.exposed_s)
    assert beside.tpot_s == pytest.approx(beside.seconds / 2.9)


def test_a_draft_of_its_own_waits_for_the_network_and_for_nobody():
    apart = Layout("apart", TARGET, DRAFT, 1, round_trip_s=0.002)
    beside = average_round(Layout(BESIDE, TARGET, DRAFT), DEMAND, 16, 3)
    alone = average_round(apart, DEMAND, 16, 3)
    assert alone.seconds == pytest.approx(beside.seconds + 0.002)


@pytest.mark.parametrize(("batch", "k"), [(8, 4), (32, 2)])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_shared_draft_takes_about_what_it_takes_in_the_simulation(count, batch, k):
    """The closed form is an average; targets that fall into step wait a little less or more."""
    drafting = DrafterLaw((700.0, 300.0), (0.7,))
    requests = draw_requests(
        WorkloadLaw(50, 0.2, 150, 0.3, {"draft": drafting}), ("draft",), 200, 0
    )
    demand = Demand(
        float(np.mean([each.prompt_len for each in requests])),
        float(np.mean([each.output_len for each in requests])),
        {k: tokens_per_round(requests, "draft", k)},
    )
    layout = Layout("shared", TARGET, DRAFT, count, round_trip_s=0.001)
    expected = average_round(layout, demand, batch, k)
    service = Service(
        requests,
        ("draft",),
        Roofline(TARGET, {"draft": DRAFT}, draft_context=demand.context_len),
        batch,
        max_k=k,
        num_targets=count,
        num_drafts=1,
        latency=Latency(0.0005, 0.1),
        max_undrafted_steps=0,
    )
    fleet = Fleet(service, policy_setting(f"fixed:{k}", ("draft",), k), Stretch(-1, 1, 2), 0)
    goodput = fleet.run().goodput_tokens_per_s / count
    assert expected.goodput_tokens_per_s == pytest.approx(goodput, rel=0.12)


def test_a_hidden_draft_gains_at_most_its_share_of_the_time():
    beside = average_round(Layout(BESIDE, TARGET, DRAFT), DEMAND, 16, 3)
    hidden = average_round(Layout("apart", TARGET, DRAFT, 1, 0.001, hides=True), DEMAND, 16, 3)
    share = beside.exposed_s / beside.seconds
    assert beside.seconds / hidden.seconds == pytest.approx(1 / (1 - share))
    # A draft that has more targets than time for them hides no longer.
    many = average_round(Layout("apart", TARGET, DRAFT, 16, 0.001, hides=True), DEMAND, 16, 3)
    assert many.seconds > hidden.seconds


def test_a_draft_beside_the_target_takes_memory_from_it():
    alone, beside = Layout(NONE, TARGET), Layout(BESIDE, TARGET, DRAFT)
    # 0.9 * 80 GB less 20 GB of weights; then less 2 GB more, at 110 kB for each token.
    assert alone.kv_capacity_tokens() == 520_000
    assert beside.kv_capacity_tokens() == int(50e9 / 110_000)
    assert Layout("apart", TARGET, DRAFT, 2).kv_capacity_tokens() == 520_000


def test_gpus_are_counted():
    four = Placed(TARGET.model, GPU, 4, FULL)
    shared = Layout("shared", four, DRAFT, 3)
    assert [shared.num_drafts(n) for n in (1, 3, 4)] == [1, 1, 2]
    assert shared.gpus(4) == 4 * 4 + 2
    assert shared.gpus_per_target() == pytest.approx(4 + 1 / 3)
    assert Layout(BESIDE, four, DRAFT).gpus(4) == 16


def test_the_plan_carries_the_load_and_keeps_the_latency():
    load = Load(requests_per_s=100, tpot_s=0.008, headroom=0.8, max_num_sequences=128)
    found = make_plan(layouts(TARGET, DRAFT, DRAFT, 0.001), DEMAND, load)
    for option in found.options:
        layout = option.layout
        assert option.full.tpot_s <= 0.008
        per_target = option.full.goodput_tokens_per_s / 200
        assert 0.8 * per_target * option.num_targets >= 100 - 1e-6
        assert 0.8 * per_target * (option.num_targets - 1) < 100
        assert option.loaded.goodput_tokens_per_s >= 100 * 200 / option.num_targets
        assert option.least_k <= option.loaded.k <= option.most_k
        better = [best_round(layout, DEMAND, b).k for b in (1, option.full.batch)]
        assert option.most_k >= max(better) >= min(better) >= option.least_k
    gpus = [option.gpus for option in found.options]
    assert gpus == sorted(gpus)


def test_k_falls_with_the_batch():
    layout = Layout(BESIDE, TARGET, DRAFT)
    ks = [best_round(layout, DEMAND, batch).k for batch in (1, 32, 128, 256)]
    assert ks == sorted(ks, reverse=True)
    assert ks[0] > ks[-1]


def test_it_says_so_where_a_draft_apart_does_not_pay():
    load = Load(100, 0.02)
    found = make_plan(layouts(TARGET, DRAFT, DRAFT, 0.001), DEMAND, load)
    assert "does not pay per GPU" in verdict(found)
    assert found.best.layout.name == BESIDE
    assert "Were all drafting hidden" in verdict(found)


def test_it_says_so_where_a_draft_apart_pays():
    """A target whose memory holds its weights and hardly more: a draft beside it leaves room for
    few sequences, one apart serves eight targets."""
    full = Placed(ModelSize(10e9, 70.5e9, 100_000, 40), GPU, 1, FULL)
    found = make_plan(layouts(full, DRAFT, DRAFT, 0.0005), DEMAND, Load(50, 0.06))
    assert verdict(found).startswith("A draft apart pays per GPU: ")
    assert found.best.layout.is_apart


def test_a_latency_that_nothing_keeps_is_refused():
    with pytest.raises(ConfigError, match=r"tpot_ms: no layout is that fast; alone") as caught:
        make_plan(layouts(TARGET, DRAFT, DRAFT, 0.001), DEMAND, Load(1, 0.001))
    assert caught.value.field == "tpot_ms"


def test_speculation_can_be_all_that_keeps_the_latency():
    found = make_plan(layouts(TARGET, DRAFT, None, 0.0), DEMAND, Load(10, 0.008))
    assert found.find(NONE) is None
    assert found.best.layout.name == BESIDE
    assert "No layout with a draft apart" in verdict(found)
