"""Logits processing against transformers' own processors, and by position against a plain loop."""

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdec.params import SamplingParams
from specdec.sampling import processors
from specdec.sampling.processors import adjust_logits, filtered_logits, probs
from tests.logit_rows import logit_rows

VOCAB_SIZE = 40
STOP = 7


def random_logits(seed, num_rows=1, vocab_size=VOCAB_SIZE, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(num_rows, vocab_size, dtype=torch.float64, generator=generator)


def random_text(seed, length):
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


def transformers_probs(logits, params, prompt, output):
    """The law of one position by the processors of transformers, in the order of generate()."""
    chain = LogitsProcessorList()
    if params.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.bad_words_token_ids:
        words = [list(word) for word in params.bad_words_token_ids]
        chain.append(NoBadWordsLogitsProcessor(words))
    if params.min_tokens:
        chain.append(MinNewTokensLengthLogitsProcessor(len(prompt), params.min_tokens, [STOP]))
    chain.append(TemperatureLogitsWarper(float(params.temperature)))
    if params.top_k:
        chain.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        chain.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        chain.append(MinPLogitsWarper(params.min_p))
    return torch.softmax(chain(torch.tensor([[*prompt, *output]]), logits.clone()), -1)[0]


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 1.9]),
    top_k=st.sampled_from([0, 1, 5, 39, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.02, 0.4]),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.8]),
    min_tokens=st.sampled_from([0, 2, 6]),
    max_tokens=st.just(16),
    bad_words_token_ids=st.sampled_from([(), ((3,), (1, 2), (5, 6, 5)), ((9, 9),)]),
)


@settings(max_examples=150, deadline=None)
@given(
    params=PARAMS,
    seed=st.integers(0, 10_000),
    num_output=st.integers(0, 8),
    num_drafts=st.integers(0, 4),
)
def test_every_row_has_the_law_of_transformers(params, seed, num_output, num_drafts):
    prompt, output = random_text(seed, 6), random_text(seed + 1, num_output)
    drafts = random_text(seed + 2, num_drafts)
    logits = random_logits(seed, num_drafts + 1)
    rows = logit_rows(params, prompt, output, drafts, frozenset({STOP}))
    ours = probs(adjust_logits(logits, [rows]), params)
    for row in range(num_drafts + 1):
        history = [*output, *drafts[:row]]
        theirs = transformers_probs(logits[row : row + 1], params, prompt, history)
        assert torch.allclose(ours[row], theirs, atol=1e-12), row


def test_bad_word_is_found_across_prompt_output_and_drafts():
    params = SamplingParams(bad_words_token_ids=((1, 2, 3, 4),))
    rows = logit_rows(params, [0, 1], [2], [3, 3])
    adjusted = adjust_logits(torch.zeros(3, VOCAB_SIZE), [rows])
    assert (adjusted == -math.inf).nonzero().tolist() == [[1, 4]]


