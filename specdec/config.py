"""Configuration: one small frozen model per component, unknown keys refused.

Built once at the edge (CLI, deployments); each component gets only its own part.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]

DEFAULT_MAX_LOGPROBS_BYTES = 256 * 2**20
# Of how many prompt tokens a step computes log-probabilities, for all requests together.
PROMPT_LOGPROB_ROWS = 64

DTYPES = ("float64", "float32", "bfloat16", "float16")


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelConfig(_Config):
    """Which model, in which numbers, over how many ranks.

    `model`: a local folder, a hub id, or a name that `specdec models` knows (smollm2).
    `quantization`: int8 is dynamic, weights and activations, CPU only.
    """

    model: str = Field(min_length=1)
    revision: str | None = None
    dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] = "auto"
    quantization: Literal["none", "int8"] = "none"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tensor_parallel_size: PositiveInt = 1
    num_threads: PositiveInt | None = Field(
        None, description="CPU threads of each rank; default: torch's own choice"
    )
    trust_remote_code: bool = False
    self_check: bool = Field(
        True, description="compare the engine's path with the model's own forward at start"
    )


class CacheConfig(_Config):
    """The paged KV cache. Its size is set, never grown: `num_blocks`, else `kv_cache_bytes`, else
    on CUDA what a profile run leaves of `gpu_memory_utilization`, and on CPU 512 MiB."""

    block_size: PositiveInt = 16
    num_blocks: PositiveInt | None = None
    kv_cache_bytes: PositiveInt | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    enable_prefix_caching: bool = True


class SchedulerConfig(_Config):
    """Limits of a step, of the queue and of a request. `max_num_batched_tokens` is the one token
    budget of a step: prefill chunks, decode tokens and draft tokens together.
    `max_num_sequences_per_tenant`: a tenant's limit also while no other wants the places; default:
    none. `max_queue` is each tenant's own, so that nobody fills another's. `max_logprobs_bytes`:
    what the log-probabilities of one request may take, over all its prompts and completions."""

    max_num_sequences: PositiveInt = 32
    max_num_sequences_per_tenant: PositiveInt | None = None
    max_num_batched_tokens: PositiveInt = 512
    max_model_len: PositiveInt | None = Field(
        None, description="prompt + output; default: the model's own limit"
    )
    max_queue: PositiveInt = 256
    max_logprobs_bytes: PositiveInt = DEFAULT_MAX_LOGPROBS_BYTES

    def max_logit_rows(self, max_num_speculative_tokens: int) -> int:
        """The most rows of a step that logits are computed for."""
        verified = self.max_num_sequences * (max_num_speculative_tokens + 1)
        return min(self.max_num_batched_tokens, verified + PROMPT_LOGPROB_ROWS)


class SpeculationConfig(_Config):
    """The operator's limits on speculation.

    `drafters` in order of preference: the first that is available proposes, unless the request
    names one. `max_wait_ms` bounds every wait of a step for a proposal. `open_drafts`: a draft on
    a device of its own computes a prompt beside the target; one that shares the target's cores or
    memory bus would delay the first token, and begins when no prompt is being computed.
    `max_tpot_ms`: drafting may not make a step longer than this, whatever it promises.
    `profile`: a file that `specdec profile --output` wrote; default: what it kept in the cache.
    `acceptance_log`: a file to which acceptance statistics go every hour, for `specdec drift`.
    """

    max_num_speculative_tokens: Annotated[int, Field(ge=0, le=128)] = 8
    drafters: tuple[Literal["draft", "ngram"], ...] = ("ngram",)
    max_wait_ms: PositiveFloat = 250.0
    max_tpot_ms: PositiveFloat | None = None
    ngram_min: PositiveInt = 2
    ngram_max: PositiveInt = 4
    open_drafts: Literal["with_prompt", "after_prompt"] = "with_prompt"
    profile: Annotated[str, Field(min_length=1)] | None = None
    acceptance_log: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _ngram_range(self) -> SpeculationConfig:
        if self.ngram_min > self.ngram_max:
            raise ValueError("ngram_min must not exceed ngram_max")
        return self


class EngineConfig(_Config):
    """Everything that a target engine needs."""

    target: ModelConfig
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    speculation: SpeculationConfig = SpeculationConfig()


class DraftLimits(_Config):
    """What a draft keeps for its targets, whatever they send. A token of text takes about 50 bytes;
    a parameter of a request counts as the tokens that it takes as much memory as."""

    max_targets: PositiveInt = 64
    max_sessions: PositiveInt = 4096
    max_sessions_per_target: PositiveInt = 1024
    max_text_tokens: PositiveInt = 16_000_000
    max_text_tokens_per_target: PositiveInt = 4_000_000


class DraftConfig(_Config):
    """Everything that a draft engine needs.

    `max_share_per_target` bounds the fraction of KV blocks that one target's sessions may hold;
    below it a target takes what nobody wants, and gives back what exceeds an equal share to a
    target that has less and needs it. A session idle for `idle_timeout_s` may be evicted when
    memory is short.
    """

    draft: ModelConfig
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    max_num_speculative_tokens: Annotated[int, Field(ge=1, le=128)] = 8
    max_law_entries: Annotated[int, Field(ge=1, le=1024)] = 128
    max_share_per_target: Annotated[float, Field(gt=0, le=1)] = 1.0
    idle_timeout_s: PositiveFloat = 30.0
    limits: DraftLimits = DraftLimits()
