"""Coupled sampling: the pruned argmax against the plain one, its law, and its collisions."""

import math

import pytest
import torch

from specdec.params import SamplingParams
from specdec.sampling.coupled import coupled_tokens, gumbel_argmax
from specdec.sampling.philox import gumbel_noise


def random_scores(seed, vocab_size, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(vocab_size, dtype=torch.float64, generator=generator)


def plain_argmax(scores, seed, position):
    return int((scores + gumbel_noise(seed, position, torch.arange(len(scores)))).argmax())


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 5, 101, 4096])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 200.0])
def test_pruning_never_changes_the_winner(vocab_size, spread):
    scores = random_scores(1, vocab_size, spread)
    for position in range(60):
        assert gumbel_argmax(scores, 9, position) == plain_argmax(scores, 9, position)


@pytest.mark.parametrize("num_kept", [1, 2, 50, 1000, 4000])
def test_excluded_tokens_never_win(num_kept):
    scores = random_scores(2, 4096)
    excluded = torch.randperm(4096, generator=torch.Generator().manual_seed(3))[num_kept:]
    scores[excluded] = -math.inf
    for position in range(40):
        winner = gumbel_argmax(scores, 5, position)
        assert winner == plain_argmax(scores, 5, position)
        assert scores[winner] > -math.inf


def noise_fields(seed, num_tokens):
    """Many independent noise fields over `num_tokens` tokens: [n, num_tokens]."""
    token_ids = torch.arange(num_tokens * 4000)
    rows = [gumbel_noise(seed, position, token_ids) for position in range(20)]
    return torch.cat(rows).view(-1, num_tokens)


def test_winner_is_drawn_from_the_softmax():
    target = torch.tensor([0.45, 0.3, 0.15, 0.07, 0.03], dtype=torch.float64)
    winners = (target.log() + noise_fields(8, 5)).argmax(-1)
    expected = target * len(winners)
    counts = winners.bincount(minlength=5)
    assert float(((counts - expected) ** 2 / expected).sum()) < 18.5  # 0.999, 4 degrees


def test_collisions_follow_the_formula():
    """P(both = i) = 1 / sum_j max(target_j / target_i, draft_j / draft_i), literature 3.2."""
    target = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    draft = torch.tensor([0.3, 0.3, 0.1, 0.3], dtype=torch.float64)
    noise = noise_fields(3, 4)
    target_ids = (target.log() + noise).argmax(-1)
    draft_ids = (draft.log() + noise).argmax(-1)
    both = target_ids[target_ids == draft_ids].bincount(minlength=4) / len(noise)
    for i in range(4):
        expected = 1 / float(torch.maximum(target / target[i], draft / draft[i]).sum())
        deviation = math.sqrt(expected * (1 - expected) / len(noise))
        assert abs(float(both[i]) - expected) < 3.5 * deviation
    total_variation = float((target - draft).abs().sum()) / 2
    assert float(both.sum()) > (1 - total_variation) / (1 + total_variation)


def test_token_depends_on_seed_and_absolute_position_alone():
    logits = torch.stack([random_scores(row, 500) for row in range(6)])
    params = SamplingParams(temperature=0.8, top_p=0.95)
    together = list(coupled_tokens(logits, params, 77, 100))
    alone = [next(coupled_tokens(logits[row : row + 1], params, 77, 100 + row)) for row in range(6)]
    assert together == alone
    same_row = logits[:1].repeat(60, 1)
    assert len(set(coupled_tokens(same_row, params, 77, 0))) > 10
    assert list(coupled_tokens(same_row, params, 77, 0)) != list(
        coupled_tokens(same_row, params, 78, 0)
    )


def test_rows_behind_a_rejection_are_not_computed(monkeypatch):
    from specdec.sampling import coupled

    computed = []

    def counted(scores, seed, position):
        computed.append(position)
        return gumbel_argmax(scores, seed, position)

    monkeypatch.setattr(coupled, "gumbel_argmax", counted)
    next(coupled_tokens(torch.zeros(5, 10), SamplingParams(), 1, 40))
    assert computed == [40]
