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


class Domain(enum.IntEnum):
    """What a draw is for. Equal counters in two domains give independent numbers."""

    GUMBEL_HIGH = 1  # coupled noise, upper 32 bits: index = token id >> 2, no round
    GUMBEL_LOW = 2  # coupled noise, lower 20 bits
    PROPOSAL = 3  # the draft's sample from its law; round = proposal counter
    ACCEPTANCE = 4  # the target's acceptance of a draft token; round = verify round
    RESIDUAL = 5  # the recovered, bonus or only token; round = verify round


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
    It is -log(-log(1 - v)) of the 52-bit uniform v = (n + 1/2) / 2**52. 52 bits, since the half
    step must be representable: v is never 0 or 1. log1p keeps the upper tail (small v), where the
    winner of an argmax comes from, exact to the last bit.
    """
    domains = torch.tensor([[Domain.GUMBEL_HIGH], [Domain.GUMBEL_LOW]], device=token_ids.device)
    block = torch.stack(_noise_block(seed, domains, position, token_ids >> 2))
    high, low = block.gather(0, (token_ids & 3).expand(1, 2, -1))[0]
    steps = (high << 20) | (low >> 12)
    uniforms = (steps.double() + 0.5) * 2.0**-52
    return -torch.log(-torch.log1p(-uniforms))


def gumbel_uniform_floor(seed: int, position: int, vocab_size: int, device: torch.device) -> Tensor:
    """A lower bound of the uniform v behind each token's noise: float64 [vocab_size].

    0 < bound <= v < bound + 2**-32, from the upper bits alone: four tokens for one block.
    """
    block_ids = torch.arange((vocab_size + 3) // 4, device=device)
    block = _noise_block(seed, int(Domain.GUMBEL_HIGH), position, block_ids)
    high = torch.stack([word.double() for word in block], dim=1).flatten()[:vocab_size]
    return high.mul_(2.0**-32).add_(2.0**-53)


def _noise_block(
    seed: int, domain: Word, position: int, block_ids: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    words = philox4x32((block_ids, position & MASK32, 0, domain), seed_key(seed))
    return cast("tuple[Tensor, Tensor, Tensor, Tensor]", words)
