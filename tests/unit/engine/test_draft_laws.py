"""Rejection and block mode: the law on the wire is the law that the token was drawn from, and no
draw is ever used twice."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

from specdec.engine import draft_engine
from specdec.params import SamplingParams, SpeculationParams
from specdec.sampling.law import TOTAL_WEIGHT
from tests.unit.engine.draft_harness import (
    BLOCK,
    Clock,
    Peer,
    PoolExecutor,
    context_logits,
    make_engine,
    run_idle,
)

PROMPT = list(range(1, 12))


def softmax_law(context, temperature=0.9):
    return torch.tensor(context_logits(context) / temperature).softmax(0).numpy()


def test_each_law_is_the_models_own_at_its_position():
    peer = Peer(make_engine(), PROMPT, BLOCK)
    answer = peer.ask([5], 6)
    assert len(answer.laws) == len(answer.token_ids) == 6
    for index, (token_id, law) in enumerate(zip(answer.token_ids, answer.laws, strict=True)):
        expected = softmax_law([*peer.text, *answer.token_ids[:index]])
        kept = expected[law.ids]
        assert int(law.weights.sum(dtype=np.int64)) == TOTAL_WEIGHT
        assert kept.sum() >= 0.98
        assert law.prob(token_id) > 0
        np.testing.assert_allclose(law.probs, kept / kept.sum(), atol=1.0 / TOTAL_WEIGHT)


def test_law_size_is_the_operators():
    peer = Peer(make_engine(max_law_entries=3), PROMPT, BLOCK)
    assert {len(law.ids) for law in peer.ask([5], 6).laws} == {3}


def test_tokens_follow_the_law_over_rounds():
    """One position asked again and again: with a fresh draw each round, the frequencies are the
    law's. 2000 draws, chi-square at its 0.999 quantile; the seed is fixed."""
    peer = Peer(make_engine(max_law_entries=6), PROMPT, BLOCK)
    law = peer.ask([5], 1).laws[0]
    counts = collections.Counter(peer.ask([], 1).token_ids[0] for _ in range(2000))
    assert set(counts) <= set(law.ids.tolist())
    expected = law.probs * 2000
    observed = np.array([counts[token_id] for token_id in law.ids.tolist()])
    assert len(law.ids) == 6
    assert ((observed - expected) ** 2 / expected).sum() < 20.5  # 5 degrees of freedom


@pytest.mark.parametrize("verification", ["rejection", "block"])
def test_no_draw_is_used_twice(verification, monkeypatch):
    """Over rejections, a missed deadline, an eviction and a resync, each drafted position gets a
    counter that this position has not had."""
    draws = []
    real = draft_engine.sample_draft

    def spy(logits, items):
        draws.extend((item.position, item.proposal) for item in items)
        return real(logits, items)

    monkeypatch.setattr(draft_engine, "sample_draft", spy)
    clock = Clock()
    engine = make_engine(PoolExecutor(num_blocks=8, clock=clock, pass_s=0.01), clock)
    params = SamplingParams(
        temperature=0.9,
        max_tokens=99,
        ignore_eos=True,
        speculation=SpeculationParams(verification=verification),
    )
    peer = Peer(engine, PROMPT, params)
    for num_accepted in (0, 2, 0, 1, 4, 0):
        drafted = peer.ask([7], 4).token_ids
        peer.commit(drafted[:num_accepted], k=0)
    peer.ask([8], 4, deadline_ms=25.0)
    peer.ask([], 4)
    clock.advance(31.0)
    Peer(engine, [*range(20, 36)], params, session_id=2).close()
    peer.ask([], 4)
    peer.open()
    peer.ask([], 4)
    peer.ask([9], 4)
    assert len(draws) > 35
    assert len(set(draws)) == len(draws)


def test_a_law_in_hand_is_drawn_anew_for_the_next_ask():
    """In coupled mode tokens in hand are reused; here they must not be."""
    engine = make_engine()
    peer = Peer(engine, PROMPT, BLOCK)
    run_idle(engine)
    engine.executor.plans.clear()
    first = peer.ask([5], 4)
    assert len(engine.executor.plans) == 4
    second = peer.ask(first.token_ids[:1], 3)
    assert len(engine.executor.plans) == 7
    third = peer.ask([], 3)
    assert len(engine.executor.plans) == 10
    assert len({tuple(m.token_ids) for m in (second, third)}) == 2
    # The law is the model's, whatever was drawn before: the same for the same text.
    np.testing.assert_array_equal(second.laws[0].weights, third.laws[0].weights)
    np.testing.assert_array_equal(second.laws[0].weights, first.laws[1].weights)
