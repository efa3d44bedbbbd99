"""The model runner: turns a step plan into tensors and runs one rank's model over it.

The same on every tensor-parallel rank: it sees its own share of the heads, and whatever
collectives the model needs are inside the model. It samples nothing and decides nothing.
"""

from __future__ import annotations

import inspect
from functools import partial

import torch

from specdec.config import CacheConfig, ModelConfig
from specdec.errors import ConfigError
from specdec.kvcache.kv_pool import KVPool, bytes_per_block, num_blocks_for
from specdec.model.attention_backend import choose_attention_backend
from specdec.model.attention_probe import PROBE_NAME, GeometryProbe, attention_implementation
from specdec.model.check_texts import random_tokens
from specdec.model.difference import row_errors
from specdec.model.fused import fuse_modules, pack_linears, replaceable
from specdec.model.loader import LoadedModel, failure_as_refusal, load_model, refusal
from specdec.model.memory import free_bytes_after, largest_plan
from specdec.model.module_calls import ModuleCalls
from specdec.model.named_lengths import named_lengths, positions_around
from specdec.model.projections import ProjectionProbe
from specdec.model.self_check import SelfCheck
from specdec.model.step_context import StepContext
from specdec.step_plan import StepPlan

_PROBE_TOKENS = 8
# Two computations of one query differ by nothing, or by rounding in half precision.
_SAME_POSITIONS = 1e-2


