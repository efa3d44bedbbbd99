"""Verification: which draft tokens the target accepts, and the token that follows them.

Pure functions of probabilities, draft tokens and uniforms; the output law is the target's own
whatever the draft proposed (design section 3). `verify_step` is the engine's entry: it brings
each sequence's logits processing, filters and counter-based draws to those functions. Nothing
here knows a model, a scheduler or a wire.

Leviathan et al. 2211.17192 (rejection), Sun et al. 2403.10444 (block), Daliri et al. 2408.07978
(coupled).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec.errors import SpecdecError
from specdec.sampling.coupled import coupled_tokens
from specdec.sampling.law import SparseLaw
from specdec.sampling.philox import Domain, uniform
from specdec.sampling.processors import (
    SequenceRows,
    adjust_logits,
    greedy_tokens,
    makes_law,
    probs,
)
from specdec.sequence import Verification

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one verify pass: `num_accepted_tokens` draft tokens, then `next_token_id`
    (recovered after a rejection, bonus after full acceptance)."""

    num_accepted_tokens: int
    next_token_id: int


@dataclass(slots=True)
class VerifyItem:
    """One sequence in a verify pass.

    `position`: absolute index of the first token that this pass can commit. `round`: the
    sequence's count of verify passes; with a repeated round the output would be biased, since
    block verification looks at later draft tokens before it discards them. `laws`: one for each
    draft token, or empty when every draft token was chosen without a law (one-hot).
    """

    rows: SequenceRows
    verification: Verification
    seed: int
    position: int
    round: int
    laws: list[SparseLaw] = field(default_factory=list)


# --- The rules, as pure functions ---------------------------------------------------------------


def verify_equal(target_token_ids: Iterable[int], draft_token_ids: Sequence[int]) -> Verdict:
    """Greedy and coupled: accept draft tokens while they equal the target's own.

    `target_token_ids` [k + 1] is what the target picks at each position (argmax, or argmax with
    Gumbel noise), read no further than needed. Every emitted token is one of them, so the draft
    cannot change the text.
    """
    own_token_ids = iter(target_token_ids)
    for num_accepted, draft_token_id in enumerate(draft_token_ids):
        own_token_id = next(own_token_ids)
        if own_token_id != draft_token_id:
            return Verdict(num_accepted, own_token_id)
    return Verdict(len(draft_token_ids), next(own_token_ids))


def verify_rejection(
    target_probs: Tensor,
    draft_token_ids: Sequence[int],
    laws: Sequence[SparseLaw],
    acceptance_uniforms: Sequence[float],
    residual_uniform: float,
) -> Verdict:
    """Token by token: accept while uniform < min(1, target / draft) (2211.17192, algorithm 1).

    `target_probs` float64 [k + 1, V]; `laws` [k] or empty; uniforms [k] in [0, 1).
    """
    thresholds = rejection_thresholds(target_probs, draft_token_ids, laws)
    num_accepted = 0
    for threshold, draw in zip(thresholds, acceptance_uniforms, strict=True):
        if draw >= threshold:
            break
        num_accepted += 1
    weights = residual_weights(target_probs, draft_token_ids, laws, num_accepted, 1.0)
    return Verdict(num_accepted, sample_weights(weights, residual_uniform))


def verify_block(
    target_probs: Tensor,
    draft_token_ids: Sequence[int],
    laws: Sequence[SparseLaw],
    acceptance_uniforms: Sequence[float],
    residual_uniform: float,
) -> Verdict:
    """As a block: accept the longest prefix whose uniform is below its threshold (2403.10444).

    Same arguments as `verify_rejection`; accepts at least as many tokens in expectation.
    """
    scales = block_scales(target_probs, draft_token_ids, laws)
    thresholds = block_thresholds(target_probs, draft_token_ids, laws, scales)
    num_accepted = 0
    for length, draw in enumerate(acceptance_uniforms, start=1):
        if draw < thresholds[length - 1]:
            num_accepted = length
    weights = residual_weights(
        target_probs, draft_token_ids, laws, num_accepted, scales[num_accepted]
    )
    return Verdict(num_accepted, sample_weights(weights, residual_uniform))


