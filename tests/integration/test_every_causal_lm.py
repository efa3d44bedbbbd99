"""Every causal language model type of transformers, in tiny form: equal, or refused by name."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specdec.config import CacheConfig
from specdec.errors import ConfigError
from specdec.model.loader import prepare_model, refuse_unsupported
from specdec.model.runner import ModelRunner
from specdec.step_plan import StepPlan
from tests.every_causal_lm import VOCAB_SIZE, WINDOW, full_config, tiny_config, tiny_model
from tests.model_types import NOT_BUILT, REFUSED, SERVED

# Types that compute a part of themselves in float32 whatever they are loaded in: routers, the
# softmax of eager attention, which alone caps its scores, and logits that are capped.
PARTLY_FLOAT32 = frozenset(
    {"beam", "deepseek_v2", "dots1", "gemma2", "got_ocr2", "hy_v3", "laguna", "vaultgemma"}
)
# How far logits may be off, in units of their spread: the dtype's rounding, so many times.
ROUNDINGS = 2000
BLOCK = 4
# Beyond three windows; original lengths, indexes and thresholds of the tiny models are shorter.
LENGTH = 3 * WINDOW + 5
# Where steps end: in, on and behind windows and blocks. The last are a row of draft tokens, a
# single token.
CUTS = (WINDOW + 1, 2 * WINDOW + 4, LENGTH - 6, LENGTH - 1, LENGTH)
REJECTED = (5, 4, 3)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def text() -> list[int]:
    numbers = random.Random(1)
    return [numbers.randrange(3, VOCAB_SIZE) for _ in range(LENGTH)]


def own_logits(model: PreTrainedModel) -> torch.Tensor:
    """Transformers' own, in one forward that is told nothing but the text."""
    softcap = getattr(model.config.get_text_config(decoder=True), "attn_logit_softcapping", None)
    model.set_attn_implementation("sdpa" if softcap is None and model._supports_sdpa else "eager")
    with torch.inference_mode():
        return model(torch.tensor([text()]), use_cache=False).logits[0]


def served_logits(runner: ModelRunner) -> torch.Tensor:
    """The text in chunks, a row of draft tokens and a single token, a second text beside it.
    Before each step other tokens stood in its place and were rejected."""
    table = list(range(14))[::-1]
    parts, start = [], 0
    for end in CUTS:
        draft, plan = StepPlan(), StepPlan()
        draft.add(list(REJECTED), start, table, BLOCK, 1)
        runner.run(draft)
        plan.add(text()[start:end], start, table, BLOCK, end - start)
        plan.add(text()[:9], 0, [20, 17, 22], BLOCK, 0)
        parts.append(runner.run(plan))
        start = end
    return torch.cat(parts)


def make_runner(config: PreTrainedConfig, dtype: torch.dtype) -> ModelRunner:
    """The configuration is copied: some models write to theirs."""
    loaded = prepare_model(tiny_model(deepcopy(config), dtype), dtype, torch.device("cpu"))
    return ModelRunner(loaded, CacheConfig(block_size=BLOCK, num_blocks=24))


def load(name: str) -> ModelRunner:
    """Refused by the configuration as it comes where that says enough, or as a tiny model."""
    refuse_unsupported(full_config(name))
    return make_runner(tiny_config(name), torch.float64)


def assert_close(logits: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    tolerance = ROUNDINGS * torch.finfo(dtype).eps * float(expected.std())
    torch.testing.assert_close(logits.double(), expected.double(), atol=tolerance, rtol=0)


def test_every_type_is_accounted_for_once() -> None:
    groups = [SERVED, frozenset(NOT_BUILT), *(refusal.names for refusal in REFUSED)]
    assert sorted(name for group in groups for name in group) == sorted(
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    )


@pytest.mark.parametrize("name", sorted(SERVED))
def test_served_types_equal_their_own_forward(name: str) -> None:
    refuse_unsupported(full_config(name))
    config = tiny_config(name)
    expected = own_logits(tiny_model(deepcopy(config), torch.float64))
    logits = served_logits(make_runner(config, torch.float64))
    exact = torch.float32 if name in PARTLY_FLOAT32 else torch.float64
    assert_close(logits, expected, exact)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
    assert_close(served_logits(make_runner(config, torch.float32)), expected, torch.float32)


@pytest.mark.parametrize(
    ("name", "reason"),
    sorted((name, refusal.reason) for refusal in REFUSED for name in refusal.names),
)
def test_other_types_are_refused_by_name(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        load(name)
    assert caught.value.field == "model"
    assert re.match(f"model type '{name}.*' cannot be served: ", caught.value.message)


@pytest.mark.parametrize("name", sorted(NOT_BUILT))
def test_what_cannot_be_built_still_cannot(name: str) -> None:
    with pytest.raises(ImportError, match=NOT_BUILT[name]):
        tiny_model(tiny_config(name), torch.float64)
