"""A whole engine with two tenants: texts stay exact while one's flood gives way to the other."""

from __future__ import annotations

import pytest

from specdec.engine.request import GenerateRequest
from specdec.params import SamplingParams
from tests.unit.engine.engine_harness import (
    OFF,
    check_integrity,
    fixed,
    generate,
    make_engine,
    random_prompt,
)

GREEDY = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
COUPLED = {**GREEDY, "temperature": 0.9, "seed": 7}
FLOOD = [random_prompt(9 + 3 * i, seed=i) for i in range(5)]
OTHERS = [random_prompt(7 + i, seed=10 + i) for i in range(3)]


def arriving(name: str, prompt: list[int], tenant: str, **params) -> GenerateRequest:
    wanted = SamplingParams(**params)
    return GenerateRequest(name, prompt, wanted, partition=tenant, traffic_class=tenant)


@pytest.mark.parametrize("mode", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("speculation", [OFF, fixed(4, "ngram")], ids=["off", "ngram"])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_texts_are_the_same_where_a_flood_gives_places_to_another_tenant(
    tiny_llama, mode, speculation, prefix_caching
):
    plain = make_engine(tiny_llama)
    expected = [generate(plain, p, speculation=OFF, **mode) for p in (*FLOOD, *OTHERS)]
    engine = make_engine(tiny_llama, max_num_sequences=4, prefix_caching=prefix_caching)
    params = {**mode, "speculation": speculation}
    texts: dict[str, list[int]] = {}
    for i, prompt in enumerate(FLOOD):
        engine.add_request(arriving(str(i), prompt, "flood", **params))
    left = list(enumerate(OTHERS, len(FLOOD)))
    num_steps = 0
    while engine.has_work or left:
        if left and num_steps >= 2:
            i, prompt = left.pop(0)
            engine.add_request(arriving(str(i), prompt, "other", **params))
        for output in engine.step():
            texts.setdefault(output.request_id, []).extend(output.token_ids)
        check_integrity(engine)
        num_steps += 1
    assert [texts[str(i)] for i in range(len(expected))] == expected
    assert engine.scheduler.num_preemptions >= 1
    assert engine.block_manager.num_used_blocks == 0


def test_salts_of_one_tenant_are_one_class_to_the_controller(tiny_llama, monkeypatch):
    engine = make_engine(tiny_llama)
    seen = []
    plan = engine.controller.plan

    def recorded(state):
        seen.append(state)
        return plan(state)

    monkeypatch.setattr(engine.controller, "plan", recorded)
    params = SamplingParams(**GREEDY)
    for number, (tenant, salt) in enumerate([("one", "a"), ("one", "b"), ("other", "a")]):
        prompt = random_prompt(8, seed=number)
        engine.add_request(
            GenerateRequest(f"{tenant} {salt}", prompt, params, tenant + salt, traffic_class=tenant)
        )
    while not seen or len(seen[-1].sequences) < 3:
        engine.step()
    assert [sequence.label for sequence in seen[-1].sequences] == ["one", "one", "other"]
