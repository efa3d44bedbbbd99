"""Exactness of the sampling rules by enumeration: every proposal, acceptance and residual draw.

A draw is replaced by the intervals between its thresholds; each interval is entered once, with
its length as probability, over as many rounds as a text needs. The law of the committed text is
then a finite sum, compared with the target's own law (a plain product over positions) at 1e-12.
"""

import itertools
import math
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch

from specdec.params import SamplingParams
from specdec.sampling.law import SparseLaw
from specdec.sampling.processors import probs
from specdec.speculation.verifier import (
    block_scales,
    block_thresholds,
    rejection_thresholds,
    residual_weights,
    verify_block,
    verify_rejection,
)

RULES = {"rejection": verify_rejection, "block": verify_block}


@cache
def random_logits(seed, context, vocab_size, spread=1.5):
    """Logits of a small table model: any two contexts have unrelated ones."""
    state = seed + 1
    for token_id in context:
        state = (state * 31 + token_id + 7) % 2_147_483_647
    generator = torch.Generator().manual_seed(state)
    return spread * torch.randn(vocab_size, dtype=torch.float64, generator=generator)


def plain_law(logits, params):
    """Temperature, top-k, top-p and min-p written out for a handful of tokens, without ties."""
    weights = [math.exp(value / params.temperature) for value in logits.tolist()]
    order = sorted(range(len(weights)), key=lambda token_id: -weights[token_id])
    if params.top_k:
        order = order[: params.top_k]
    total = sum(weights[token_id] for token_id in order)
    kept, mass = [], 0.0
    for token_id in order:
        if mass >= params.top_p * total:
            break
        kept.append(token_id)
        mass += weights[token_id]
    kept = [token_id for token_id in kept if weights[token_id] >= params.min_p * weights[order[0]]]
    total = sum(weights[token_id] for token_id in kept)
    return [weights[t] / total if t in kept else 0.0 for t in range(len(weights))]


@dataclass
class Case:
    """A target, a draft that differs by context and round, and how they are joined."""

    rule: str
    vocab_size: int
    k: int
    num_tokens: int
    params: SamplingParams = field(default_factory=SamplingParams)
    max_law_entries: int = 8
    one_hot: bool = False
    keyed_by_round: bool = True
    seed: int = 0

    def target_logits(self, context):
        return random_logits(self.seed, context, self.vocab_size)

    def draft_law(self, context, round):
        """The draft's own, noisy opinion; in later rounds it conditions on committed text."""
        noise = random_logits(self.seed + 1000 + round, context, self.vocab_size, 0.8)
        draft_probs = probs((self.target_logits(context) + noise)[None], self.params)[0].numpy()
        if self.one_hot:
            return SparseLaw.one_hot(int(draft_probs.argmax()))
        return SparseLaw.from_probs(draft_probs, self.max_law_entries)

    def key(self, domain, position, round):
        return (domain, position, round) if self.keyed_by_round else (domain, position)


def split(draws, key, thresholds):
    """Enter each interval that `thresholds` cut out of a draw's known range: (probability, a
    value inside, the draws with that range known)."""
    low, high = draws.get(key, (0.0, 1.0))
    edges = [low, *sorted(t for t in set(thresholds) if low < t < high), high]
    for start, end in itertools.pairwise(edges):
        yield (end - start) / (high - low), (start + end) / 2, {**draws, key: (start, end)}


def proposals(case, context, round, draws):
    """All (probability, draft tokens, laws, draws) of one round."""
    paths = [(1.0, (), (), draws)]
    for _ in range(case.k):
        longer = []
        for probability, tokens, laws, known in paths:
            law = case.draft_law((*context, *tokens), round)
            key = case.key("proposal", len(context) + len(tokens), round)
            cuts = (law.weights.cumsum(dtype="int64") / 65535).tolist()
            for share, value, now_known in split(known, key, cuts):
                token_id = law.sample(int(value * 65535))
                longer.append((probability * share, (*tokens, token_id), (*laws, law), now_known))
        paths = longer
    return paths


def rounds(case, context, round, draws):
    """All (probability, committed tokens, number accepted, draws) of one verify pass."""
    rule = RULES[case.rule]
    for probability, tokens, laws, known in proposals(case, context, round, draws):
        laws = () if case.one_hot else laws
        rows = [case.target_logits((*context, *tokens[:j])) for j in range(case.k + 1)]
        target = probs(torch.stack(rows), case.params)
        scales = [1.0] * (case.k + 1)
        thresholds = rejection_thresholds(target, tokens, laws)
        if case.rule == "block":
            scales = block_scales(target, tokens, laws)
            thresholds = block_thresholds(target, tokens, laws, scales)
        passes = [(probability, (), known)]
        for j, threshold in enumerate(thresholds):
            key = case.key("acceptance", len(context) + j, round)
            passes = [
                (share * before, (*values, value), after)
                for before, values, now in passes
                for share, value, after in split(now, key, [threshold])
            ]
        for before, values, now in passes:
            num_accepted = rule(target, tokens, laws, values, 0.0).num_accepted_tokens
            weights = residual_weights(target, tokens, laws, num_accepted, scales[num_accepted])
            cuts = (weights.cumsum(0) / weights.sum()).tolist()
            key = case.key("residual", len(context) + num_accepted, round)
            for share, value, after in split(now, key, cuts):
                verdict = rule(target, tokens, laws, values, value)
                assert verdict.num_accepted_tokens == num_accepted
                committed = (*tokens[:num_accepted], verdict.next_token_id)
                yield before * share, committed, num_accepted, after


