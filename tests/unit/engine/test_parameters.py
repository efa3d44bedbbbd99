"""Sampling parameters and log-probabilities hold at every draft position: on equals off.

Each test runs K = 1 to 8 in one batch, with a draft that is right only now and then, and compares
with the engine that does not speculate, with transformers, or with what the parameter forbids.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

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

PROMPT = random_prompt(11, seed=5)
NUM_TOKENS = 12
GREEDY = {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
COUPLED = {"temperature": 0.9, "seed": 7, "max_tokens": NUM_TOKENS, "ignore_eos": True}
ALL_K = range(1, 9)


@pytest.fixture(scope="module")
def plain(tiny_llama):
    """The engine that never speculates."""
    return make_engine(tiny_llama)


@pytest.fixture(scope="module")
def drafting(tiny_llama, tiny_draft):
    return make_engine(tiny_llama, tiny_draft, ("draft",))


@pytest.fixture(scope="module")
def reference(tiny_llama):
    return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float64)


def at_every_k(engine, verification="auto", **params):
    """Outputs per K of one batch; some draft tokens must be accepted and some rejected."""
    requests = [
        request(
            PROMPT,
            f"k{k}",
            speculation=SpeculationParams(mode="fixed", k=k, verification=verification),
            **params,
        )
        for k in ALL_K
    ]
    outputs = run(engine, requests)
    drafted = sum(len(o.draft_token_ids) for each in outputs.values() for o in each)
    accepted = sum(o.num_accepted_tokens for each in outputs.values() for o in each)
    assert 0 < accepted < drafted
    return [outputs[f"k{k}"] for k in ALL_K]


@pytest.mark.parametrize("base", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize(
    "extra",
    [
        {"frequency_penalty": 2.0},
        {"frequency_penalty": -2.0},
        {"presence_penalty": 1.5},
        {"repetition_penalty": 1.4},
        {"min_tokens": 8},
        {"top_k": 5, "top_p": 0.9},
        {"min_p": 0.2},
    ],
    ids=lambda extra: "-".join(f"{name}={value}" for name, value in extra.items()),
)
def test_on_equals_off_at_every_k(plain, drafting, base, extra):
    """Case *13: position i sees prefix + drafts before i; rejected drafts leave no trace."""
    params = {**base, **extra}
    expected = generate(plain, PROMPT, speculation=OFF, **params)
    for outputs in at_every_k(drafting, **params):
        assert token_ids(outputs) == expected


@pytest.mark.parametrize("extra", [{"frequency_penalty": 2.0}, {"frequency_penalty": -2.0}])
def test_the_penalty_matters_here(plain, extra):
    """Else the test above would prove nothing."""
    without = generate(plain, PROMPT, speculation=OFF, **GREEDY)
    assert generate(plain, PROMPT, speculation=OFF, **GREEDY, **extra) != without


def test_min_tokens_hides_the_stop_exactly_as_long_as_asked(plain, tiny_llama):
    """Case *13: the stop is masked for min_tokens tokens, not for min_tokens steps."""
    free = generate(plain, PROMPT, speculation=OFF, **GREEDY)
    params = {**GREEDY, "stop_token_ids": (free[2],), "min_tokens": 7}
    expected = generate(plain, PROMPT, speculation=OFF, **params)
    assert free[2] not in expected[:7]
    teller = TellingProposer({len(PROMPT): PROMPT + expected})
    engine = make_engine(tiny_llama, drafters=("draft",), draft_proposer=teller)
    outputs = run(engine, [request(PROMPT, f"k{k}", speculation=fixed(k), **params) for k in ALL_K])
    for k in ALL_K:
        assert token_ids(outputs[f"k{k}"]) == expected


@pytest.mark.parametrize("params", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_a_banned_token_never_appears(plain, drafting, params):
    """Case *14: logit_bias -100 on the tokens of the plain text, on every row of every block."""
    free = generate(plain, PROMPT, speculation=OFF, **params)
    banned = {**params, "logit_bias": dict.fromkeys(free, -100.0)}
    expected = generate(plain, PROMPT, speculation=OFF, **banned)
    for outputs in at_every_k(drafting, **banned):
        assert token_ids(outputs) == expected
        assert not set(token_ids(outputs)) & set(free)


@pytest.mark.parametrize("verification", ["block", "rejection"])
def test_a_banned_token_is_not_sampled_either(plain, drafting, verification):
    sampled = {"temperature": 1.0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    free = generate(plain, PROMPT, speculation=OFF, **GREEDY)
    bias = dict.fromkeys(free, -100.0)
    for outputs in at_every_k(drafting, verification, logit_bias=bias, **sampled):
        assert not set(token_ids(outputs)) & set(free)


@pytest.mark.parametrize("verification", ["block", "rejection", "coupled"])
@pytest.mark.parametrize("extra", [{"min_p": 1.0}, {"top_k": 1}], ids=["min_p", "top_k"])
def test_a_filter_that_leaves_one_token_makes_any_mode_greedy(plain, drafting, verification, extra):
    """Case *14: the mask reaches accepted, recovered and bonus positions alike."""
    expected = generate(plain, PROMPT, speculation=OFF, **GREEDY)
    params = {**COUPLED, **extra, "temperature": 1.0}
    for outputs in at_every_k(drafting, verification, **params):
        assert token_ids(outputs) == expected


@pytest.mark.parametrize("params", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_logprobs_are_the_models_own(plain, drafting, reference, params):
    """Case *15: accepted, recovered and bonus tokens; the sampled one's, its rank and the top 3."""
    wanted = {**params, "logprobs": 3, "frequency_penalty": 0.5}
    off = run(plain, [request(PROMPT, speculation=OFF, **wanted)])["r"]
    ids = token_ids(off)
    with torch.no_grad():
        logits = reference(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1]
    expected = torch.log_softmax(logits, dim=-1)
    for outputs in [off, *at_every_k(drafting, **wanted)]:
        positions = [position for output in outputs for position in output.logprobs]
        assert [position.token_id for position in positions] == ids
        for position, row in zip(positions, expected, strict=True):
            assert position.logprob == pytest.approx(row[position.token_id].item(), abs=1e-4)
            assert position.rank == int((row > row[position.token_id]).sum()) + 1
            values, indices = row.topk(3)
            assert [token_id for token_id, _ in position.top] == indices.tolist()
            assert [v for _, v in position.top] == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize("budget", [256, 7], ids=["whole", "chunked"])
