"""Rounds along a text, against every outcome of the verification itself, written out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specdec.simulation.characterization.overlap import coupled_mass, rejection_mass
from specdec.simulation.characterization.rounds import consecutive, tokens_and_rounds
from specdec.simulation.theory import expected_tokens

VOCAB = 2
K = 2
LENGTH = 5


def law(text: tuple[int, ...], salt: int) -> np.ndarray:
    """A law over two tokens that depends on the whole text."""
    share = 0.1 + 0.8 * ((hash((*text, salt)) % 97) / 97)
    return np.array([share, 1 - share])


def target_law(text):
    return law(text, 1)


def draft_law(text):
    return law(text, 2)


def test_equal_acceptance_everywhere_is_the_closed_formula():
    num_tokens, num_rounds = tokens_and_rounds(consecutive(np.full(60, 0.7), 4))
    assert num_tokens / num_rounds == pytest.approx(expected_tokens(0.7, 4))


def test_certain_acceptance_strides_by_k_plus_one():
    # Text of 12, K 3: rounds start at 1 and 5; one at 9 would need position 12 for its bonus.
    assert tokens_and_rounds(consecutive(np.ones(12), 3)) == (8.0, 2.0)
    assert tokens_and_rounds(consecutive(np.zeros(12), 3)) == (8.0, 8.0)


def test_a_text_that_no_round_fits_into_counts_none():
    for length in range(6):
        assert tokens_and_rounds(consecutive(np.full(length, 0.5), 5)) == (0.0, 0.0)


def test_mixed_acceptance_equals_every_path():
    acceptance = np.random.default_rng(3).random((7, 3))

    def walk(start: int, chance: float) -> np.ndarray:
        if start >= len(acceptance):
            return np.zeros(2)
        total = np.zeros(2)
        for accepted in range(4):
            outcome = np.prod(acceptance[start, :accepted])
            if accepted < 3:
                outcome *= 1 - acceptance[start, accepted]
            total += chance * outcome * np.array([1 + accepted, 1])
            total += walk(start + accepted + 1, chance * outcome)
        return total

    assert tokens_and_rounds(acceptance) == pytest.approx(tuple(walk(1, 1.0)))


def rejection_outcomes(text):
    """Draft, accept or reject, and the recovered token: (accepted, token, chance) at one place."""
    target, draft = target_law(text), draft_law(text)
    residual = np.maximum(target - draft, 0)
    for drafted in range(VOCAB):
        accept = min(1.0, target[drafted] / draft[drafted])
        yield True, drafted, draft[drafted] * accept
        for token in range(VOCAB):
            if accept < 1:
                chance = residual[token] / residual.sum()
                yield False, token, draft[drafted] * (1 - accept) * chance


def coupled_outcomes(text, steps: int = 2000):
    """Both sides draw with the same exponentials; for two tokens only their share matters."""
    share = (np.arange(steps) + 0.5) / steps
    noise = np.stack([share, 1 - share])
    own = (noise / target_law(text)[:, None]).argmin(axis=0)
    drafted = (noise / draft_law(text)[:, None]).argmin(axis=0)
    for token in range(VOCAB):
        yield True, token, np.mean((own == token) & (drafted == token))
        yield False, token, np.mean((own == token) & (drafted != token))


def speculate(outcomes) -> np.ndarray:
    """Expected (tokens, rounds) over whole rounds, by playing every outcome of every round."""

    def play(text, start, accepted, chance):
        if chance == 0 or start >= LENGTH - K:
            return np.zeros(2)
        if accepted == K:
            ends = [(False, token, share) for token, share in enumerate(target_law(text))]
        else:
            ends = outcomes(text)
        total = np.zeros(2)
        for is_accepted, token, share in ends:
            longer = (*text, token)
            if is_accepted:
                total += play(longer, start, accepted + 1, chance * share)
            else:
                total += chance * share * np.array([accepted + 1, 1])
                total += play(longer, len(longer), 0, chance * share)
        return total

    return sum(play((token,), 1, 0, share) for token, share in enumerate(target_law(())))


def read(mass_of) -> np.ndarray:
    """The same by reading every text once, weighted by the target's chance to write it."""
    total = np.zeros(2)
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        chance, given = 1.0, []
        for position, token in enumerate(text):
            target, draft = target_law(text[:position]), draft_law(text[:position])
            given.append(mass_of(target, draft)[token] / target[token])
            chance *= target[token]
        total += chance * np.array(tokens_and_rounds(consecutive(np.array(given), K)))
    return total


def test_reading_a_text_gives_the_rounds_of_rejection_sampling():
    np.testing.assert_allclose(read(rejection_mass), speculate(rejection_outcomes), rtol=1e-12)


def test_reading_a_text_gives_the_rounds_of_coupled_sampling():
    np.testing.assert_allclose(read(coupled_mass), speculate(coupled_outcomes), rtol=2e-3)
