"""What one request asks of speculation keeps no other from drafting, in a whole engine."""

from __future__ import annotations

import pytest

from specdec.params import SpeculationParams
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

FREE, NEIGHBOUR = random_prompt(5, seed=1), random_prompt(7, seed=2)
GREEDY = {"temperature": 0.0, "ignore_eos": True}
MAX_TOKENS = 120


class TickingClock:
    """Each look at it takes 10 ms, so that steps take the same whatever the machine does."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.01
        return self.now_s


@pytest.fixture(scope="module")
def truth(tiny_llama):
    engine = make_engine(tiny_llama)
    return {
        len(prompt): prompt + generate(engine, prompt, max_tokens=2 * MAX_TOKENS, **GREEDY)
        for prompt in (FREE, NEIGHBOUR)
    }


def drafted(tiny_llama, truth, neighbour: SpeculationParams | None) -> dict[str, int]:
    """Draft tokens of each request; all of them would be accepted."""
    engine = make_engine(tiny_llama, drafters=("draft",), draft_proposer=TellingProposer(truth))
    engine._clock = engine.drafters._clock = TickingClock()
    requests = [request(FREE, "free", max_tokens=MAX_TOKENS, **GREEDY)]
    if neighbour:
        # It runs for as long as the other one does.
        length = {"max_tokens": 2 * MAX_TOKENS, "speculation": neighbour}
        requests.append(request(NEIGHBOUR, "neighbour", **length, **GREEDY))
    outputs = run(engine, requests)
    for each in requests:
        start = len(each.prompt_token_ids)
        text = token_ids(outputs[each.request_id])
        assert text == truth[start][start : start + len(text)]
    return {
        name: sum(len(output.draft_token_ids) for output in told) for name, told in outputs.items()
    }


@pytest.mark.parametrize("neighbour", [fixed(1), fixed(4), OFF], ids=["k = 1", "k = 4", "off"])
def test_a_neighbour_that_chose_its_k_leaves_the_others_theirs(tiny_llama, truth, neighbour):
    alone = drafted(tiny_llama, truth, None)["free"]
    beside = drafted(tiny_llama, truth, neighbour)
    assert alone > 0.7 * MAX_TOKENS
    assert beside["free"] >= 0.9 * alone
    assert (beside["neighbour"] == 0) == (neighbour is OFF)
