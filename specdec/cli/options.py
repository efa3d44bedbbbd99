"""Options that several commands share, and how they become parameter and config objects."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec.errors import InvalidRequestError
from specdec.params import SpeculationParams

if TYPE_CHECKING:
    from specdec.config import DraftConfig, EngineConfig

SAMPLING = "Sampling"
SPECULATION = "Speculation"
ENGINE = "Models and engine"

DEMO_MODEL = "smollm2"
API_KEY_VARIABLE = "SPECDEC_API_KEY"
# gRPC takes a longer deadline for one that has passed.
MAX_TIMEOUT_S = 7 * 86_400.0


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


def _option(help: str, panel: str | None, *names: str, **limits: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **limits)


MaxTokens = Annotated[int, _option("Most new tokens.", SAMPLING, min=1)]
Temperature = Annotated[float, _option("0 is greedy.", SAMPLING)]
TopP = Annotated[float, _option("Nucleus mass.", SAMPLING)]
TopK = Annotated[int, _option("Likeliest tokens kept; 0: all.", SAMPLING)]
MinP = Annotated[float, _option("Least share of the top probability.", SAMPLING)]
Seed = Annotated[
    int | None, _option("Makes sampled text reproducible, whatever the drafter and K.", SAMPLING)
]
Stop = Annotated[list[str] | None, _option("Stop before this text; may be repeated.", SAMPLING)]
IgnoreEos = Annotated[bool, _option("Go on after end-of-text.", SAMPLING)]

Speculation = Annotated[SpeculationMode, _option("Who chooses K.", SPECULATION)]
FixedK = Annotated[int | None, _option("K of --speculation fixed.", SPECULATION, "--k", min=0)]
Drafter = Annotated[str | None, _option("draft or ngram.", SPECULATION)]
VerificationRule = Annotated[str, _option("auto, coupled, rejection or block.", SPECULATION)]
Explain = Annotated[bool, _option("Say which k was chosen when and why.", SPECULATION, "--explain")]

Target = Annotated[str, _option("Target: a name, folder or hub id.", ENGINE)]
TargetQuantization = Annotated[Quantization, _option("Numbers of the target's layers.", ENGINE)]
Draft = Annotated[str | None, _option("Draft model; without one, only n-grams draft.", ENGINE)]
DraftQuantization = Annotated[Quantization, _option("Numbers of the draft's layers.", ENGINE)]
DtypeOption = Annotated[Dtype, _option("Number format of both models.", ENGINE, "--dtype")]
Threads = Annotated[int | None, _option("CPU threads per model.", ENGINE, min=1)]
SelfCheck = Annotated[
    bool,
    _option(
        "Compare with the models' own forward at start.", ENGINE, "--self-check/--skip-self-check"
    ),
]
MaxK = Annotated[
    int,
    _option("The operator's limit on K.", ENGINE, "--max-num-speculative-tokens", min=0, max=128),
]
Chat = Annotated[bool, _option("Send prompts as a user's chat message.", None)]
AsJson = Annotated[bool, _option("Print one JSON value on one line.", None, "--json")]


def speculation_params(
    mode: SpeculationMode,
    k: int | None,
    drafter: str | None,
    verification: str = "auto",
    explain: bool = False,
) -> SpeculationParams:
    """The request's `speculation` object. Raises InvalidRequestError, naming the field."""
    params = SpeculationParams(
        mode=mode.value, k=k, drafter=drafter, verification=verification, explain=explain
    )
    params.validate()
    return params


def engine_configs(
    target: str,
    target_quantization: Quantization,
    draft: str | None,
    draft_quantization: Quantization,
    dtype: Dtype,
    threads: int | None,
    max_num_speculative_tokens: int,
    self_check: bool = True,
) -> tuple[EngineConfig, DraftConfig | None]:
    """The configuration of an in-process target engine, and of its draft if there is one."""
    from specdec.config import DraftConfig, EngineConfig, ModelConfig, SpeculationConfig

    def model(name: str, quantization: Quantization) -> ModelConfig:
        return ModelConfig(
            model=name,
            quantization=quantization.value,
            dtype=dtype.value,
            num_threads=threads,
            self_check=self_check,
        )

    engine = EngineConfig(
        target=model(target, target_quantization),
        speculation=SpeculationConfig(
            max_num_speculative_tokens=max_num_speculative_tokens,
            drafters=("ngram",) if draft is None else ("draft", "ngram"),
        ),
    )
    if draft is None:
        return engine, None
    drafting = DraftConfig(
        draft=model(draft, draft_quantization),
        max_num_speculative_tokens=max(1, max_num_speculative_tokens),
    )
    return engine, drafting


def check_drafter(drafter: str | None, draft: str | None, target: str) -> None:
    """Refuse `--drafter draft` without a draft model, saying how to name one."""
    if drafter == "draft" and draft is None:
        raise InvalidRequestError(
            "--drafter draft needs a draft model: add --draft MODEL, for example "
            f"--draft {target} --draft-quantization int8",
            field="speculation.drafter",
        )
