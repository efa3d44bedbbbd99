"""Which backend a model gets, and the CUDA path's indices against a reference kernel on CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.attention.varlen as varlen
import torch.nn.functional as F

from specdec.kvcache.kv_pool import KVLayerSpec, KVPool
from specdec.model.attention import attend
from specdec.model.attention_backend import choose_attention_backend
from specdec.model.attention_probe import LayerAttention
from specdec.model.step_context import StepContext
from specdec.step_plan import StepPlan

PLAIN = LayerAttention(KVLayerSpec(2, 8, 8), 4, 0.3, window=None, softcap=None)
SLIDING = LayerAttention(KVLayerSpec(2, 8, 8), 4, 0.3, window=5, softcap=None)
CAPPED = LayerAttention(KVLayerSpec(2, 8, 8), 4, 0.3, window=None, softcap=3.0)
UNEVEN = LayerAttention(KVLayerSpec(2, 8, 6), 4, 0.3, window=None, softcap=None)
WIDE = LayerAttention(KVLayerSpec(1, 512, 512), 1, 0.3, window=None, softcap=None)


def test_choice_by_device_type_and_layers() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose_attention_backend(cpu, torch.float32).name == "gather_sdpa"
    assert choose_attention_backend(cuda, torch.float32).name == "gather_sdpa"
    assert choose_attention_backend(cuda, torch.bfloat16).name == "gather_varlen"
    assert choose_attention_backend(cuda, torch.bfloat16, [PLAIN, SLIDING]).name == "gather_varlen"
    for layer in (CAPPED, UNEVEN, WIDE):
        choice = choose_attention_backend(cuda, torch.bfloat16, [PLAIN, layer])
        assert choice.name == "gather_sdpa"
        assert choice.reason


def reference_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> torch.Tensor:
    """varlen_attn as documented: sequence by sequence, `window_size[0]` keys before the query,
    `window_size[1]` after it, queries aligned to the end of the keys."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    outputs = []
    for i in range(len(cu_seq_q) - 1):
        q = query[cu_seq_q[i] : cu_seq_q[i + 1]].transpose(0, 1)
        k = key[cu_seq_k[i] : cu_seq_k[i + 1]].transpose(0, 1)
        v = value[cu_seq_k[i] : cu_seq_k[i + 1]].transpose(0, 1)
        assert q.shape[1] <= max_q
        assert k.shape[1] <= max_k
        at = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        distance = at - torch.arange(k.shape[1])[None]
        visible = distance >= -window_size[1]
        if window_size[0] >= 0:
            visible &= distance <= window_size[0]
        out = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=visible, scale=scale, enable_gqa=enable_gqa
        )
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("layer", [PLAIN, SLIDING])
def test_varlen_indices_give_the_same_attention(
    layer: LayerAttention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", reference_kernel)
    torch.manual_seed(2)
    pool = KVPool([layer.kv], 12, 4, torch.float64, torch.device("cpu"))
    pool.layers[0].normal_()
    plan = StepPlan()
    for query, computed, table in (
        (1, 10, [7, 2, 9]),
        (6, 0, [1, 4]),
        (3, 5, [0, 11]),
        (1, 0, [5]),
    ):
        plan.add([0] * query, computed, table, 4, 0)
    rows = torch.randn(plan.num_tokens, 4, 8, dtype=torch.float64)
    device = torch.device("cpu")
    expected = attend(StepContext(plan, pool, [layer], device), 0, rows)
    actual = attend(StepContext(plan, pool, [layer], device, "gather_varlen"), 0, rows)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
