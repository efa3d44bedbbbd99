"""Counter-based randomness: Philox4x32-10 (Salmon et al., SC 2011) and the draws made of it.

A draw is a pure function of (seed, domain, position, index, round): no state, no stream, nothing
shared between requests, the same on every machine. Test vectors for other languages are in
protos/philox4x32_10.json. This module knows nothing of who uses a draw; the domains say why.
"""

from __future__ import annotations

import enum
from typing import TypeAlias, cast

import torch
from torch import Tensor

MASK32 = 0xFFFFFFFF
NUM_ROUNDS = 10
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85

# Bounds of gumbel_noise: -log(-log(u)) at its first and last uniform.
MIN_NOISE, MAX_NOISE = -3.61, 36.74


class Domain(enum.IntEnum):
    """What a draw is for. Equal counters in two domains give independent numbers."""

    GUMBEL = 1  # coupled noise: index = token id >> 1, no round
    PROPOSAL = 2  # the draft's sample from its law; round = proposal counter
    ACCEPTANCE = 3  # the target's acceptance of a draft token; round = verify round
    RESIDUAL = 4  # the recovered, bonus or only token; round = verify round


Word: TypeAlias = int | Tensor


def philox4x32(
    counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]
) -> tuple[Word, Word, Word, Word]:
    """Four 32-bit words from a 128-bit counter and a 64-bit key, all as 32-bit words.

    Python integers and int64 tensors (broadcast together) take the same path: a product that
    overflows int64 wraps, and its two halves are still right after the masks. Only what is
    multiplied next needs to be masked within the rounds.
    """
    word_0, word_1, word_2, word_3 = counter
    key_0, key_1 = key
    for _ in range(NUM_ROUNDS):
        product_0 = word_0 * MULTIPLIER_0
        product_1 = word_2 * MULTIPLIER_1
        word_0 = ((product_1 >> 32) ^ word_1 ^ key_0) & MASK32
        word_2 = ((product_0 >> 32) ^ word_3 ^ key_1) & MASK32
        word_1, word_3 = product_1, product_0
        # Python integers would otherwise grow from round to round.
        key_0, key_1 = (key_0 + WEYL_0) & MASK32, (key_1 + WEYL_1) & MASK32
    return word_0, word_1 & MASK32, word_2, word_3 & MASK32


def seed_key(seed: int) -> tuple[int, int]:
    """The Philox key of a 64-bit seed, signed or unsigned: low word, high word."""
    return seed & MASK32, (seed >> 32) & MASK32


def _draw_bits(seed: int, domain: Domain, position: int, index: int, round: int) -> int:
    """64 random bits: the first two words of the block."""
    counter = (index & MASK32, position & MASK32, round & MASK32, int(domain))
    high, low, _, _ = philox4x32(counter, seed_key(seed))
    return (int(high) << 32) | int(low)


def uniform(seed: int, domain: Domain, position: int, index: int = 0, round: int = 0) -> float:
    """A uniform in [0, 1) with 53 bits: 0 can occur, 1 cannot."""
    return (_draw_bits(seed, domain, position, index, round) >> 11) * 2.0**-53


def uniform_integer(
    bound: int, seed: int, domain: Domain, position: int, index: int = 0, round: int = 0
) -> int:
    """A uniform integer in [0, bound), off by at most bound / 2**64 in probability."""
    return (_draw_bits(seed, domain, position, index, round) * bound) >> 64


def gumbel_noise(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Gumbel(0, 1) noise, float64 [n], for the given token ids (int64 [n]) at one position.

    Depends on (seed, absolute position, token id) alone: not on which other ids are asked for.
    One Philox block serves two neighbouring ids.
    """
    word_0, word_1, word_2, word_3 = _gumbel_block(seed, position, token_ids >> 1)
    is_odd = (token_ids & 1).bool()
    return _gumbel_from_words(
        torch.where(is_odd, word_2, word_0), torch.where(is_odd, word_3, word_1)
    )


def gumbel_noise_row(seed: int, position: int, vocab_size: int, device: torch.device) -> Tensor:
    """`gumbel_noise` of all token ids 0 .. vocab_size - 1, at half the price per token."""
    blocks = torch.arange((vocab_size + 1) // 2, device=device)
    word_0, word_1, word_2, word_3 = _gumbel_block(seed, position, blocks)
    even, odd = _gumbel_from_words(word_0, word_1), _gumbel_from_words(word_2, word_3)
    return torch.stack((even, odd), dim=1).flatten()[:vocab_size]


def _gumbel_block(
    seed: int, position: int, block_ids: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    words = philox4x32((block_ids, position & MASK32, 0, int(Domain.GUMBEL)), seed_key(seed))
    return cast("tuple[Tensor, Tensor, Tensor, Tensor]", words)


def _gumbel_from_words(high: Tensor, low: Tensor) -> Tensor:
    """-log(-log(1 - v)) of the 52-bit uniform v = (n + 1/2) / 2**52.

    52 bits, since the half step must be representable: v is then never 0 or 1. log1p keeps the
    upper tail (small v), where the winner of an argmax comes from, exact to the last bit.
    """
    steps = (high << 20) | (low >> 12)
    uniforms = steps.double().add_(0.5).mul_(2.0**-52)
    return uniforms.neg_().log1p_().neg_().log_().neg_()