class ModelRunner:
    """One rank's model, its attention backend and its KV pool.

    Attributes: vocab_size, model_max_len, block_size, num_blocks, device, as in Executor;
    `bytes_per_block` of this rank's pool; `layers`, what each attends.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        cache: CacheConfig,
        max_num_tokens: int = 512,
        max_num_logit_rows: int = 512,
    ) -> None:
        """Probe the model's attention, size and allocate the pool.

        The limits describe the largest step, which sizes the pool on a CUDA device. Every
        tensor-parallel rank must construct its runner together: the probe is a forward.
        """
        self.model = loaded.model
        self.vocab_size = loaded.vocab_size
        self.model_max_len = loaded.max_len
        self.device = loaded.device
        self.block_size = cache.block_size
        if "logits_to_keep" not in inspect.signature(loaded.model.forward).parameters:
            raise _refusal(loaded, "cannot return logits of selected rows")
        probe = self._probe(loaded)
        self.layers = [probe.layers[index] for index in range(len(probe.layers))]
        # Ranks that hold unequal shares would choose texts of unequal length.
        is_checked = loaded.is_checked and loaded.is_whole
        check = SelfCheck(loaded, probe, cache.block_size) if is_checked else None
        specs = [layer.kv for layer in self.layers]
        self.bytes_per_block = bytes_per_block(specs, cache.block_size, loaded.dtype)
        self.attention = choose_attention_backend(loaded.device, loaded.dtype, self.layers)
        self._new_pool = partial(
            KVPool,
            specs,
            block_size=cache.block_size,
            dtype=loaded.dtype,
            device=loaded.device,
        )
        self._optimize(loaded, check)
        free_bytes = None
        if self.device.type == "cuda" and cache.num_blocks is None and not cache.kv_cache_bytes:
            plan = largest_plan(max_num_tokens, max_num_logit_rows, cache.block_size)
            free_bytes = self._profile(plan, cache.gpu_memory_utilization)
        self.num_blocks = num_blocks_for(cache, self.bytes_per_block, free_bytes)
        self._pool = self._new_pool(num_blocks=self.num_blocks)

    def _optimize(self, loaded: LoadedModel, check: SelfCheck | None) -> None:
        """Put faster modules in place where there are any, and check the result. What int8 makes
        of a model is no longer its own: there the check comes before the weights are packed."""
        on_cpu = self.device.type == "cpu" and loaded.is_whole and loaded.dtype != torch.float64
        calls = None
        if on_cpu:
            calls = self._record_calls(loaded)
            fuse_modules(loaded.model, self.layers, calls)
        if calls is not None and loaded.quantization == "none":
            pack_linears(loaded.model, loaded.quantization, calls)
        if check is not None:
            self._pool = self._new_pool(num_blocks=check.num_blocks)
            check.compare(self.run)
            del self._pool
        if calls is not None and loaded.quantization != "none":
            pack_linears(loaded.model, loaded.quantization, calls)

    @torch.inference_mode()
    def _record_calls(self, loaded: LoadedModel) -> ModuleCalls:
        lengths = named_lengths(loaded.config, self.layers, loaded.max_len)
        positions = positions_around(lengths, loaded.max_len)
        tokens = random_tokens(loaded, len(positions))
        probe = ProjectionProbe(self.layers)
        return ModuleCalls.record(
            loaded.model,
            replaceable(loaded.model),
            lambda: self._forward(tokens, positions, [0], probe),
        )

    def _profile(self, plan: StepPlan, utilization: float) -> int:
        """Bytes left for the pool after the largest step, run on a pool just big enough for it."""
        self._pool = self._new_pool(num_blocks=len(plan.block_tables[0]))
        try:
            return free_bytes_after(lambda: self.run(plan), self.device, utilization)
        finally:
            del self._pool

    @classmethod
    def build(
        cls,
        model: ModelConfig,
        cache: CacheConfig,
        *,
        max_num_tokens: int,
        max_num_logit_rows: int,
        tp_size: int = 1,
        rank: int = 0,
    ) -> ModelRunner:
        """Load the model of a configuration and make its runner.

        With `tp_size` > 1 torch.distributed is already initialised and LOCAL_RANK set; the model
        is loaded with tp_plan="auto" and every rank must call this together.
        """
        if model.num_threads is not None:
            torch.set_num_threads(model.num_threads)
        loaded = load_model(model, tp_size=tp_size)
        return cls(loaded, cache, max_num_tokens, max_num_logit_rows)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> torch.Tensor:
        """Logits [len(plan.logit_rows), vocab_size]; complete on every rank, used on rank 0.

        An empty plan (no tokens) is a no-op that returns an empty tensor and runs no collective.
        """
        if plan.num_tokens == 0:
            return torch.empty(0, self.vocab_size, device=self.device)
        step = StepContext(plan, self._pool, self.layers, self.device, self.attention.name)
        return self._forward(plan.token_ids, plan.positions, plan.logit_rows, step)

    def _forward(
        self,
        token_ids: list[int],
        positions: list[int] | None,
        logit_rows: list[int],
        step: StepContext | GeometryProbe | ProjectionProbe,
    ) -> torch.Tensor:
        numbered = None if positions is None else torch.tensor([positions], device=self.device)
        output = self.model(
            input_ids=torch.tensor([token_ids], device=self.device),
            position_ids=numbered,
            logits_to_keep=torch.tensor(logit_rows, dtype=torch.long, device=self.device),
            use_cache=False,
            specdec_step=step,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def _probe(self, loaded: LoadedModel) -> GeometryProbe:
        """What each layer attends, seen in one forward over a few tokens.

        A layer that does not attend keeps some other state: refused. So is a model that counts
        positions in its own way, seen in a second forward, which leaves them to it.
        """
        num_layers = int(loaded.config.num_hidden_layers)
        probe, unnumbered = GeometryProbe(loaded.max_len), GeometryProbe(loaded.max_len)
        count = min(_PROBE_TOKENS, loaded.max_len)
        tokens = random_tokens(loaded, count)
        with attention_implementation(self.model, PROBE_NAME), failure_as_refusal(loaded):
            self._forward(tokens, list(range(count)), [0], probe)
            self._forward(tokens, None, [0], unnumbered)
        if sorted(probe.layers) != list(range(num_layers)):
            raise _refusal(
                loaded,
                f"lets {len(probe.layers)} of {num_layers} layers attend through paged attention; "
                "what the others keep cannot be rolled back",
            )
        assert probe.first_query is not None
        assert unnumbered.first_query is not None
        if float(row_errors(probe.first_query, unnumbered.first_query).max()) > _SAME_POSITIONS:
            raise _refusal(loaded, "does not number its positions 0, 1, 2 and so on")
        return probe


def _refusal(loaded: LoadedModel, why: str) -> ConfigError:
    model = loaded.model
    return refusal(model.config.model_type, f"{type(model).__name__} {why}")
