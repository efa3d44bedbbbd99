"""Speculation on equals speculation off, token for token, on the float64 reference."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

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
GREEDY = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True}
COUPLED = {"temperature": 0.9, "seed": 7, "max_tokens": 16, "ignore_eos": True}
MODES = [pytest.param(GREEDY, id="greedy"), pytest.param(COUPLED, id="coupled")]


@pytest.fixture(scope="module")
def plain(tiny_llama):
    """The engine that never speculates."""
    return make_engine(tiny_llama)


@pytest.fixture(scope="module")
def texts(plain):
    """What the target alone says, by temperature."""
    return {
        params["temperature"]: generate(plain, PROMPT, speculation=OFF, **params)
        for params in (GREEDY, COUPLED)
    }


def test_greedy_equals_transformers_generate(plain, tiny_llama):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float64)
    for seed in range(3):
        prompt = random_prompt(5 + 9 * seed, seed)
        expected = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=16, eos_token_id=None
        )
        ours = generate(plain, prompt, speculation=OFF, **GREEDY)
        assert ours == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("params", MODES)
@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("drafter", ["draft", "ngram"])
def test_every_drafter_at_every_k_equals_off(shared_engines, texts, params, k, drafter):
    drafted = generate(shared_engines, PROMPT, speculation=fixed(k, drafter), **params)
    assert drafted == texts[params["temperature"]]


@pytest.fixture(scope="module")
def shared_engines(tiny_llama, tiny_draft):
    return make_engine(tiny_llama, tiny_draft, ("draft", "ngram"))


@pytest.mark.parametrize("params", MODES)
@pytest.mark.parametrize("wrong_at", [None, 0, 1, 2, 3])
def test_rejection_at_every_position(plain, tiny_llama, params, wrong_at):
    """Case *7: K = 4 with the rejection forced at each position; the harness checks KV lengths."""
    expected = generate(plain, PROMPT, speculation=OFF, **params)
    teller = TellingProposer({len(PROMPT): PROMPT + expected}, wrong_at)
    engine = make_engine(tiny_llama, drafters=("draft",), draft_proposer=teller)
    outputs = run(engine, [request(PROMPT, speculation=fixed(4), **params)])["r"]
    assert token_ids(outputs) == expected
    full_steps = [o for o in outputs if len(o.draft_token_ids) == 4]
    assert full_steps
    accepted = 4 if wrong_at is None else wrong_at
    assert {o.num_accepted_tokens for o in full_steps} == {accepted}


@pytest.mark.parametrize("params", MODES)
def test_mixed_batch_equals_each_alone(plain, shared_engines, params):
    prompts = [random_prompt(3 + 5 * i, seed=i) for i in range(6)]
    wishes = [OFF, fixed(1), fixed(3, "ngram"), fixed(8, "draft"), fixed(2), OFF]
    alone = [generate(plain, p, speculation=OFF, **params) for p in prompts]
    requests = [
        request(p, f"r{i}", speculation=w, **params)
        for i, (p, w) in enumerate(zip(prompts, wishes, strict=True))
    ]
    together = run(shared_engines, requests)
    assert [token_ids(together[f"r{i}"]) for i in range(6)] == alone


@pytest.mark.parametrize("params", MODES)
def test_preemption_changes_no_token(plain, tiny_llama, tiny_draft, params):
    prompts = [random_prompt(9, seed=i) for i in range(5)]
    alone = [generate(plain, p, speculation=OFF, **params) for p in prompts]
    engine = make_engine(tiny_llama, tiny_draft, ("draft",), num_blocks=22)
    together = run(
        engine, [request(p, f"r{i}", speculation=fixed(3), **params) for i, p in enumerate(prompts)]
    )
    assert engine.scheduler.num_preemptions > 0
    assert [token_ids(together[f"r{i}"]) for i in range(5)] == alone


@pytest.mark.parametrize("params", MODES)
def test_prefix_cache_hits_change_no_token(plain, tiny_llama, tiny_draft, params):
    prompt = random_prompt(40, seed=3)
    expected = generate(plain, prompt, speculation=OFF, **params)
    engine = make_engine(tiny_llama, tiny_draft, ("draft",), prefix_caching=True)
    for _ in range(3):
        outputs = run(engine, [request(prompt, speculation=fixed(5), **params)])["r"]
        assert token_ids(outputs) == expected
    assert outputs[-1].metrics.num_cached_tokens >= 36


@pytest.mark.parametrize("params", MODES)
def test_chunked_prefill_beside_decodes_changes_no_token(plain, tiny_llama, tiny_draft, params):
    prompts = [random_prompt(length, seed=length) for length in (4, 70, 33)]
    alone = [generate(plain, p, speculation=OFF, **params) for p in prompts]
    engine = make_engine(tiny_llama, tiny_draft, ("draft",), max_num_batched_tokens=12)
    together = run(
        engine, [request(p, f"r{i}", speculation=fixed(4), **params) for i, p in enumerate(prompts)]
    )
    assert [token_ids(together[f"r{i}"]) for i in range(3)] == alone


@pytest.mark.parametrize("params", MODES)
def test_abort_of_neighbours_changes_no_token(plain, shared_engines, params):
    expected = generate(plain, PROMPT, speculation=OFF, **params)
    engine = shared_engines
    kept = engine.add_request(request(PROMPT, "kept", speculation=fixed(4), **params))
    doomed = [
        engine.add_request(
            request(random_prompt(9 + i, i), f"d{i}", speculation=fixed(3), **params)
        )
        for i in range(4)
    ]
    seen: list[int] = []
    for step in range(200):
        if step % 2 == 1 and doomed:
            engine.abort(doomed.pop().seq_id)
        outputs = engine.step()
        seen += [t for o in outputs if o.seq_id == kept.seq_id for t in o.token_ids]
        if not engine.has_work:
            break
    assert seen == expected
    assert engine.block_manager.num_used_blocks == 0


def test_same_draft_and_target_accept_everything(tiny_llama):
    engine = make_engine(tiny_llama, tiny_llama, ("draft",))
    for params in (GREEDY, COUPLED):
        outputs = run(engine, [request(PROMPT, speculation=fixed(4), **params)])["r"]
        drafted = sum(len(o.draft_token_ids) for o in outputs)
        assert drafted > 0
        assert sum(o.num_accepted_tokens for o in outputs) == drafted


def test_seeded_text_is_the_same_alone_mixed_and_after_traffic(plain, shared_engines):
    """Case *9: a seed fixes the text; requests without one differ."""
    params = {"temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
    expected = generate(plain, PROMPT, seed=3, speculation=OFF, **params)
    requests = [request(PROMPT, "seeded", seed=3, speculation=fixed(2), **params)]
    requests += [request(PROMPT, f"free{i}", speculation=fixed(2), **params) for i in range(4)]
    mixed = run(shared_engines, requests)
    assert token_ids(mixed["seeded"]) == expected
    assert generate(shared_engines, PROMPT, seed=3, speculation=fixed(6), **params) == expected
    free = {tuple(generate(plain, PROMPT, speculation=OFF, **params)) for _ in range(20)}
    assert len(free) > 1
