"""The verification rules on cases worked out by hand, edge cases, and the selection trap."""

import itertools

import numpy as np
import pytest
import torch

from specdec.params import SamplingParams
from specdec.sampling.draft_sampler import DraftItem, sample_draft
from specdec.sampling.law import SparseLaw
from specdec.sequence import Verification
from specdec.speculation.verifier import (
    Verdict,
    block_scales,
    block_thresholds,
    rejection_thresholds,
    residual_weights,
    sample_weights,
    verify_block,
    verify_equal,
    verify_rejection,
)

SAMPLED = (Verification.REJECTION, Verification.BLOCK)
RULES = {Verification.REJECTION: verify_rejection, Verification.BLOCK: verify_block}


def law(*token_probs):
    return SparseLaw.from_probs(np.array(token_probs), len(token_probs), min_mass=1.0)


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def table_logits(context, vocab_size=11, salt=0):
    """Logits of a small table model: any two contexts have unrelated ones."""
    state = salt + 1
    for token_id in context:
        state = (state * 31 + token_id + 7) % 2_147_483_647
    generator = torch.Generator().manual_seed(state)
    return 1.5 * torch.randn(vocab_size, dtype=torch.float64, generator=generator)


def test_equal_tokens_are_accepted_up_to_the_first_difference():
    assert verify_equal([5, 6, 7], [5, 6]) == Verdict(2, 7)
    assert verify_equal([5, 6, 7], [5, 4]) == Verdict(1, 6)
    assert verify_equal([5, 6, 7], [4, 6]) == Verdict(0, 5)
    assert verify_equal([5], []) == Verdict(0, 5)


def test_a_draft_that_says_one_law_and_samples_another_biases_and_one_hot_does_not():
    """Starred case 6: the draft takes the argmax of [0.8, 0.2]; the target is [0.6, 0.4]."""
    target = tensor([0.6, 0.4], [1.0, 0.0])

    def first_token_law(laws):
        (threshold,) = rejection_thresholds(target, [0], laws)
        recovered = residual_weights(target, [0], laws, 0, 1.0)
        recovered = recovered / recovered.sum()
        return torch.tensor([threshold, 0.0]) + (1 - threshold) * recovered

    assert torch.allclose(first_token_law([]), tensor(0.6, 0.4), atol=1e-12)
    assert torch.allclose(first_token_law([law(0.8, 0.2)]), tensor(0.75, 0.25), atol=1e-12)


def trap_output_law(submits):
    """Law of the next token for target [0.5, 0.5], draft [0.8, 0.2], where `submits(token_id)`
    says whether a sampled draft token is sent."""
    target, draft = tensor([0.5, 0.5], [0.5, 0.5]), law(0.8, 0.2)
    output = torch.zeros(2, dtype=torch.float64)
    for token_id in (0, 1):
        if not submits(token_id):
            output += draft.prob(token_id) * target[0]
            continue
        (threshold,) = rejection_thresholds(target, [token_id], [draft])
        residual = residual_weights(target, [token_id], [draft], 0, 1.0)
        output[token_id] += draft.prob(token_id) * threshold
        output += draft.prob(token_id) * (1 - threshold) * residual / residual.sum()
    return output


def test_selection_trap_dropping_a_token_by_its_own_value_biases():
    """Design section 3: keep the draft token only where the draft gave it at least 0.5."""
    biased = trap_output_law(lambda token_id: token_id == 0)
    assert torch.allclose(biased, tensor(0.6, 0.4), atol=1e-12)


@pytest.mark.parametrize("send", [True, False])
def test_selection_trap_deciding_before_sampling_does_not_bias(send):
    assert torch.allclose(trap_output_law(lambda token_id: send), tensor(0.5, 0.5), atol=1e-12)


@pytest.mark.parametrize("verification", SAMPLED)
def test_sampler_returns_a_token_for_every_row_whatever_was_sampled(verification):
    """The draft's sampler has no way to hold back a token that it has sampled."""
    logits = torch.stack([table_logits((n,)) for n in range(20)])
    items = [DraftItem(SamplingParams(), 3, verification, n, 0, 8) for n in range(20)]
    drafted = sample_draft(logits, items)
    assert len(drafted) == len(items)
    assert all(draft_law.prob(token_id) > 0 for token_id, draft_law in drafted)


@pytest.mark.parametrize("verification", SAMPLED)
def test_token_that_the_target_excludes_is_never_accepted(verification):
    target = tensor([0.0, 0.3, 0.7], [1.0, 0.0, 0.0])
    for draw in (0.0, 0.5, 1 - 2.0**-53):
        verdict = RULES[verification](target, [0], [law(0.5, 0.25, 0.25)], [0.0], draw)
        assert verdict.num_accepted_tokens == 0
        assert verdict.next_token_id in (1, 2)


@pytest.mark.parametrize("verification", SAMPLED)
def test_equal_laws_are_always_accepted_and_leave_no_residual(verification):
    draft = law(0.25, 0.75)
    row = torch.from_numpy(draft.probs)
    target = torch.stack([row, row, row])
    last = 1 - 2.0**-53
    for tokens in itertools.product((0, 1), repeat=2):
        verdict = RULES[verification](target, tokens, [draft, draft], [last, last], 0.0)
        assert verdict == Verdict(2, 0)
    assert torch.equal(residual_weights(target, [0, 0], [draft, draft], 1, 1.0), row)


@pytest.mark.parametrize("verification", SAMPLED)
def test_one_hot_residual_is_the_target_without_the_draft_token(verification):
    target = tensor([0.2, 0.3, 0.5], [1.0, 0.0, 0.0])
    assert torch.equal(residual_weights(target, [1], [], 0, 1.0), tensor(0.2, 0.0, 0.5))
    assert RULES[verification](target, [1], [], [0.29], 0.0) == Verdict(1, 0)
    assert RULES[verification](target, [1], [], [0.31], 0.28) == Verdict(0, 0)
    assert RULES[verification](target, [1], [], [0.31], 0.29) == Verdict(0, 2)


def test_block_thresholds_by_hand():
    """Two tokens, both drafts 0, target [0.6, 0.4] against draft [0.8, 0.2] at each position.

    s = 1, 0.75, 0.5625; Z after one token = max(0.75 * 0.4 - 0.2, 0) = 0.1, so
    h = 0.1 / (0.1 + 0.25), 0.5625.
    """
    target = tensor([0.6, 0.4], [0.6, 0.4], [0.6, 0.4])
    laws = [law(0.8, 0.2)] * 2
    scales = block_scales(target, [0, 0], laws)
    assert scales == pytest.approx([1.0, 0.75, 0.5625], abs=1e-12)
    thresholds = block_thresholds(target, [0, 0], laws, scales)
    assert thresholds == pytest.approx([0.1 / 0.35, 0.5625], abs=1e-12)


def test_sampled_token_has_weight_at_both_ends_of_the_range():
    weights = tensor(0.0, 0.1, 0.0, 0.2, 0.0)
    assert sample_weights(weights, 0.0) == 1
    assert sample_weights(weights, 1 - 2.0**-53) == 3
    tiny = tensor(0.0, 3e-320, 0.0)
    assert sample_weights(tiny, 0.999) == 1
    for seed in range(200):
        logits = table_logits((seed,), 50).mul(20)
        row = torch.softmax(logits, 0)
        row[row < row.median()] = 0
        for draw in (0.0, 1 - 2.0**-53):
            assert row[sample_weights(row, draw)] > 0
