"""NaN and infinities in one sequence's logits: it ends alone, and the engine goes on."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch

from specdec.engine.async_engine import AsyncEngine
from specdec.errors import ModelOutputError
from specdec.speculation import verifier
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

BAD = 280
MODES = {
    "greedy": {"temperature": 0.0},
    "coupled": {"seed": 3},
    "rejection": {"verification": "rejection"},
    "block": {"verification": "block"},
}
NAN = math.nan


@pytest.fixture(autouse=True)
def _same_draws(monkeypatch):
    """Two runs are compared, and what the engine draws for itself is fresh for each request."""
    monkeypatch.setattr("specdec.engine.request.secrets.randbits", lambda bits: 12345)


def spoil_embedding(engine, token_id=BAD, value=NAN):
    """What the text after this token computes is NaN from here on."""
    executor = getattr(engine, "executor", engine)
    with torch.no_grad():
        executor._runner.model.get_input_embeddings().weight[token_id] = value


class Spoiler:
    """An executor whose logits are overwritten where `rows` says so, by the number of the pass."""

    def __init__(self, executor, spoil):
        self._executor, self._spoil, self.num_passes = executor, spoil, 0

    def __getattr__(self, name):
        return getattr(self._executor, name)

    def execute(self, plan):
        logits = self._executor.execute(plan).clone()
        self._spoil(self.num_passes, plan, logits)
        self.num_passes += 1
        return logits


def good_requests(mode, k):
    params = dict(MODES[mode])
    wish = fixed(k) if k else OFF
    if "verification" in params:
        verification = params.pop("verification")
        wish = type(wish)(mode=wish.mode, k=wish.k, verification=verification)
    params |= {"max_tokens": 20, "ignore_eos": True, "logprobs": 2, "speculation": wish}
    return [
        request([5, 6, 7, 5, 6, 7, 5, 6], "one", **params),
        request(random_prompt(9, seed=8), "two", **params),
    ]


def told(outputs):
    return {
        name: [(o.token_ids, o.text, o.logprobs, o.finish_reason) for o in each]
        for name, each in outputs.items()
    }


def texts(outputs):
    return {name: token_ids(each) for name, each in outputs.items()}


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("mode", MODES)
def test_a_row_that_is_no_law_ends_its_request_alone(tiny_llama, mode, k):
    engine = make_engine(tiny_llama, num_blocks=64)
    spoil_embedding(engine)
    alone = run(engine, good_requests(mode, k))
    bad = request([5, 6, 7, BAD, 6, 7, 5, 6], "bad", max_tokens=20, **_params(mode, k))
    beside = run(engine, [*good_requests(mode, k), bad])
    (last,) = beside.pop("bad")
    assert (last.token_ids, last.finish_reason) == ([], "error")
    assert isinstance(last.error, ModelOutputError)
    assert "after 8 tokens" in last.error.message
    assert all(each[-1].finish_reason == "length" for each in alone.values())
    assert engine.counters.num_not_finite == 1
    assert told(beside) == told(alone)


def _params(mode, k):
    found = good_requests(mode, k)[0].params
    return {"temperature": found.temperature, "seed": found.seed, "speculation": found.speculation}


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf], ids=["nan", "inf", "all -inf"])
@pytest.mark.parametrize("mode", MODES)
def test_a_decode_row_that_is_no_law_ends_what_was_begun(tiny_llama, mode, value):
    engine = make_engine(tiny_llama)
    whole = texts(run(engine, good_requests(mode, 0)))

    def spoil(number, plan, logits):
        if number == 5:
            logits[0] = value

    engine.executor = Spoiler(engine.executor, spoil)
    outputs = run(engine, good_requests(mode, 0))
    assert outputs["one"][-1].finish_reason == "error"
    assert token_ids(outputs["one"]) == whole["one"][:5]
    assert token_ids(outputs["two"]) == whole["two"]


@pytest.mark.parametrize("mode", MODES)
def test_tokens_that_the_model_itself_excludes_are_no_fault(tiny_llama, mode):
    engine = make_engine(tiny_llama)

    def spoil(number, plan, logits):
        logits[:, 5:] = -math.inf

    engine.executor = Spoiler(engine.executor, spoil)
    outputs = run(engine, good_requests(mode, 3))
    assert all(0 <= token < 5 for each in outputs.values() for token in token_ids(each))
    assert engine.counters.num_not_finite == 0


@pytest.mark.parametrize("spoilt_row", [0, 2, 4])
@pytest.mark.parametrize("mode", ["greedy", "coupled"])
def test_a_pass_with_draft_tokens_that_is_no_law_is_done_again_without_them(
    tiny_llama, mode, spoilt_row
):
    """Also where the row stands behind the first mismatch: text is what it is without drafts."""
    plain = texts(run(make_engine(tiny_llama), good_requests(mode, 0)))
    truth = {8: [5, 6, 7, 5, 6, 7, 5, 6] + plain["one"], 9: random_prompt(9, 8) + plain["two"]}
    for wrong_at in (None, 1):
        proposer = TellingProposer(truth, wrong_at)
        engine = make_engine(tiny_llama, drafters=("draft",), draft_proposer=proposer)

        def spoil(number, plan, logits):
            if number == 2:
                assert plan.query_lens == [5, 5]
                logits[spoilt_row] = NAN

        engine.executor = Spoiler(engine.executor, spoil)
        outputs = run(engine, good_requests(mode, 4))
        assert texts(outputs) == plain
        assert outputs["one"][-1].metrics.disabled_reason == "not_finite"
        assert outputs["two"][-1].metrics.disabled_reason is None
        assert outputs["one"][-1].metrics.stats.num_drafts == 1
        assert engine.counters.num_not_finite == 0


@pytest.mark.parametrize("num_requests", [1, 3])
def test_a_rejected_draft_token_with_a_nan_embedding_changes_no_text(tiny_llama, num_requests):
    """Attention reads the keys of draft tokens from rows before them, masked: NaN all the same."""
    prompts = [random_prompt(9 + i, seed=20 + i) for i in range(num_requests)]
    params = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
    plain = make_engine(tiny_llama)
    whole = [generate(plain, prompt, speculation=OFF, **params) for prompt in prompts]
    assert not any(BAD in text for text in whole)

    class Spoilt(TellingProposer):
        def _draft(self, seq_id, k):
            tokens = super()._draft(seq_id, k)
            return [*tokens[:2], BAD, *tokens[3:]] if len(self._texts[seq_id]) > 16 else tokens

    truth = {len(p): p + text for p, text in zip(prompts, whole, strict=True)}
    engine = make_engine(tiny_llama, drafters=("draft",), draft_proposer=Spoilt(truth))
    spoil_embedding(engine)
    wanted = [request(p, str(i), speculation=fixed(4), **params) for i, p in enumerate(prompts)]
    outputs = run(engine, wanted)
    assert [token_ids(outputs[str(i)]) for i in range(num_requests)] == whole


@pytest.mark.parametrize("leaves_early", [False, True])
def test_blocks_of_a_spoilt_sequence_do_not_spoil_the_next(tiny_llama, leaves_early):
    engine = make_engine(tiny_llama, num_blocks=24, max_num_batched_tokens=16)
    wanted = [
        request(random_prompt(5 + 2 * i, seed=i), str(i), temperature=0.0, max_tokens=8)
        for i in range(3)
    ]
    clean = told(run(engine, wanted))
    spoil_embedding(engine)
    bad = request([BAD] * 60, "bad", max_tokens=4)
    if leaves_early:
        sequence = engine.add_request(bad)
        engine.step()
        engine.abort(sequence.seq_id)
    else:
        assert run(engine, [bad])["bad"][-1].finish_reason == "error"
    pool = engine.executor._runner._pool
    assert any(layer.isnan().any() for layer in pool.layers)
    assert told(run(engine, wanted)) == clean


def test_a_passing_fault_is_not_kept_in_the_prefix_cache(tiny_llama):
    engine = make_engine(tiny_llama, prefix_caching=True)
    prompt = random_prompt(30, seed=2)
    params = {"temperature": 0.0, "max_tokens": 6}
    clean = generate(engine, prompt, **params)
    engine = make_engine(tiny_llama, prefix_caching=True, max_num_batched_tokens=8)
    weight = engine.executor._runner.model.get_input_embeddings().weight
    healthy = weight[prompt[3]].clone()
    spoil_embedding(engine, prompt[3])
    assert run(engine, [request(prompt, **params)])["r"][-1].finish_reason == "error"
    spoil_embedding(engine, prompt[3], healthy)
    assert generate(engine, prompt, **params) == clean


def test_prompt_logprobs_that_are_no_numbers_end_the_request(tiny_llama):
    engine = make_engine(tiny_llama, max_num_batched_tokens=8)

    def spoil(number, plan, logits):
        if number == 0:
            logits[3] = NAN

    engine.executor = Spoiler(engine.executor, spoil)
    outputs = run(engine, [request(random_prompt(20, seed=1), prompt_logprobs=2)])["r"]
    assert isinstance(outputs[-1].error, ModelOutputError)
    assert engine.executor.num_passes == 1


@pytest.mark.parametrize("mode", MODES)
def test_an_error_in_one_verification_ends_one_request(tiny_llama, monkeypatch, mode):
    engine = make_engine(tiny_llama)
    alone = texts(run(engine, good_requests(mode, 3)))
    adjust = verifier.adjust_logits

    def failing(logits, groups):
        if groups[0].params.min_p == 0.5:
            raise RuntimeError("as a bug would")
        return adjust(logits, groups)

    monkeypatch.setattr(verifier, "adjust_logits", failing)
    bad = request([9, 9, 9], "bad", min_p=0.5, **_params(mode, 3))
    outputs = run(engine, [*good_requests(mode, 3), bad])
    (*_, last) = outputs.pop("bad")
    assert (last.finish_reason, last.error.reason) == ("error", "INTERNAL")
    assert str(last.error) == "verification failed; the server's log says how"
    assert engine.counters.num_not_finite == 0  # it was not the model
    assert texts(outputs) == alone


def test_the_engine_serves_on(tiny_llama):
    engine = make_engine(tiny_llama)
    spoil_embedding(engine)
    served = AsyncEngine(engine)

    async def all_outputs(wanted):
        return [output async for output in served.generate(wanted)]

    async def both():
        bad = request([BAD, 5], "bad", seed=1, max_tokens=5)
        good = request([5, 6], "good", seed=1, max_tokens=5, ignore_eos=True)
        return await asyncio.gather(all_outputs(bad), all_outputs(good))

    try:
        (bad,), good = asyncio.run(both())
        assert isinstance(bad.error, ModelOutputError)
        assert len(token_ids(good)) == 5
        assert served.failure is None
    finally:
        served.shutdown()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spoilt", ["every token", "one token"])
def test_a_draft_that_computes_nan_proposes_nothing(tiny_llama, tiny_draft, mode, spoilt):
    plain = make_engine(tiny_llama)
    engine = make_engine(tiny_llama, tiny_draft, ("draft",))
    draft = engine.drafters["draft"].engine
    if spoilt == "every token":
        spoil_embedding(draft, slice(None))
    else:
        spoil_embedding(draft, 6)  # the prompt of one of two
    outputs = run(engine, good_requests(mode, 4))
    if mode in ("greedy", "coupled"):
        assert texts(outputs) == texts(run(plain, good_requests(mode, 0)))
    metrics = {name: each[-1].metrics for name, each in outputs.items()}
    assert metrics["one"].disabled_reason == "draft_not_finite"
    assert metrics["one"].stats.num_draft_tokens == 0
    assert (metrics["two"].stats.num_draft_tokens > 0) == (spoilt == "one token")
    assert draft.memory.blocks.num_used_blocks == 0
