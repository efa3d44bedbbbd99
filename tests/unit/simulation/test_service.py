"""A target in virtual time, against closed forms of queueing and against counting by hand."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from specdec.simulation.policies import policy_setting
from specdec.simulation.service.admission import Admission, Job, Limits
from specdec.simulation.service.arrivals import poisson
from specdec.simulation.service.fleet import Fleet, Stretch
from specdec.speculation.baselines import FixedPolicy
from specdec.speculation.controller.interface import StepResult
from tests.unit.simulation.simulated import request
from tests.unit.simulation.steady_service import record, service


def test_waiting_times_are_those_of_a_queue_with_constant_service():
    """One prompt at a time, and one token: M/D/1, whose mean wait is rho D / (2 (1 - rho))."""
    rho, step_s = 0.6, 0.010
    one = [request(50, draft=[0])]
    limits = Limits(max_num_sequences=1, max_num_batched_tokens=64)
    found = record(service(one, poisson(rho / step_s), limits=limits), until_s=400.0)
    expected = step_s + rho * step_s / (2 * (1 - rho))
    assert np.mean(found.ttft_s) == pytest.approx(expected, rel=0.05)
    assert found.totals.step_s / found.seconds == pytest.approx(rho, rel=0.02)
    assert found.num_finished == pytest.approx(found.num_arrived, abs=3)


def test_one_request_step_by_step():
    """100 prompt tokens in chunks of 64 take two steps, the last gives the first token; then K = 2
    with what is acceptable at positions 1, 3, 4 and 7: 1, 0, 2 and 2, so 2, 1, 3 and 1 tokens."""
    one = request(100, draft=[9, 1, 9, 0, 2, 9, 9, 2])
    limits = Limits(max_num_batched_tokens=64)
    of = service([one], 1, limits=limits)
    found = record(of, "fixed:2", until_s=0.0685)
    # Two prefill steps; four decode steps with two draft steps each.
    assert found.ttft_s == pytest.approx([0.020])
    assert found.e2e_s == pytest.approx([0.020 + 4 * 0.012])
    assert found.tpot_s == pytest.approx([4 * 0.012 / 7])
    totals = found.totals
    assert (totals.num_steps, totals.num_committed) == (6, 8)
    assert (totals.num_drafted, totals.num_accepted) == (8, 5)


def test_a_closed_loop_keeps_its_clients_busy_on_every_target():
    requests = [request(4, draft=[0] * 5)]
    found = record(service(requests, 3, num_targets=2), until_s=1.005)
    # A request takes five steps, and the next step begins its successor: 20 rounds of 50 ms.
    assert found.num_finished == 6 * 20
    assert found.totals.num_committed == 6 * 100


def test_prompts_hold_back_drafters_that_take_time():
    """While prompts come without end, drafting pauses for 16 steps and goes on then."""
    requests = [request(64 * 40, draft=[0])]
    limits = Limits(max_num_batched_tokens=65)
    of = service([request(1, draft=[0] * 60), *requests], 1, limits=limits)
    fleet = Fleet(of, policy_setting("fixed:1", ("draft",), 4), Stretch(0, 0, 1), 0)
    target = fleet.targets[0]
    target.submit(of.requests[0])
    fleet._events.run(0.0105)
    target.submit(of.requests[1])
    fleet._events.run(0.0105 + 16 * 0.010)
    assert fleet.record.totals.num_drafted == 1
    fleet._events.run(0.0105 + 20 * 0.010)
    assert fleet.record.totals.num_drafted > 1


def test_kv_that_runs_out_preempts_the_latest_and_nothing_is_lost():
    requests = [request(20, draft=[0] * 30)]
    limits = Limits(max_num_sequences=8, kv_capacity_tokens=110)
    found = record(service(requests, 4, limits=limits), until_s=20.0)
    assert found.num_preempted > 0
    assert found.num_finished > 0
    # Tokens of finished requests, and at most four unfinished ones.
    assert 0 <= found.totals.num_committed - 30 * found.num_finished < 4 * 30
    huge = record(service([request(200, draft=[0])], poisson(5), limits=limits))
    assert huge.num_refused == huge.num_arrived > 0
    assert huge.num_finished == 0


def test_admission_never_holds_more_than_fits():
    random = np.random.default_rng(0)
    admission = Admission(Limits(6, 40, 120))
    for _ in range(30):
        admission.waiting.append(Job(request(int(random.integers(1, 60)), draft=[0] * 9), 0.0))
    decoding: list[Job] = []
    while admission.waiting or admission.prefilling:
        held = sum(job.num_known for job in decoding)
        chunks = admission.schedule(len(decoding), held, 3, may_admit=True)
        assert chunks.num_tokens + len(decoding) <= 40
        assert len(decoding) + len(admission.prefilling) <= 6
        assert held + len(decoding) + admission.num_reserved_tokens <= 120
        assert chunks.parts or decoding
        decoding += admission.advance(chunks)
        decoding = decoding[1:]


def test_the_controller_hears_what_the_engine_would_tell_it():
    """Step times, prompts, waits and first tokens, on the request that is reckoned step by step."""

    class Listener(FixedPolicy):
        heard: ClassVar[list[StepResult]] = []

        def observe(self, result):
            self.heard.append(result)
            super().observe(result)

    one = request(100, draft=[9, 1, 9, 0, 2, 9, 9, 2])
    of = service([one], 1, limits=Limits(max_num_batched_tokens=64))
    fleet = Fleet(of, policy_setting("off", ("draft",), 4), Stretch(0, 0, 0.055), 0)
    fleet.targets[0].controller = Listener(2, 4, 0.25)
    fleet.run()
    prompt, rest, decode, *_ = Listener.heard
    assert (prompt.num_tokens, prompt.num_prefill_tokens, prompt.num_kv_tokens) == (64, 64, 0)
    assert (rest.num_tokens, rest.num_prefill_tokens, rest.num_kv_tokens) == (36, 36, 64)
    assert prompt.first_tokens_s == ()
    assert rest.first_tokens_s == pytest.approx((0.020,))
    assert decode.first_tokens_s == ()
    assert (decode.num_tokens, decode.num_kv_tokens) == (3, 101)
    assert (decode.propose_s, decode.run_s, decode.step_s) == pytest.approx((0.002, 0.010, 0.012))
    (timing,) = decode.timings
    assert (timing.drafter, timing.draft_s, timing.waited_s) == ("draft", 0.002, 0.002)
    (result,) = decode.sequences
    assert (result.planned_k, result.num_draft_tokens) == (2, 2)
    assert (result.num_accepted_tokens, result.num_committed_tokens) == (1, 2)