def test_openai_penalties_count_the_output_alone():
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, with c over sampled tokens (OpenAI)."""
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=-0.25)
    prompt, output, drafts = [1, 1, 2], [2, 3, 3], [3, 4]
    logits = random_logits(0, 3)
    adjusted = adjust_logits(logits, [logit_rows(params, prompt, output, drafts)])
    for row in range(3):
        sampled = [*output, *drafts[:row]]
        for token_id in range(VOCAB_SIZE):
            count = sampled.count(token_id)
            expected = logits[row, token_id] - 0.5 * count + 0.25 * (count > 0)
            assert math.isclose(adjusted[row, token_id], expected, abs_tol=1e-12)


def test_bias_comes_before_the_repetition_penalty_and_that_before_the_others():
    params = SamplingParams(logit_bias={5: 3.0}, repetition_penalty=2.0, presence_penalty=0.5)
    logits = torch.full((1, VOCAB_SIZE), -1.0, dtype=torch.float64)
    adjusted = adjust_logits(logits, [logit_rows(params, [5], [5])])
    assert float(adjusted[0, 5]) == (-1.0 + 3.0) / 2.0 - 0.5
    assert float(adjusted[0, 4]) == -1.0


def test_allowed_tokens_alone_remain():
    params = SamplingParams(allowed_token_ids=(3, 8))
    adjusted = adjust_logits(random_logits(1, 2), [logit_rows(params, [0], [], [3])])
    assert adjusted.isfinite().nonzero().tolist() == [[0, 3], [0, 8], [1, 3], [1, 8]]


def test_min_tokens_masks_by_position():
    params = SamplingParams(min_tokens=3)
    rows = logit_rows(params, [0], [4], [5, 6, 7], frozenset({STOP, 9}))
    adjusted = adjust_logits(random_logits(1, 4), [rows])
    masked = (adjusted == -math.inf).nonzero().tolist()
    assert masked == [[0, STOP], [0, 9], [1, STOP], [1, 9]]


@pytest.mark.parametrize(
    ("params", "left"),
    [
        ({"allowed_token_ids": (STOP,), "min_tokens": 4}, STOP),
        ({"allowed_token_ids": (3,), "bad_words_token_ids": ((3,),)}, 3),
        (
            {
                "allowed_token_ids": (3, STOP),
                "bad_words_token_ids": ((3,),),
                "min_tokens": 4,
            },
            STOP,
        ),
    ],
    ids=["min_tokens", "bad_words", "both"],
)
def test_masks_that_contradict_leave_a_token(params, left):
    rows = logit_rows(SamplingParams(**params), [0], [], [1], frozenset({STOP}))
    adjusted = adjust_logits(random_logits(2, 2), [rows])
    assert adjusted.isfinite().nonzero().tolist() == [[0, left], [1, left]]


def test_ids_beyond_the_vocabulary_are_ignored():
    """A draft's logits may be narrower than the target's ids."""
    beyond = VOCAB_SIZE + 3
    params = SamplingParams(
        logit_bias={beyond: 5.0, 1: 2.0},
        frequency_penalty=1.0,
        allowed_token_ids=(1, 2, 3, beyond),
        bad_words_token_ids=((beyond,), (2,)),
        min_tokens=4,
    )
    logits = torch.zeros(2, VOCAB_SIZE, dtype=torch.float64)
    rows = logit_rows(params, [beyond, 0], [beyond, 1], [3], frozenset({beyond}))
    adjusted = adjust_logits(logits, [rows])
    assert [row[row.isfinite()].tolist() for row in adjusted] == [[1.0, 0.0], [1.0, -1.0]]
    only_beyond = logit_rows(SamplingParams(allowed_token_ids=(beyond,)), [0], [], [1])
    assert torch.equal(adjust_logits(logits, [only_beyond]), logits)


def test_nothing_to_do_is_no_copy():
    logits = random_logits(3, 4)
    plain = logit_rows(SamplingParams(min_tokens=2), [0], [1, 2], [3], frozenset({STOP}))
    assert adjust_logits(logits, [plain, plain]) is logits


def test_raw_logits_and_neighbours_stay_as_they_are():
    logits = random_logits(4, 5)
    before = logits.clone()
    plain = logit_rows(SamplingParams(), [0], [1], [2])
    biased = logit_rows(SamplingParams(logit_bias={1: -100.0}), [0], [1])
    adjusted = adjust_logits(logits, [plain, biased, plain])
    assert torch.equal(logits, before)
    assert torch.equal(adjusted[[0, 1, 3, 4]], before[[0, 1, 3, 4]])
    assert float(adjusted[2, 1]) == float(before[2, 1]) - 100.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_before_anything_is_added(dtype):
    logits = torch.full((1, VOCAB_SIZE), 100.0, dtype=dtype)
    rows = logit_rows(SamplingParams(frequency_penalty=0.01), [0], [5])
    adjusted = adjust_logits(logits, [rows])
    assert adjusted.dtype == torch.float32
    assert float(adjusted[0, 5]) == pytest.approx(99.99, abs=1e-5)


def test_counting_a_token_as_draft_or_as_output_is_bitwise_the_same():
    params = SamplingParams(
        frequency_penalty=0.3, presence_penalty=0.1, repetition_penalty=1.3, top_p=0.9
    )
    logits = random_logits(5, 1).float()
    drafts = [3, 3, 3, 8, 3]
    together = adjust_logits(logits.repeat(6, 1), [logit_rows(params, [8], [3], drafts)])
    for row in range(6):
        alone = adjust_logits(logits, [logit_rows(params, [8], [3, *drafts[:row]])])
        assert torch.equal(alone[0], together[row])
        assert torch.equal(
            filtered_logits(alone, params)[0], filtered_logits(together, params)[row]
        )


def test_filters_keep_all_that_tie_with_the_last_one():
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.2, 0.1]], dtype=torch.float64))
    for params, kept in [
        (SamplingParams(top_k=2), [1, 2, 3]),
        (SamplingParams(top_p=0.5), [1, 2, 3]),
        (SamplingParams(top_p=0.3), [1]),
        (SamplingParams(min_p=0.45), [1, 2, 3]),
        (SamplingParams(min_p=1.0), [1]),
        (SamplingParams(top_k=1), [1]),
    ]:
        assert probs(logits, params)[0].nonzero().flatten().tolist() == kept


def test_nucleus_ends_where_the_mass_is_reached_exactly():
    logits = torch.tensor([[-math.log(2), 0.0, -math.log(2)]], dtype=torch.float64)
    assert torch.softmax(logits, -1)[0].tolist() == [0.25, 0.5, 0.25]
    assert probs(logits, SamplingParams(top_p=0.5))[0].tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("temperature", [1e-3, 1e-300, 5e-324])
@pytest.mark.parametrize("magnitude", [1.0, 1e30, -1e30])
def test_tiny_temperature_is_nearly_greedy_and_never_nan(temperature, magnitude):
    logits = magnitude + torch.tensor([[0.0, 3.0, 1.0]], dtype=torch.float64) * abs(magnitude)
    params = SamplingParams(temperature=temperature, top_p=0.9, min_p=0.1, top_k=2)
    assert probs(logits, params)[0].tolist() == [0.0, 1.0, 0.0]
    unfiltered = SamplingParams(temperature=temperature)
    assert probs(logits, unfiltered)[0].tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0])
def test_top_p_of_a_large_flat_row(spread):
    """More tokens in the nucleus than are sorted at once."""
    logits = random_logits(6, 2, 6000, spread)
    ours = probs(logits, SamplingParams(top_p=0.97))
    for row, original in zip(ours, torch.softmax(logits, -1), strict=True):
        kept = original[row > 0]
        assert float(kept.sum()) >= 0.97 - 1e-12
        if spread:
            assert float(kept.sum() - kept.min()) < 0.97
            assert float(original[row == 0].max()) < float(kept.min())


def test_a_row_alone_is_bitwise_the_row_among_eight():
    logits = random_logits(7, 8, 1000)
    params = SamplingParams(temperature=0.7, top_k=300, top_p=0.8, min_p=0.01)
    together = filtered_logits(logits, params)
    for row in range(8):
        assert torch.equal(filtered_logits(logits[row : row + 1], params)[0], together[row])


@pytest.mark.parametrize("num_tokens", [1, 2, 255, 256, 257, 511, 512, 513, 1025, 4096])
@pytest.mark.parametrize("num_levels", [1, 3, 40])
def test_the_nucleus_of_a_row_with_ties_is_that_of_its_sorted_list(num_tokens, num_levels):
    """Masses are multiples of a power of two, so that every sum is exact whatever its order."""
    draw = random.Random(num_tokens * num_levels)
    weights = [draw.choice(range(1, num_levels + 1)) for _ in range(num_tokens)]
    unit = 2.0 ** -math.ceil(math.log2(sum(weights)))
    weights.append(round(1 / unit) - sum(weights))  # the masses sum to 1
    order = sorted(weights, reverse=True)
    sums = list(itertools.accumulate(order))
    token_probs = torch.tensor(weights, dtype=torch.float64) * unit
    for place in {0, 1, 255, 256, 257, num_tokens // 2, num_tokens} & {*range(len(order))}:
        for mass in (sums[place] - 0.5, sums[place], sums[place] + 0.5):
            top_p = mass * unit
            if not 0 < top_p < 1:
                continue
            smallest = order[next(n for n, total in enumerate(sums) if total >= mass)]
            assert float(processors._smallest_in_nucleus(token_probs, top_p)) == smallest * unit