# --- Their parts --------------------------------------------------------------------------------


def rejection_thresholds(
    target_probs: Tensor, draft_token_ids: Sequence[int], laws: Sequence[SparseLaw]
) -> list[float]:
    """min(1, target / draft) of each draft token [k]."""
    ratios = _probability_ratios(target_probs, draft_token_ids, laws)
    return [min(1.0, ratio) for ratio in ratios]


def block_scales(
    target_probs: Tensor, draft_token_ids: Sequence[int], laws: Sequence[SparseLaw]
) -> list[float]:
    """Running scale of each prefix [k + 1]: s_0 = 1, s_i = min(1, s_{i-1} * target / draft)
    (p_i in 2403.10444, equation 4)."""
    scales = [1.0]
    for ratio in _probability_ratios(target_probs, draft_token_ids, laws):
        scales.append(min(1.0, scales[-1] * ratio))
    return scales


def block_thresholds(
    target_probs: Tensor,
    draft_token_ids: Sequence[int],
    laws: Sequence[SparseLaw],
    scales: Sequence[float],
) -> list[float]:
    """Acceptance probability of each prefix of 1 .. k tokens (h_i in 2403.10444).

    h_k = s_k; before it h_i = Z / (Z + 1 - s_i), Z the mass of max(s_i * target - draft, 0) at
    the next position.
    """
    k = len(draft_token_ids)
    thresholds = []
    for length in range(1, k):
        scale = scales[length]
        mass = float(
            _excess(target_probs[length], scale, _law(draft_token_ids, laws, length)).sum()
        )
        # 0 / 0 means target == draft from here on: a longer prefix is accepted for certain.
        thresholds.append(mass / (mass + 1.0 - scale) if mass + 1.0 - scale > 0 else 1.0)
    return [*thresholds, scales[k]] if k else []


def residual_weights(
    target_probs: Tensor,
    draft_token_ids: Sequence[int],
    laws: Sequence[SparseLaw],
    num_accepted: int,
    scale: float,
) -> Tensor:
    """Unnormalised law [V] of the token after `num_accepted` draft tokens.

    max(scale * target - draft, 0), or the target's own law after full acceptance. Rounding may
    leave a residual of no mass; then target == draft up to rounding and the target's law stands.
    """
    row = target_probs[num_accepted]
    if num_accepted == len(draft_token_ids):
        return row
    residual = _excess(row, scale, _law(draft_token_ids, laws, num_accepted))
    return residual if float(residual.sum()) > 0 else row


def sample_weights(weights: Tensor, draw: float) -> int:
    """The token at `draw` in [0, 1) by inverse CDF over unnormalised `weights` [V].

    Never a token of weight 0, whatever rounding does at either end.
    """
    cumulative = weights.cumsum(dim=0)
    index = int(torch.searchsorted(cumulative, cumulative[-1] * draw, right=True))
    if index < len(weights):
        return index
    return int(weights.nonzero()[-1])


def _law(draft_token_ids: Sequence[int], laws: Sequence[SparseLaw], index: int) -> SparseLaw:
    return laws[index] if laws else SparseLaw.one_hot(draft_token_ids[index])


def _excess(target_row: Tensor, scale: float, law: SparseLaw) -> Tensor:
    """max(scale * target - draft, 0) over the vocabulary [V]: only the law's entries change."""
    excess = target_row * scale
    ids = torch.from_numpy(law.ids.astype("int64")).to(excess.device)
    draft_probs = torch.from_numpy(law.probs).to(excess.device)
    excess[ids] = (excess[ids] - draft_probs).clamp_(min=0)
    return excess


def _probability_ratios(
    target_probs: Tensor, draft_token_ids: Sequence[int], laws: Sequence[SparseLaw]
) -> list[float]:
    """target / draft of each draft token [k]; draft = 1 where there are no laws."""
    assert len(target_probs) == len(draft_token_ids) + 1
    assert len(laws) in (0, len(draft_token_ids))
    index = torch.tensor(draft_token_ids, dtype=torch.int64, device=target_probs.device)
    chosen: list[float] = target_probs[:-1].gather(1, index[:, None]).flatten().tolist()
    if not laws:
        return chosen
    return [
        target_prob / law.prob(token_id)
        for target_prob, law, token_id in zip(chosen, laws, draft_token_ids, strict=True)
    ]


