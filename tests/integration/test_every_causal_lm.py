"""Every causal language model type of transformers, in tiny form: equal, or refused by name."""

from __future__ import annotations

import random
import re
from copy import deepcopy
from functools import cache
from pathlib import Path

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

NAMES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
# Types of which no tiny model can be made here, with what is raised instead.
NOT_BUILT: dict[str, str] = {}
# Types that compute a part of themselves in float32 whatever they are loaded in.
PARTLY_FLOAT32: frozenset[str] = frozenset()
EQUAL, REFUSED, UNBUILT = "equal", "refused", "not built"
BLOCK = 4
LENGTH = 3 * WINDOW + 5
CUTS = (WINDOW + 1, 2 * WINDOW + 4, LENGTH - 6, LENGTH - 1, LENGTH)


def text() -> list[int]:
    numbers = random.Random(1)
    return [numbers.randrange(3, VOCAB_SIZE) for _ in range(LENGTH)]


def own_logits(model: PreTrainedModel) -> torch.Tensor:
    """Transformers' own; only eager attention caps logits, and it softmaxes in float32."""
    softcap = getattr(model.config.get_text_config(decoder=True), "attn_logit_softcapping", None)
    model.set_attn_implementation("sdpa" if softcap is None and model._supports_sdpa else "eager")
    with torch.inference_mode():
        return model(torch.tensor([text()]), use_cache=False).logits[0]


def served_logits(runner: ModelRunner) -> torch.Tensor:
    """The text in chunks, rows of draft tokens and a single token, a second text beside it."""
    table = list(range(14))[::-1]
    parts, start = [], 0
    for end in CUTS:
        plan = StepPlan()
        plan.add(text()[start:end], start, table, BLOCK, end - start)
        plan.add(text()[:9], 0, [20, 17, 22], BLOCK, 0)
        parts.append(runner.run(plan))
        start = end
    return torch.cat(parts)


def make_runner(config: PreTrainedConfig, dtype: torch.dtype) -> ModelRunner:
    loaded = prepare_model(tiny_model(deepcopy(config), dtype), dtype, torch.device("cpu"))
    return ModelRunner(loaded, CacheConfig(block_size=BLOCK, num_blocks=24))


@cache
def outcome(name: str) -> str:
    """What becomes of a type. Anything but equality or a refusal by name is raised."""
    torch.set_num_threads(1)
    if name in NOT_BUILT:
        return UNBUILT
    try:
        refuse_unsupported(full_config(name))
        config = tiny_config(name)
        reference = make_runner(config, torch.float64)
    except ConfigError as error:
        return REFUSED if error.field == "model" else f"refused without a field: {error}"
    expected = own_logits(tiny_model(deepcopy(config), torch.float64))
    tolerance = 3e-5 if name in PARTLY_FLOAT32 else 1e-9
    torch.testing.assert_close(served_logits(reference), expected, atol=tolerance, rtol=tolerance)
    runner = make_runner(config, torch.float32)
    torch.testing.assert_close(served_logits(runner).double(), expected, atol=2e-3, rtol=2e-3)
    return EQUAL


@pytest.mark.parametrize("name", NAMES)
def test_equal_or_refused_by_name(name: str) -> None:
    assert outcome(name) in (EQUAL, REFUSED, UNBUILT)


@pytest.mark.parametrize("name", sorted(NOT_BUILT))
def test_what_cannot_be_built_still_cannot(name: str) -> None:
    with pytest.raises(Exception, match=NOT_BUILT[name]):
        tiny_model(tiny_config(name), torch.float64)


def test_documented_counts() -> None:
    """docs/models.md says how many types are equal, refused and not built."""
    page = (Path(__file__).resolve().parents[2] / "docs/models.md").read_text()
    found = [outcome(name) for name in NAMES]
    for kind, label in ((EQUAL, "served"), (REFUSED, "refused"), (UNBUILT, "not built")):
        documented = re.search(rf"^\| {label} \| (\d+) \|", page, re.MULTILINE)
        assert documented is not None, label
        assert int(documented[1]) == found.count(kind), label
