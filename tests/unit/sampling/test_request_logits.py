"""What a request's parameters cost: built once, counted as the text grows, right at every row."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.params import SamplingParams
from specdec.sampling import penalties
from specdec.sampling.bad_words import BadWords
from specdec.sampling.processors import SequenceRows, adjust_logits
from specdec.sampling.request_logits import RequestLogits
from tests.logit_rows import logit_rows

VOCAB_SIZE = 60


def random_logits(seed, num_rows):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(num_rows, VOCAB_SIZE, dtype=torch.float64, generator=generator)


PARAMS = st.builds(
    SamplingParams,
    logit_bias=st.sampled_from([{}, {3: 1.5, 4: -100.0}]),
    repetition_penalty=st.sampled_from([1.0, 0.6, 1.7]),
    presence_penalty=st.sampled_from([0.0, 1.2]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    min_tokens=st.sampled_from([0, 9]),
    allowed_token_ids=st.sampled_from([None, tuple(range(20))]),
    bad_words_token_ids=st.sampled_from([(), ((3,), (1, 2), (5, 6, 5), (6, 5))]),
    max_tokens=st.just(16),
)


@settings(max_examples=60, deadline=None)
@given(PARAMS, st.integers(0, 10_000), st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_what_is_kept_up_over_steps_is_what_is_built_anew(params, seed, steps):
    """With draft tokens in between that were not accepted, and ids that have no logit."""
    draw = random.Random(seed)
    text, num_prompt = [*draw.choices(range(8), k=5), VOCAB_SIZE + 2], 6
    request = RequestLogits(params, text, num_prompt, frozenset({7}))
    for number, num_drafts in enumerate(steps):
        drafts = draw.choices(range(8), k=num_drafts)
        logits = random_logits(seed + number, num_drafts + 1)
        kept_up = adjust_logits(logits, [SequenceRows(request, drafts)])
        anew = logit_rows(params, text[:num_prompt], text[num_prompt:], drafts, frozenset({7}))
        assert torch.equal(kept_up, adjust_logits(logits, [anew]))
        (last,) = adjust_logits(logits[-1:], [SequenceRows(request, drafts, len(drafts))])
        assert torch.equal(kept_up[-1], last)
        text.extend(draw.choices(range(8), k=num_drafts + 1))


@pytest.mark.parametrize("spread", [3, 40])
def test_bad_words_are_found_as_a_plain_search_finds_them(spread):
    draw = random.Random(spread)
    words = [tuple(draw.choices(range(spread), k=draw.randint(1, 6))) for _ in range(80)]
    automaton = BadWords(words, spread)
    for _ in range(50):
        text, drafts = draw.choices(range(spread), k=9), draw.choices(range(spread), k=4)
        found = [set(ends) for ends in automaton.endings(text, drafts)]
        for row in range(5):
            behind = (*text, *drafts[:row])
            longer = [word for word in words if len(word) > 1]
            expected = {w[-1] for w in longer if behind[1 - len(w) :] == w[:-1]}
            assert found[row] == expected
    assert automaton.single_token_ids == sorted({w[0] for w in words if len(w) == 1})


def test_bad_words_take_one_transition_for_each_token_of_text():
    """The worst that may be asked: words that overlap, and a text that matches nearly all."""
    words = [(1,) * length + (2,) for length in range(2, 100)]
    automaton = BadWords(words, VOCAB_SIZE)
    steps = []
    step = automaton._step
    automaton._step = lambda *arguments: steps.append(1) or step(*arguments)
    ends = list(automaton.endings([1] * 5000, [1] * 8))
    assert len(steps) == 99 + 8
    assert all(set(each) == {2} for each in ends)


def test_tables_are_built_once(monkeypatch):
    params = SamplingParams(
        logit_bias={3: 1.0},
        allowed_token_ids=tuple(range(30)),
        bad_words_token_ids=((4,), (5, 6)),
        frequency_penalty=0.5,
        min_tokens=9,
    )
    text = [1, 2, 3]
    request = RequestLogits(params, text, 3, frozenset({7}))
    adjust_logits(random_logits(0, 3), [SequenceRows(request, [1, 2])])
    tables = request._tables
    text.extend([4, 5])
    monkeypatch.setattr(penalties.np, "unique", lambda *_: pytest.fail("counted again"))
    adjust_logits(random_logits(1, 3), [SequenceRows(request, [1, 2])])
    assert request._tables is tables


def test_a_token_is_counted_once():
    class Read(list):
        def __getitem__(self, key):
            found = super().__getitem__(key)
            num_read[0] += len(found) if isinstance(key, slice) else 1
            return found

    num_read = [0]
    text = Read(range(50))
    request = RequestLogits(SamplingParams(repetition_penalty=1.2), text, 50)
    for _ in range(20):
        text.extend([3, 9])
        adjust_logits(random_logits(0, 5), [SequenceRows(request, [1, 2, 3, 4])])
    assert num_read[0] == 50 + 2 * 20


def test_allowed_tokens_that_the_model_excludes_leave_the_row_as_it_is():
    params = SamplingParams(allowed_token_ids=(3, 8))
    logits = random_logits(1, 2)
    logits[1, [3, 8]] = -math.inf
    adjusted = adjust_logits(logits, [logit_rows(params, [0], [], [3])])
    assert adjusted[0].isfinite().nonzero().flatten().tolist() == [3, 8]
    assert torch.equal(adjusted[1], logits[1])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_each_mask_spares_the_rows_that_it_would_empty(data):
    """Rows of which the model leaves few tokens; against sets, mask after mask, row by row."""
    tokens = st.sets(st.integers(0, 5), min_size=1)
    allowed = data.draw(st.none() | tokens)
    words = data.draw(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=2), max_size=4))
    min_tokens = data.draw(st.integers(0, 4))
    params = SamplingParams(
        allowed_token_ids=None if allowed is None else tuple(allowed),
        bad_words_token_ids=tuple(map(tuple, words)),
        min_tokens=min_tokens,
        logit_bias=data.draw(st.sampled_from([{}, {0: 1.0}])),
        max_tokens=9,
    )
    drafts = data.draw(st.lists(st.integers(0, 5), max_size=3))
    left_by_model = [data.draw(tokens) for _ in range(len(drafts) + 1)]
    logits = torch.full((len(drafts) + 1, 6), -math.inf)
    for row, left in enumerate(left_by_model):
        logits[row, list(left)] = 0.0

    adjusted = adjust_logits(logits, [logit_rows(params, [1], [], drafts, frozenset({2, 3}))])

    for row, left in enumerate(left_by_model):
        last = [1, *drafts][row]
        bad = {word[-1] for word in words if len(word) == 1 or word[0] == last}
        stops = {2, 3} if row < min_tokens else set()
        for excluded in ({*range(6)} - (allowed or {*range(6)}), bad, stops):
            left = left - excluded or left
        assert set(adjusted[row].isfinite().nonzero().flatten().tolist()) == left
