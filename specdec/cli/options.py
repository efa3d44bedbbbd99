"""Options that several commands share, and how they become parameter and config objects."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from specdec.errors import InvalidRequestError
from specdec.params import SpeculationParams

if TYPE_CHECKING:
    from specdec.config import DraftConfig, EngineConfig

SAMPLING = "Sampling"
SPECULATION = "Speculation"
ENGINE = "Models and engine"

DEMO_MODEL = "smollm2"


class SpeculationMode(StrEnum):
    """Who chooses the number of draft tokens."""

    AUTO = "auto"
    OFF = "off"
    FIXED = "fixed"


class Quantization(StrEnum):
    """Numbers that a model's linear layers run in."""

    NONE = "none"
    INT8 = "int8"


class Dtype(StrEnum):
    """Numbers that a model is loaded in; `auto` is the checkpoint's own."""

    AUTO = "auto"
    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Device(StrEnum):
    """Where models run; `auto` is a GPU where there is one."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


MaxTokens = Annotated[int, typer.Option(min=1, help="Most new tokens.", rich_help_panel=SAMPLING)]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Makes sampled text reproducible, whatever the drafter and K.",
        rich_help_panel=SAMPLING,
    ),
]
Target = Annotated[
    str, typer.Option(help="Target: a name, folder or hub id.", rich_help_panel=ENGINE)
]
TargetQuantization = Annotated[
    Quantization, typer.Option(help="Numbers of the target's layers.", rich_help_panel=ENGINE)
]
Draft = Annotated[
    str | None,
    typer.Option(
        help="Draft model, run in this process; without it, only n-grams draft.",
        rich_help_panel=ENGINE,
    ),
]
DraftQuantization = Annotated[
    Quantization, typer.Option(help="Numbers of the draft's layers.", rich_help_panel=ENGINE)
]
DtypeOption = Annotated[
    Dtype, typer.Option("--dtype", help="Number format of both models.", rich_help_panel=ENGINE)
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads per model.", rich_help_panel=ENGINE)
]
MaxK = Annotated[
    int,
    typer.Option(
        "--max-num-speculative-tokens",
        min=0,
        max=128,
        help="The operator's limit on K.",
        rich_help_panel=ENGINE,
    ),
]


def speculation_params(
    mode: SpeculationMode, k: int | None, drafter: str | None, verification: str = "auto"
) -> SpeculationParams:
    """The request's `speculation` object. Raises InvalidRequestError, naming the field."""
    params = SpeculationParams(mode=mode.value, k=k, drafter=drafter, verification=verification)
    params.validate()
    return params


def engine_config(
    target: str,
    target_quantization: Quantization,
    has_draft: bool,
    dtype: Dtype,
    threads: int | None,
    max_num_speculative_tokens: int,
) -> EngineConfig:
    """The configuration of an in-process target engine."""
    from specdec.config import EngineConfig, ModelConfig, SpeculationConfig

    return EngineConfig(
        target=ModelConfig(
            model=target,
            quantization=target_quantization.value,
            dtype=dtype.value,
            num_threads=threads,
        ),
        speculation=SpeculationConfig(
            max_num_speculative_tokens=max_num_speculative_tokens,
            drafters=("draft", "ngram") if has_draft else ("ngram",),
        ),
    )


def draft_config(
    draft: str | None,
    quantization: Quantization,
    dtype: Dtype,
    threads: int | None,
    max_num_speculative_tokens: int,
) -> DraftConfig | None:
    """The configuration of an in-process draft engine, or None where no draft was named."""
    from specdec.config import DraftConfig, ModelConfig

    if draft is None:
        return None
    return DraftConfig(
        draft=ModelConfig(
            model=draft, quantization=quantization.value, dtype=dtype.value, num_threads=threads
        ),
        max_num_speculative_tokens=max(1, max_num_speculative_tokens),
    )


def check_drafter(drafter: str | None, draft: str | None, default_target: str) -> None:
    """Refuse `--drafter draft` without a draft model, saying how to name one."""
    if drafter == "draft" and draft is None:
        raise InvalidRequestError(
            "--drafter draft needs a draft model: add --draft MODEL, for example "
            f"--draft {default_target} --draft-quantization int8",
            field="speculation.drafter",
        )
