"""Replaced modules: which ones are, that logits stay, and that unlike modules are left alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from specdec.config import CacheConfig
from specdec.errors import ConfigError
from specdec.model.fused import FusedAttention, FusedMLP, FusedRMSNorm
from specdec.model.linear import Int8Linear, PackedLinear
from specdec.model.loader import prepare_model
from specdec.model.runner import ModelRunner
from specdec.step_plan import StepPlan
from tests.every_causal_lm import tiny_config, tiny_model
from tests.unit.model.tiny import build_tiny

LLAMA_LIKE = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def count(model: nn.Module, kind: type[nn.Module]) -> int:
    return sum(type(module) is kind for module in model.modules())


def prefill_and_verify(runner: ModelRunner) -> torch.Tensor:
    """Logits of a prompt, then of a token with four draft tokens beside a second sequence."""
    first, second = StepPlan(), StepPlan()
    first.add(list(range(20)), 0, [3, 1], 16, 20)
    second.add(list(range(40, 45)), 20, [3, 1], 16, 5)
    second.add(list(range(9)), 0, [2], 16, 9)
    return torch.cat((runner.run(first), runner.run(second)))


def make_runner(family: str, dtype: torch.dtype, quantization: str = "none") -> ModelRunner:
    model = build_tiny(family, dtype)
    loaded = prepare_model(model, dtype, torch.device("cpu"), quantization)
    return ModelRunner(loaded, CacheConfig(num_blocks=4))


@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_float32_logits_match_the_float64_reference(family: str) -> None:
    """The float64 runner leaves the model's own modules in place."""
    reference = make_runner(family, torch.float64)
    fused = make_runner(family, torch.float32)
    assert count(reference.model, FusedAttention) == 0
    assert count(fused.model, FusedAttention) == 3
    assert count(fused.model, FusedMLP) == 3
    assert count(fused.model, nn.Linear) == 0
    assert count(fused.model, PackedLinear) == 3 * 4 + 1
    torch.testing.assert_close(
        prefill_and_verify(fused).double(),
        prefill_and_verify(reference),
        atol=2e-3,
        rtol=2e-3,
    )


@pytest.mark.parametrize("family", ["phi3", "deepseek_v3", "mixtral"])
def test_unlike_attention_is_left_alone_and_still_right(family: str) -> None:
    fused = make_runner(family, torch.float32)
    reference = make_runner(family, torch.float64)
    torch.testing.assert_close(
        prefill_and_verify(fused).double(),
        prefill_and_verify(reference),
        atol=2e-3,
        rtol=2e-3,
    )


def test_norm_offsets_are_found_by_probing() -> None:
    gemma = make_runner("gemma3_text", torch.float32).model
    llama = make_runner("llama", torch.float32).model
    assert count(gemma, FusedRMSNorm) == 3 * 6 + 1
    assert count(llama, FusedRMSNorm) == 3 * 2 + 1


def test_partial_rotary_attention_is_not_fused() -> None:
    """Rotation of part of the head is another function: the probe sees it."""
    runner = make_runner("glm", torch.float32)
    assert count(runner.model, FusedAttention) == 0


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_int8_stays_near_float32(family: str) -> None:
    exact = prefill_and_verify(make_runner(family, torch.float32))
    runner = make_runner(family, torch.float32, "int8")
    assert count(runner.model, Int8Linear) == 3 * 4 + 1
    near = prefill_and_verify(runner)
    agreement = torch.nn.functional.cosine_similarity(exact, near, dim=1)
    # Steps of activations are twice as wide without VNNI.
    assert float(agreement.min()) > (0.95 if torch.cpu._is_vnni_supported() else 0.9)


@pytest.mark.parametrize("quantization", ["int8", "none"])
def test_a_wrong_kernel_is_found_at_packing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, quantization: str
) -> None:
    """int8 is refused with the layer's name; a float layer keeps its original."""
    kind = Int8Linear if quantization == "int8" else PackedLinear
    right = kind.forward

    def wrong(self: PackedLinear | Int8Linear, rows: torch.Tensor) -> torch.Tensor:
        output = right(self, rows)
        return output * 1.2 if self.in_features == 48 else output

    monkeypatch.setattr(kind, "forward", wrong)
    if quantization == "int8":
        with pytest.raises(ConfigError, match=r"int8 is wrong .*layers\.0\.mlp\.down"):
            make_runner("llama", torch.float32, "int8")
    else:
        model = make_runner("llama", torch.float32).model
        assert count(model, nn.Linear) == 3
        assert "layers.0.mlp.down is not packed" in caplog.text


def test_tied_embedding_survives_packing() -> None:
    """Packing the output head must not touch the embedding that it shares its weight with."""
    model = build_tiny("qwen2", torch.float32)
    weight = model.get_input_embeddings().weight.detach().clone()
    loaded = prepare_model(model, torch.float32, torch.device("cpu"), "int8")
    ModelRunner(loaded, CacheConfig(num_blocks=4))
    assert torch.equal(model.get_input_embeddings().weight, weight)
    assert type(model.get_output_embeddings()) is Int8Linear


def test_bfloat16_runs() -> None:
    logits = prefill_and_verify(make_runner("llama", torch.bfloat16))
    exact = prefill_and_verify(make_runner("llama", torch.float32))
    agreement = torch.nn.functional.cosine_similarity(exact, logits.float(), dim=1)
    assert float(agreement.min()) > 0.95


def fused_runner(name: str, std: float = 0.3, **changes: Any) -> ModelRunner:
    model = tiny_model(tiny_config(name, **changes), torch.float32)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(std / 0.3)
    loaded = prepare_model(model, torch.float32, torch.device("cpu"))
    return ModelRunner(dataclasses.replace(loaded, is_checked=False), CacheConfig(num_blocks=4))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ministral3", {}),  # queries are scaled from position 16 on
        ("olmo", {"clip_qkv": 8.0}),  # far above what usual inputs reach
        ("glm4_moe", {}),  # a part of each head is rotated
    ],
)
def test_attention_of_another_kind_keeps_its_own_code(name: str, changes: dict[str, Any]) -> None:
    assert count(fused_runner(name, **changes).model, FusedAttention) == 0


def test_without_a_clip_olmo_is_fused() -> None:
    assert count(fused_runner("olmo", clip_qkv=None).model, FusedAttention) == 4


def test_a_weight_that_others_read_is_not_packed() -> None:
    """HunYuan's router looks at the type of its gate's weight."""
    model = fused_runner("hunyuan_v1_moe").model
    kept = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    assert kept
    assert all(name.endswith("gate.wg") for name in kept)
    prefill_and_verify(fused_runner("hunyuan_v1_moe"))


def test_attention_without_keyword_arguments_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"NemotronAttention does not pass keyword arguments"):
        fused_runner("nemotron")
