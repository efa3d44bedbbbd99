"""The engine's own acceptance at a fixed K, beside what a characterisation expects of it.

Requests run one at a time through the real engine over the models that are loaded already; only
the rounds that fit whole into a text are counted, as the expectation counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from specdec.config import CacheConfig, DraftConfig, EngineConfig, ModelConfig, SpeculationConfig
from specdec.engine import Engine, GenerateRequest, build_engine
from specdec.engine.draft_builder import build_draft_engine
from specdec.engine.local_draft import LocalDraftProposer
from specdec.params import SamplingParams, SpeculationParams
from specdec.sequence import SequenceOutput
from specdec.simulation.characterization.rounds import FIRST_START
from specdec.simulation.characterization.summary import Measured
from specdec.simulation.characterization.traces import NGRAM

if TYPE_CHECKING:
    from specdec.model.executor import Executor
    from specdec.simulation.characterization.study import Cell, Models, Study

VERIFICATIONS = ("coupled", "rejection", "block")
# Nothing is urgent here: a draft that is late would change what is measured.
MAX_WAIT_MS = 600_000.0


def measure(
    models: Models,
    study: Study,
    target: ModelConfig,
    draft: ModelConfig,
    prompts: Sequence[tuple[str, list[int], int]],
    on_done: Callable[[], None],
) -> Iterator[Measured]:
    """Run every (category, prompt ids, seed) with every drafter, cell and verification.

    `draft` names the tokenizer of the drafts. `on_done` is called after each drafter's prompt.
    """
    for drafter in drafter_names(models):
        engine = _engine(models, study, target, draft, models.drafts.get(drafter))
        for category, prompt_ids, seed in prompts:
            for cell in study.cells:
                for verification in VERIFICATIONS:
                    params = _params(study, cell, seed, verification, drafter)
                    num_tokens, num_rounds = _run(engine, prompt_ids, params, study.k)
                    yield Measured(drafter, category, cell, verification, num_tokens, num_rounds)
            on_done()


def drafter_names(models: Models) -> list[str]:
    """The names of all drafters."""
    return [*models.drafts, *([NGRAM] if models.ngram else [])]


def _engine(
    models: Models, study: Study, target: ModelConfig, draft: ModelConfig, executor: Executor | None
) -> Engine:
    """An engine with one drafter: the model behind `executor`, or prompt lookup."""
    lookup = models.ngram or (2, 4)
    speculation = SpeculationConfig(
        max_num_speculative_tokens=study.k,
        drafters=("ngram",) if executor is None else ("draft",),
        max_wait_ms=MAX_WAIT_MS,
        ngram_min=lookup[0],
        ngram_max=lookup[1],
    )
    config = EngineConfig(
        target=target, cache=CacheConfig(enable_prefix_caching=False), speculation=speculation
    )
    proposer = None
    if executor is not None:
        drafting = DraftConfig(
            draft=draft,
            max_num_speculative_tokens=study.k,
            max_law_entries=study.max_law_entries,
        )
        draft_engine, _ = build_draft_engine(drafting, executor)
        proposer = LocalDraftProposer(draft_engine, models.target.vocab_size)
    return build_engine(config, draft_proposer=proposer, executor=models.target)


def _params(study: Study, cell: Cell, seed: int, verification: str, drafter: str) -> SamplingParams:
    name = "ngram" if drafter == NGRAM else "draft"
    speculation = SpeculationParams(
        mode="fixed", k=study.k, drafter=name, verification=verification
    )
    return SamplingParams(
        max_tokens=study.max_tokens,
        temperature=cell.temperature,
        top_p=cell.top_p,
        seed=seed,
        speculation=speculation,
    )


def _run(engine: Engine, prompt_ids: list[int], params: SamplingParams, k: int) -> tuple[int, int]:
    outputs = list(engine.generate([GenerateRequest("check", prompt_ids, params)]))
    for output in outputs:
        if output.error is not None:
            raise output.error
    return whole_rounds(outputs, k)


def whole_rounds(outputs: Sequence[SequenceOutput], k: int) -> tuple[int, int]:
    """(tokens, rounds) of one request's steps, of the rounds that end k + 1 tokens before the
    text does or sooner, whatever they accepted."""
    num_tokens = num_rounds = start = 0
    length = sum(len(output.token_ids) for output in outputs)
    for output in outputs:
        if FIRST_START <= start < length - k:
            num_rounds += 1
            num_tokens += 1 + output.num_accepted_tokens
        start += len(output.token_ids)
    return num_tokens, num_rounds
