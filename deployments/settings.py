"""The arguments of `deployments.app:build`: what a serve config's `args` may say.

Resources, replica counts and autoscaling are Serve's own and stand under `deployments:` in the
same file; here is what only specdec knows. Unknown keys are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specdec.config import DraftConfig, EngineConfig, ModelConfig, SpeculationConfig

DEMO_MODEL = "smollm2"


class _Settings(BaseModel):
    # What was given may be a secret that stands in the wrong place: no error repeats it.
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), hide_input_in_errors=True
    )


# As a browser writes it: no path, no slash at the end.
Origin = Annotated[str, Field(pattern=r"^(\*|https?://[^/\s,*]+)$")]


class GatewaySettings(_Settings):
    """The front door.

    `model_name`: the name clients use; default: the target's own. `api_keys_file`, or
    `api_keys_env`, an environment variable, holds the keys (`api_keys.py` says how); without
    either everybody is welcome, as one tenant. `max_prompts` bounds prompts x n of one
    HTTP request. `allow_client_chat_template`: whether a request may bring its own chat template,
    a program that the gateway then runs (in Jinja's sandbox, without a limit of time).
    `log_requests`: one line in the log for each request that ends. `body_timeout_s`: a body ends
    within it; `max_bodies_per_tenant` may be half-sent at a time. `reader_timeout_s`: a stream ends
    whose reader takes nothing for so long. `cors_allow_origins`: whose pages may ask from a
    browser, such as `https://chat.example.org`, or `*` for any; empty: none.
    """

    model_name: str | None = None
    api_keys_file: str | None = Field(None, min_length=1)
    api_keys_env: str | None = Field(None, min_length=1)
    max_body_bytes: Annotated[int, Field(gt=0)] = 4 * 2**20
    body_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    reader_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    max_bodies_per_tenant: Annotated[int, Field(gt=0)] = 256
    max_prompts: Annotated[int, Field(gt=0)] = 128
    allow_client_chat_template: bool = False
    log_requests: bool = False
    cors_allow_origins: tuple[Origin, ...] = ()
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    health_timeout_s: Annotated[float, Field(gt=0)] = 10.0

    @model_validator(mode="before")
    @classmethod
    def _no_keys_here(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "api_keys" in given:
            raise ValueError(
                "api_keys: keys do not belong into a config, which Ray keeps and shows; write them "
                "into a file and name it in api_keys_file"
            )
        return given

    @model_validator(mode="after")
    def _one_place_for_keys(self) -> GatewaySettings:
        if self.api_keys_file is not None and self.api_keys_env is not None:
            raise ValueError("give either api_keys_file or api_keys_env")
        return self


class RankResources(_Settings):
    """What one rank of a model asks of Ray. `num_gpus` may be fractional only at one rank."""

    num_cpus: Annotated[float, Field(ge=0)] = 1.0
    num_gpus: Annotated[float, Field(ge=0)] = 0.0


class DraftServerSettings(_Settings):
    """Where draft replicas listen. `host`: an address of the node; default: the one by which Ray
    knows it, which is a loopback address where Ray is bound to one. `port` 0 takes a free one; set
    a fixed port where a network policy must name it and at most one draft replica runs per node."""

    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9.:-]{1,253}$")] | None = None
    port: Annotated[int, Field(ge=0, le=65535)] = 0


class TracingSettings(_Settings):
    """OpenTelemetry spans over OTLP/HTTP; needs the extra `tracing`.

    `sample_ratio` of the requests that bring no trace context are traced; those that bring one are
    traced if it says so. `step_every`: of a traced request, every so many steps are told.
    `endpoint`: None is what OTEL_EXPORTER_OTLP_ENDPOINT says, else http://localhost:4318.
    """

    enabled: bool = False
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.05
    step_every: Annotated[int, Field(gt=0)] = 16
    endpoint: str | None = None


class AppSettings(_Settings):
    """One application: a gateway, a target and, if `draft` is set, a draft.

    `log_format` is that of the replicas' log files.
    """

    target: EngineConfig
    draft: DraftConfig | None = None
    gateway: GatewaySettings = GatewaySettings()
    target_resources: RankResources = RankResources()
    draft_resources: RankResources = RankResources()
    draft_server: DraftServerSettings = DraftServerSettings()
    tracing: TracingSettings = TracingSettings()
    log_format: Literal["text", "json"] = "text"

    @model_validator(mode="after")
    def _drafters_exist(self) -> AppSettings:
        wants_draft = "draft" in self.target.speculation.drafters
        if wants_draft and self.draft is None:
            raise ValueError("target.speculation.drafters names 'draft', but `draft` is not set")
        if self.draft is not None and not wants_draft:
            raise ValueError("`draft` is set, but target.speculation.drafters does not name it")
        return self


def demo_settings() -> AppSettings:
    """SmolLM2-135M-Instruct in fp32, drafted by the same checkpoint in int8."""
    return AppSettings(
        target=EngineConfig(
            target=ModelConfig(model=DEMO_MODEL, dtype="float32", num_threads=1),
            speculation=SpeculationConfig(drafters=("draft", "ngram"), open_drafts="after_prompt"),
        ),
        draft=DraftConfig(
            draft=ModelConfig(model=DEMO_MODEL, dtype="float32", quantization="int8", num_threads=1)
        ),
    )