def output_law(case):
    """The law of the first `num_tokens` committed tokens, over as many rounds as they take."""
    memo = {}

    def law_from(context, round, draws):
        if len(context) >= case.num_tokens:
            return {context[: case.num_tokens]: 1.0}
        # Draws of earlier rounds are never met again when the round is in the key.
        known = {} if case.keyed_by_round else draws
        memo_key = (context, round) if case.keyed_by_round else None
        if memo_key not in memo or memo_key is None:
            law = {}
            for probability, committed, _, after in rounds(case, context, round, known):
                for text, rest in law_from((*context, *committed), round + 1, after).items():
                    law[text] = law.get(text, 0.0) + probability * rest
            memo[memo_key] = law
        return memo[memo_key]

    return law_from((), 0, {})


def target_law(case):
    law = {(): 1.0}
    for _ in range(case.num_tokens):
        law = {
            (*context, token_id): probability * share
            for context, probability in law.items()
            for token_id, share in enumerate(plain_law(case.target_logits(context), case.params))
            if share > 0
        }
    return law


def total_variation(law, other):
    return sum(abs(law.get(t, 0.0) - other.get(t, 0.0)) for t in {*law, *other}) / 2


def assert_exact(case):
    law = output_law(case)
    expected = target_law(case)
    assert math.isclose(sum(law.values()), 1.0, abs_tol=1e-12)
    for text in {*law, *expected}:
        assert math.isclose(law.get(text, 0.0), expected.get(text, 0.0), abs_tol=1e-12), text


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("vocab_size", "k", "num_tokens"),
    [
        (2, 1, 5),
        (2, 2, 5),
        (2, 3, 4),
        (3, 1, 5),
        (3, 2, 4),
        (4, 1, 4),
        (4, 3, 3),
    ],
)
def test_output_law_is_the_targets(rule, vocab_size, k, num_tokens):
    max_law_entries = vocab_size if k < 3 else 3  # the whole law, or it takes too long
    seed = 17 * vocab_size + k
    assert_exact(Case(rule, vocab_size, k, num_tokens, max_law_entries=max_law_entries, seed=seed))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=1.7, top_k=2),
        SamplingParams(top_p=0.7),
        SamplingParams(temperature=1.3, min_p=0.3),
        SamplingParams(temperature=0.9, top_k=3, top_p=0.9, min_p=0.05),
    ],
    ids=["temperature", "top_k", "top_p", "min_p", "all"],
)
def test_output_law_is_the_targets_with_filters(rule, params):
    assert_exact(Case(rule, 4, 2, 3, params, max_law_entries=3, seed=5))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_output_law_is_the_targets_with_a_truncated_law(rule, k):
    """The law drops half of the draft's tokens, so that only the target can bring them."""
    assert_exact(Case(rule, 4, k, 3, max_law_entries=2, seed=k))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_output_law_is_the_targets_with_one_hot_drafts(rule, k):
    assert_exact(Case(rule, 3, k, 5, one_hot=True, seed=k))


@pytest.mark.parametrize("rule", RULES)
def test_the_enumeration_meets_three_rejections_in_a_row(rule):
    """What makes the tests above say something about consecutive rounds."""
    case = Case(rule, 3, 2, 4, seed=8)
    context, probability = (), 1.0
    for round in range(3):
        rejected = [outcome for outcome in rounds(case, context, round, {}) if outcome[2] < case.k]
        share, committed, _, _ = max(rejected, key=lambda outcome: outcome[0])
        context, probability = (*context, *committed[:1]), probability * share
    assert probability > 1e-5
    assert len(context) < case.num_tokens


def test_draws_keyed_by_position_alone_bias_block_verification():
    """Block verification looks at later draft tokens, and at their uniforms, before it discards
    them. Were the same numbers met again in the next round, the output would be biased; with the
    round in the key the very same enumeration is exact."""
    biased = Case("block", 2, 2, 3, seed=2, keyed_by_round=False)
    exact = Case("block", 2, 2, 3, seed=2)
    assert total_variation(output_law(biased), target_law(biased)) > 0.01
    assert total_variation(output_law(exact), target_law(exact)) < 1e-12


def test_block_accepts_at_least_as_many_as_rejection():
    means = {}
    for seed in range(6):
        for rule in RULES:
            case = Case(rule, 3, 3, 3, seed=seed)
            means[rule] = sum(p * n for p, _, n, _ in rounds(case, (), 0, {}))
        assert means["block"] >= means["rejection"] - 1e-12
    assert means["block"] > means["rejection"]


@pytest.mark.parametrize("rule", RULES)
def test_thresholds_are_where_the_rule_really_turns(rule):
    """The enumeration trusts the rule's published thresholds; here they are found by bisection
    of the rule itself."""
    case = Case(rule, 3, 1, 1, seed=3)
    law = case.draft_law((), 0)
    for token_id in law.ids.tolist():
        rows = torch.stack([case.target_logits(()), case.target_logits((token_id,))])
        target = probs(rows, case.params)

        def accepted(value, target=target, token_id=token_id):
            return RULES[rule](target, [token_id], [law], [value], 0.5).num_accepted_tokens

        low, high = 0.0, 1.0
        while math.nextafter(low, 1.0) < high:
            middle = (low + high) / 2
            low, high = (middle, high) if accepted(middle) else (low, middle)
        expected = min(1.0, float(target[0, token_id]) / law.prob(token_id))
        assert math.isclose(high, expected, rel_tol=1e-15)
