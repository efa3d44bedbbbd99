"""What log-probabilities may take, before anything runs and in a step."""

from __future__ import annotations

import pytest

from specdec.config import PROMPT_LOGPROB_ROWS, SchedulerConfig
from specdec.engine.request import BYTES_PER_LOGPROB, check_logprobs
from specdec.errors import InvalidRequestError
from specdec.model.memory import largest_plan
from specdec.params import SamplingParams
from tests.unit.engine.engine_harness import make_engine, random_prompt, request, run
from tests.unit.engine.scheduling import make_scheduler, make_sequence, run_step


@pytest.mark.parametrize(
    ("params", "prompt_lens", "n", "num_logprobs", "field"),
    [
        ({"prompt_logprobs": 0}, [10], 1, 10, "prompt_logprobs"),
        ({"prompt_logprobs": 4}, [10, 20], 3, 30 * 5 * 3, "prompt_logprobs"),
        ({"logprobs": 2, "max_tokens": 7}, [10], 2, 7 * 3 * 2, "logprobs"),
        ({"logprobs": 2, "max_tokens": 700}, [10, 60], 1, (90 + 40) * 3, "logprobs"),
        ({"logprobs": 0, "prompt_logprobs": 1, "max_tokens": 5}, [9], 1, 5 + 18, "prompt_logprobs"),
    ],
)
def test_the_bound_counts_every_position_of_every_completion(
    params, prompt_lens, n, num_logprobs, field
):
    wanted = SamplingParams(**params)
    limit = num_logprobs * BYTES_PER_LOGPROB
    check_logprobs(wanted, prompt_lens, n, 100, limit)
    with pytest.raises(InvalidRequestError) as error:
        check_logprobs(wanted, prompt_lens, n, 100, limit - 1)
    assert error.value.field == field
    assert f"allowed: {limit - 1}" in error.value.message


def test_an_engine_refuses_what_no_gateway_has_checked(tiny_llama):
    engine = make_engine(tiny_llama, max_logprobs_bytes=20 * BYTES_PER_LOGPROB)
    prompt = random_prompt(20, seed=1)
    run(engine, [request(prompt, prompt_logprobs=0, max_tokens=1)])
    with pytest.raises(InvalidRequestError, match="prompt_logprobs"):
        engine.add_request(request(prompt, prompt_logprobs=1, max_tokens=1))
    assert not engine.has_work


def test_a_step_computes_logits_for_so_many_prompt_tokens():
    scheduler, _ = make_scheduler(num_blocks=400, budget=512)
    wanted = [make_sequence(150, prompt_logprobs=1) for _ in range(3)]
    plain = make_sequence(150)
    for seq in (*wanted, plain):
        scheduler.add(seq)
    for _ in range(20):
        schedule = run_step(scheduler)
        rows = sum(chunk for seq, chunk in schedule.prefills if seq is not plain)
        assert rows <= PROMPT_LOGPROB_ROWS
        assert all(chunk > 0 for _, chunk in schedule.prefills)
    assert all(seq.num_output_tokens > 0 for seq in (*wanted, plain))


def test_the_profile_run_has_as_many_logit_rows_as_any_step():
    config = SchedulerConfig(max_num_sequences=4, max_num_batched_tokens=512)
    num_rows = config.max_logit_rows(8)
    assert num_rows == 4 * 9 + PROMPT_LOGPROB_ROWS
    assert len(largest_plan(512, num_rows, 16).logit_rows) == num_rows
    assert SchedulerConfig(max_num_batched_tokens=32).max_logit_rows(8) == 32