def test_prompt_logprobs_are_the_models_own(tiny_llama, reference, budget):
    """Also where the prompt is computed in chunks, and where its prefix is cached already."""
    prompt = random_prompt(30, seed=8)
    engine = make_engine(tiny_llama, prefix_caching=True, max_num_batched_tokens=budget)
    with torch.no_grad():
        expected = torch.log_softmax(reference(torch.tensor([prompt])).logits[0], dim=-1)
    for _ in range(2):
        outputs = run(
            engine, [request(prompt, prompt_logprobs=2, max_tokens=3, speculation=fixed(2))]
        )["r"]
        first, *rest = outputs[0].prompt_logprobs
        assert first is None
        assert [position.token_id for position in rest] == prompt[1:]
        for position, row in zip(rest, expected[:-1], strict=True):
            assert position.logprob == pytest.approx(row[position.token_id].item(), abs=1e-4)
            assert [token_id for token_id, _ in position.top] == row.topk(2).indices.tolist()
        assert all(output.prompt_logprobs is None for output in outputs[1:])


class Recorder(TellingProposer):
    """Remembers every sequence that it heard of."""

    def __init__(self, truth):
        super().__init__(truth)
        self.seen: set[int] = set()

    def open(self, sequences):
        self.seen.update(sequence.seq_id for sequence in sequences)
        super().open(sequences)

    def available(self, seq_id):
        self.seen.add(seq_id)
        return super().available(seq_id)


@pytest.mark.parametrize("params", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_opting_out_is_kept_from_every_drafter(plain, tiny_llama, params):
    """Case *3: no drafter hears of the request, its neighbours are drafted for, texts are equal."""
    other = random_prompt(14, seed=6)
    expected = generate(plain, PROMPT, speculation=OFF, **params)
    expected_other = generate(plain, other, speculation=OFF, **params)
    recorder = Recorder({len(other): other + expected_other, len(PROMPT): PROMPT + expected})
    engine = make_engine(tiny_llama, drafters=("draft", "ngram"), draft_proposer=recorder)
    outputs = run(
        engine,
        [
            request(PROMPT, "out", speculation=OFF, **params),
            request(other, "in", speculation=fixed(4), **params),
        ],
    )
    assert token_ids(outputs["out"]) == expected
    assert token_ids(outputs["in"]) == expected_other
    assert recorder.seen == {outputs["in"][0].seq_id}
    assert not any(output.draft_token_ids for output in outputs["out"])
    assert outputs["out"][-1].metrics.disabled_reason == "off_by_request"
    assert outputs["out"][-1].metrics.stats.num_drafts == 0
    assert outputs["in"][-1].metrics.stats.num_drafts > 0
