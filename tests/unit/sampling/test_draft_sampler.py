"""What a draft sends: the law that it samples from, the target's noise, or an argmax."""

import itertools

import numpy as np
import torch

from specdec.params import SamplingParams
from specdec.sampling.coupled import coupled_tokens
from specdec.sampling.draft_sampler import DraftItem, sample_draft
from specdec.sampling.law import TOTAL_WEIGHT, SparseLaw
from specdec.sampling.philox import Domain, uniform
from specdec.sampling.processors import probs
from specdec.sequence import Verification

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.8, top_k=20)


def random_logits(num_rows, vocab_size=100):
    generator = torch.Generator().manual_seed(num_rows)
    return 2 * torch.randn(num_rows, vocab_size, dtype=torch.float64, generator=generator)


def test_a_mixed_batch():
    logits = random_logits(4)
    items = [
        DraftItem(GREEDY, 1, Verification.GREEDY, 10, 0, 8),
        DraftItem(SAMPLED, 2, Verification.COUPLED, 11, 0, 8),
        DraftItem(SAMPLED, 3, Verification.REJECTION, 12, 0, 8),
        DraftItem(SAMPLED, 4, Verification.BLOCK, 13, 0, 8),
    ]
    greedy, coupled, rejection, block = sample_draft(logits, items)
    assert greedy == (int(logits[0].argmax()), None)
    assert coupled == (next(coupled_tokens(logits[1:2], SAMPLED, 2, 11)), None)
    for row, (token_id, law) in ((2, rejection), (3, block)):
        assert law.validate(100) is None
        assert len(law.ids) == 8
        assert law.prob(token_id) > 0
        likeliest = probs(logits[row : row + 1], SAMPLED)[0].topk(8).indices
        assert set(law.ids.tolist()) == set(likeliest.tolist())


def test_sampled_frequencies_are_those_of_the_law_that_is_sent():
    """Starred case 6: the law on the wire is the law sampled from. Proposal counter and position
    both bring fresh draws."""
    logits = random_logits(1)
    keys = list(itertools.product(range(40), range(50)))
    items = [DraftItem(SAMPLED, 5, Verification.BLOCK, p, n, 6) for p, n in keys]
    drafted = sample_draft(logits.expand(len(keys), -1), items)
    law = drafted[0][1]
    assert all(np.array_equal(other.weights, law.weights) for _, other in drafted)
    counts = np.bincount([token_id for token_id, _ in drafted], minlength=100)[law.ids]
    expected = law.probs * len(keys)
    assert counts.sum() == len(keys)
    assert float(((counts - expected) ** 2 / expected).sum()) < 20.6  # 0.999, 5 degrees


def test_draws_reach_over_the_whole_law(monkeypatch):
    """The integer is the draw of the proposal's own domain, scaled to the law's 65535 units."""
    integers = []
    sample = SparseLaw.sample

    def recorded(self, integer):
        integers.append(integer)
        return sample(self, integer)

    monkeypatch.setattr(SparseLaw, "sample", recorded)
    items = [DraftItem(SAMPLED, 5, Verification.BLOCK, p, 3, 6) for p in range(50)]
    sample_draft(random_logits(50), items)
    draws = [uniform(5, Domain.PROPOSAL, p, round=3) for p in range(50)]
    assert integers == [int(draw * TOTAL_WEIGHT) for draw in draws]


def test_filters_of_the_request_shape_the_law():
    logits = random_logits(2)[:1]
    params = SamplingParams(top_k=3)
    ((_, law),) = sample_draft(logits, [DraftItem(params, 1, Verification.BLOCK, 0, 0, 64)])
    assert sorted(law.ids.tolist()) == sorted(logits[0].topk(3).indices.tolist())
