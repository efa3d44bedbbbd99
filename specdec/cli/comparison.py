"""Speculation on against off over the same prompts: where do the texts part, and by how little?

In greedy and coupled mode they must not part at all, up to numerical ties: a row computed among
K + 1 rows may differ from the same row alone in its last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from specdec.params import SamplingParams, SpeculationParams

if TYPE_CHECKING:
    from specdec.engine import Engine

TIE_GAP = 1e-4


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first output position where the texts differ; None is the end of a text.

    `gap` is how far, in logits, the lower of the two tokens lies below the best one: for two
    tokens that tie, the gap between the top two. In coupled mode the shared noise is included.
    """

    position: int
    token_id_off: int | None
    token_id_on: int | None
    gap: float | None

    @property
    def is_tie(self) -> bool:
        """Whether rounding alone may have decided between the two tokens."""
        return self.gap is not None and self.gap < TIE_GAP


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt in one mode. Drafted and accepted count the run with speculation."""

    prompt_index: int
    mode: str
    num_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    divergence: Divergence | None


@dataclass(slots=True)
class _Run:
    token_ids: list[int]
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


def compare(
    engine: Engine,
    prompts: list[list[int]],
    mode: str,
    params: SamplingParams,
    speculation: SpeculationParams,
    batch_size: int,
    on_done: Callable[[], None],
) -> Iterator[Comparison]:
    """Run every prompt twice, `batch_size` at a time; `on_done` is called after each prompt."""
    off = replace(params, speculation=SpeculationParams(mode="off"))
    on = replace(params, speculation=speculation)
    numbered = list(enumerate(prompts))
    for start in range(0, len(numbered), batch_size):
        batch = numbered[start : start + batch_size]
        plain, speculated = _run(engine, batch, off), _run(engine, batch, on)
        for index, prompt in batch:
            run = speculated[index]
            yield Comparison(
                prompt_index=index,
                mode=mode,
                num_tokens=len(run.token_ids),
                num_draft_tokens=run.num_draft_tokens,
                num_accepted_tokens=run.num_accepted_tokens,
                divergence=_first_divergence(engine, prompt, plain[index], run, params),
            )
            on_done()


def _run(
    engine: Engine, batch: list[tuple[int, list[int]]], params: SamplingParams
) -> dict[int, _Run]:
    from specdec.engine import GenerateRequest

    # Partitions of their own: neither run may read what the other has computed.
    requests = [
        GenerateRequest(str(index), prompt, params, partition=params.speculation.mode)
        for index, prompt in batch
    ]
    runs = {index: _Run([]) for index, _ in batch}
    for output in engine.generate(requests):
        run = runs[int(output.request_id)]
        run.token_ids += output.token_ids
        run.num_draft_tokens += len(output.draft_token_ids)
        run.num_accepted_tokens += output.num_accepted_tokens
        if output.error is not None:
            raise output.error
    return runs


def _first_divergence(
    engine: Engine, prompt: list[int], off: _Run, on: _Run, params: SamplingParams
) -> Divergence | None:
    pairs = enumerate(zip_longest(off.token_ids, on.token_ids))
    for position, (token_off, token_on) in pairs:
        if token_off != token_on:
            gap = None
            if token_off is not None and token_on is not None:
                known = prompt + off.token_ids[:position]
                gap = logit_gap(engine, known, params, (token_off, token_on))
            return Divergence(position, token_off, token_on, gap)
    return None


def logit_gap(
    engine: Engine, token_ids: list[int], params: SamplingParams, candidates: tuple[int, int]
) -> float:
    """How far, in logits, the lower candidate lies below the best next token after `token_ids`."""
    from specdec.sampling.philox import gumbel_noise

    scores = engine.next_token_logits(token_ids).double()
    scale = 1.0
    if not params.is_greedy:
        assert params.seed is not None, "coupled text needs a seed"
        scale = params.temperature
        ids = scores.new_tensor(range(len(scores))).long()
        scores = scores / scale + gumbel_noise(params.seed % 2**64, len(token_ids), ids)
    lower = min(float(scores[token_id]) for token_id in candidates)
    return (float(scores.max()) - lower) * scale