# --- The engine's entry -------------------------------------------------------------------------


def verify_step(logits: Tensor, items: Sequence[VerifyItem]) -> list[Verdict | SpecdecError | None]:
    """Verify all sequences of a step; `logits` [sum of rows, V] in the order of `items`.

    None for a sequence of which any row makes no law, an error for one whose verification failed:
    nothing is decided for it. The others' verdicts are what they are without it. Never changes
    `logits`. A sequence without draft tokens gets one token from the same rules.
    """
    greedy_ids = _greedy_or_law(logits, items)
    verdicts: list[Verdict | SpecdecError | None] = []
    first_row = 0
    for item in items:
        rows = slice(first_row, first_row + item.rows.num_rows)
        verdicts.append(_verify_item(logits[rows], greedy_ids[rows], item))
        first_row = rows.stop
    return verdicts


def _greedy_or_law(logits: Tensor, items: Sequence[VerifyItem]) -> list[int | None]:
    """Of every row, in one operation for the whole step, the argmax where anyone needs it, else any
    number; None where the row makes no law."""
    if any(item.verification is Verification.GREEDY for item in items):
        return greedy_tokens(logits)
    return [0 if is_law else None for is_law in makes_law(logits).tolist()]


def _verify_item(
    logits: Tensor, greedy_ids: Sequence[int | None], item: VerifyItem
) -> Verdict | SpecdecError | None:
    """What a request asks for decides what happens here, so an error is that request's alone."""
    if None in greedy_ids:
        return None
    try:
        return _apply_rule(logits, greedy_ids, item)
    except Exception:
        logger.exception("verification failed in %s mode", item.verification)
        return SpecdecError("verification failed; the server's log says how")


def _apply_rule(
    logits: Tensor, greedy_ids: Sequence[int | None], item: VerifyItem
) -> Verdict | None:
    adjusted = adjust_logits(logits, [item.rows])
    if adjusted is not logits:
        # What was added may have overflowed.
        greedy_ids = _greedy_or_law(adjusted, [item])
        if None in greedy_ids:
            return None
    if item.verification is Verification.GREEDY:
        own = [token_id for token_id in greedy_ids if token_id is not None]
        return verify_equal(own, item.rows.draft_token_ids)
    if item.verification is Verification.COUPLED:
        return _verify_coupled(adjusted, item)
    return _verify_sampled(adjusted, item)


def _verify_coupled(logits: Tensor, item: VerifyItem) -> Verdict:
    target_ids = coupled_tokens(logits, item.rows.params, item.seed, item.position)
    return verify_equal(target_ids, item.rows.draft_token_ids)


def _verify_sampled(logits: Tensor, item: VerifyItem) -> Verdict:
    """Rejection or block verification with this round's draws."""
    k = _num_lawful(item)
    draft_token_ids, laws = item.rows.draft_token_ids[:k], item.laws[:k]
    rule = verify_rejection if item.verification is Verification.REJECTION else verify_block
    return rule(
        probs(logits[: k + 1], item.rows.params),
        draft_token_ids,
        laws,
        [_draw(item, Domain.ACCEPTANCE, offset) for offset in range(k)],
        _draw(item, Domain.RESIDUAL, 0),
    )


def _draw(item: VerifyItem, domain: Domain, offset: int) -> float:
    return uniform(item.seed, domain, item.position + offset, round=item.round)


def _num_lawful(item: VerifyItem) -> int:
    """Draft tokens before the first that its own law could not have produced.

    An honest draft sends none. Judging such a token by its law would bias the output; as if it
    had not been sent, the position gets the target's own law.
    """
    for index, (token_id, law) in enumerate(
        zip(item.rows.draft_token_ids, item.laws, strict=False)
    ):
        if law.prob(token_id) == 0:
            return index
    return len(item.rows.draft_token_ids)
