"""Reading texts: against transformers' plain forward, and against the engine's own answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.config import ModelConfig
from specdec.errors import ConfigError, InvalidRequestError
from specdec.simulation.characterization.models import load_models
from specdec.simulation.characterization.overlap import RULES, Rule
from specdec.simulation.characterization.reader import Reader, pool_for
from specdec.simulation.characterization.study import Cell, Models, Study, grid
from specdec.simulation.characterization.traces import NGRAM, _fit, read_prompt
from tests.unit.engine.engine_harness import generate, make_engine

PROMPT = [40, 71, 90, 40, 71, 90, 12, 40, 71]
GREEDY, WARM, NARROW = Cell(0.0, 1.0), Cell(0.9, 1.0), Cell(0.9, 0.6)
MAX_TOKENS = 12
SEED = 5


@pytest.fixture(scope="module")
def models(tiny_llama, tiny_draft) -> Models:
    return load_models(
        ModelConfig(model=str(tiny_llama), dtype="float64"),
        ModelConfig(model=str(tiny_draft), dtype="float64"),
        [1],
        pool_for(32, 3, MAX_TOKENS),
        (1, 3),
    )


def study(*cells: Cell, **changes) -> Study:
    settings = {"max_tokens": MAX_TOKENS, "k": 2, "seed": SEED, "max_law_entries": 128}
    return Study(cells=cells, **{**settings, **changes})


def forward(folder, token_ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits


def test_every_model_reads_every_text_apart(models, tiny_llama, tiny_draft):
    reader = Reader([models.target, models.drafts["first 1 layers"]], PROMPT, MAX_TOKENS)
    texts = {0: [7, 8, 9], 1: [30, 31, 32], 2: [7, 60, 61]}
    first, _ = reader.read_prompt()
    torch.testing.assert_close(first[0], forward(tiny_llama, PROMPT)[-1], atol=1e-9, rtol=1e-9)
    for step in range(3):
        of_target, _ = reader.read({text: ids[step] for text, ids in texts.items()})
    for text, ids in texts.items():
        expected = forward(tiny_llama, PROMPT + ids)[-1]
        torch.testing.assert_close(of_target[text], expected, atol=1e-9, rtol=1e-9)


def test_long_prompts_are_read_in_chunks(models, tiny_llama, monkeypatch):
    monkeypatch.setattr("specdec.simulation.characterization.reader.MAX_PROMPT_CHUNK", 4)
    (logits,) = Reader([models.target], PROMPT, MAX_TOKENS).read_prompt()
    torch.testing.assert_close(logits[0], forward(tiny_llama, PROMPT)[-1], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("cell", [GREEDY, WARM, NARROW])
def test_acceptance_is_that_of_the_laws_along_the_engines_own_text(
    models, tiny_llama, tiny_draft, cell
):
    """The text comes from the engine, the laws from a plain forward and a softmax by hand."""
    engine = make_engine(tiny_llama)
    text = generate(
        engine,
        PROMPT,
        max_tokens=MAX_TOKENS,
        temperature=cell.temperature,
        top_p=cell.top_p,
        seed=SEED,
    )
    traces = {t.drafter: t for t in read_prompt(models, study(cell), "x", PROMPT, SEED)}
    trace = traces[tiny_draft.name]
    assert len(trace.positions) == len(text)
    of_target = forward(tiny_llama, PROMPT + text)
    of_draft = forward(tiny_draft, PROMPT + text)
    for index, position in enumerate(trace.positions):
        row = len(PROMPT) - 1 + index
        target, draft = plain_law(of_target[row], cell), plain_law(of_draft[row], cell)
        assert position.support == np.count_nonzero(target)
        expected = position.overlap.expected[RULES.index(Rule.MAXIMAL)]
        assert expected == pytest.approx(np.minimum(target, draft).sum(), abs=1e-9)
        given = min(1.0, draft[text[index]] / target[text[index]])
        assert position.overlap.given_token[0] == pytest.approx(given, abs=1e-9)


def plain_law(logits: torch.Tensor, cell: Cell) -> np.ndarray:
    """Temperature, then the fewest likeliest tokens that reach top-p, as written in a textbook."""
    if cell.temperature == 0:
        return np.eye(len(logits))[int(logits.argmax())]
    law = torch.softmax(logits / cell.temperature, dim=-1).numpy().copy()
    order = np.argsort(-law)
    num_kept = int(np.searchsorted(np.cumsum(law[order]), cell.top_p)) + 1
    law[order[num_kept:]] = 0
    return law / law.sum()


def test_prompt_lookup_is_judged_by_the_targets_probability(models, tiny_llama):
    traces = {t.drafter: t for t in read_prompt(models, study(WARM), "x", PROMPT, SEED)}
    first = traces[NGRAM].positions[0].overlap
    # The prompt ends in 40, 71, which 90 followed both times.
    target = torch.softmax(forward(tiny_llama, PROMPT)[-1] / 0.9, dim=-1)
    assert first.expected == pytest.approx((float(target[90]),) * len(RULES), abs=1e-9)
    assert first.coupled_bound == pytest.approx(float(target[90] / (2 - target[90])))


def test_a_text_does_not_depend_on_the_other_cells(models):
    alone = read_prompt(models, study(WARM), "x", PROMPT, SEED)
    among = read_prompt(models, study(GREEDY, WARM, NARROW), "x", PROMPT, SEED)
    for trace in alone:
        (same,) = [t for t in among if (t.drafter, t.cell) == (trace.drafter, WARM)]
        assert len(same.positions) == len(trace.positions)
        np.testing.assert_allclose(same.rounds, trace.rounds, rtol=1e-9)


def test_shared_context_judges_all_cells_on_one_text_and_counts_rounds_at_its_own(models):
    traces = read_prompt(models, study(GREEDY, WARM, context=WARM), "x", PROMPT, SEED)
    by_cell = {t.cell: t for t in traces if t.drafter == "first 1 layers"}
    alone = {t.drafter: t for t in read_prompt(models, study(WARM), "x", PROMPT, SEED)}
    np.testing.assert_allclose(by_cell[WARM].rounds, alone["first 1 layers"].rounds, rtol=1e-9)
    assert by_cell[GREEDY].rounds is None
    assert {p.support for p in by_cell[GREEDY].positions} == {1}
    assert len(by_cell[GREEDY].positions) == len(by_cell[WARM].positions)


def test_a_text_ends_with_its_end_token(models):
    ending = Models(models.target, {}, frozenset(range(288)), (1, 3))
    (trace,) = read_prompt(ending, study(WARM), "x", PROMPT, SEED)
    assert len(trace.positions) == 1
    assert trace.rounds == [(0.0, 0.0)] * len(RULES)


def test_a_drafters_padding_is_cut_or_added():
    logits = torch.tensor([1.0, 2.0, 3.0])
    assert _fit(logits, 2).tolist() == [1.0, 2.0]
    assert _fit(logits, 4).tolist() == [1.0, 2.0, 3.0, -np.inf]


def test_grid_has_temperature_0_once():
    assert grid([0, 1], [0.7, 1]) == (Cell(0, 1.0), Cell(1, 0.7), Cell(1, 1))


@pytest.mark.parametrize(
    ("temperatures", "top_ps", "message"),
    [([2.5], [1], "temperature"), ([1], [-1], "top_p"), ([1], [1.1], "top_p"), ([], [1], "least")],
)
def test_cells_that_no_request_may_have_are_refused(temperatures, top_ps, message):
    with pytest.raises(InvalidRequestError, match=message):
        grid(temperatures, top_ps)


def test_no_drafter_is_refused(tiny_llama):
    target = ModelConfig(model=str(tiny_llama), dtype="float64")
    with pytest.raises(ConfigError, match="no drafter"):
        load_models(target, None, [], pool_for(8, 1, 4), None)
