"""Paged logits equal transformers' plain forward, for every way of cutting a text into steps."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import PreTrainedModel

from specdec.config import CacheConfig
from specdec.model.loader import prepare_model
from specdec.model.runner import ModelRunner
from specdec.step_plan import StepPlan
from tests.unit.model.tiny import FAMILIES, build_tiny

BLOCK_SIZE = 4
NUM_BLOCKS = 64


class Paged:
    """A runner with hand-made block tables, blocks dealt in shuffled order."""

    def __init__(self, model: PreTrainedModel) -> None:
        loaded = prepare_model(model, torch.float64, torch.device("cpu"))
        self.runner = ModelRunner(loaded, CacheConfig(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS))
        self.free = list(range(NUM_BLOCKS))
        random.Random(7).shuffle(self.free)
        self.tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}

    def step(self, queries: dict[str, list[int]]) -> dict[str, torch.Tensor]:
        """Run the next tokens of each named sequence; logits of every query token."""
        plan = StepPlan()
        for name, tokens in queries.items():
            table = self.tables.setdefault(name, [])
            start = self.computed.get(name, 0)
            while len(table) * BLOCK_SIZE < start + len(tokens):
                table.append(self.free.pop())
            plan.add(tokens, start, table, BLOCK_SIZE, len(tokens))
            self.computed[name] = start + len(tokens)
        parts = self.runner.run(plan).split([len(tokens) for tokens in queries.values()])
        return dict(zip(queries, parts, strict=True))


def reference(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    softcapped = getattr(model.config, "attn_logit_softcapping", None) is not None
    model.set_attn_implementation("eager" if softcapped else "sdpa")
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def text(length: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(96) for _ in range(length)]


@pytest.fixture(params=sorted(FAMILIES))
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.set_num_threads(1)
    return build_tiny(request.param, torch.float64)


def assert_same(actual: torch.Tensor, expected: torch.Tensor, family: str = "") -> None:
    """Equal to 1e-9, but for models that compute a part of themselves in float32: the softmax of
    softcapped attention, and the router of DeepSeek's experts."""
    tolerance = {"gemma2": 1e-5, "deepseek_v3": 1e-5}.get(family, 1e-9)
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def test_whole_prefill(model: PreTrainedModel) -> None:
    tokens = text(29, 1)
    expected = reference(model, tokens)
    assert_same(Paged(model).step({"a": tokens})["a"], expected, model.config.model_type)


@pytest.mark.parametrize("chunks", [(7, 22), (16, 1, 12), (20, 9), (1, 28)])
def test_chunked_prefill(model: PreTrainedModel, chunks: tuple[int, ...]) -> None:
    tokens = text(29, 1)
    expected = reference(model, tokens)
    paged, parts, start = Paged(model), [], 0
    for size in chunks:
        parts.append(paged.step({"a": tokens[start : start + size]})["a"])
        start += size
    assert_same(torch.cat(parts), expected, model.config.model_type)


def test_mixed_batches(model: PreTrainedModel) -> None:
    """Decode, verification and prefill of sequences of many lengths in the same steps, in an
    order that forces the rows to be regrouped."""
    texts = {"a": text(70, 2), "b": text(31, 3), "c": text(9, 4), "d": text(40, 5)}
    expected = {name: reference(model, tokens) for name, tokens in texts.items()}
    paged = Paged(model)
    cuts = [
        {"a": 66, "c": 2},
        {"a": 1, "b": 25, "c": 3},
        {"c": 1, "d": 20, "a": 1, "b": 4},
        {"a": 2, "d": 20, "b": 2, "c": 3},
    ]
    done = dict.fromkeys(texts, 0)
    for cut in cuts:
        queries = {n: texts[n][done[n] : done[n] + size] for n, size in cut.items()}
        for name, logits in paged.step(queries).items():
            stop = done[name] + cut[name]
            assert_same(logits, expected[name][done[name] : stop], model.config.model_type)
            done[name] = stop
    assert done == {name: len(tokens) for name, tokens in texts.items()}


def test_rejected_tokens_are_overwritten(model: PreTrainedModel) -> None:
    """After a rejection the next step writes over the rejected tokens' slots."""
    tokens = text(24, 6)
    expected = reference(model, tokens)
    paged = Paged(model)
    paged.step({"a": tokens[:12]})
    paged.step({"a": [*tokens[12:14], 1, 2, 3]})
    paged.computed["a"] = 14
    assert_same(paged.step({"a": tokens[14:]})["a"], expected[14:], model.config.model_type)


def test_only_requested_rows_get_logits(model: PreTrainedModel) -> None:
    tokens = text(10, 8)
    expected = reference(model, tokens)
    runner = Paged(model).runner
    plan = StepPlan()
    plan.add(tokens, 0, [3, 1, 2], BLOCK_SIZE, 2)
    assert_same(runner.run(plan), expected[-2:], model.config.model_type)
    empty = StepPlan()
    empty.add(tokens, 0, [3, 1, 2], BLOCK_SIZE, 0)
    assert runner.run(empty).shape == (0, runner.vocab_size)
    assert runner.run(StepPlan()).shape == (0, runner.vocab_size)
