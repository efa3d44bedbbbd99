"""Options of `specdec simulate`, by panel, and the groups of values that its parts take."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specdec.errors import ConfigError


class DrafterChoice(StrEnum):
    """Who may draft. `both`: an EAGLE head and prompt lookup, chosen per request."""

    NGRAM = "ngram"
    EAGLE = "eagle"
    DRAFT = "draft"
    BOTH = "both"


# In order of preference: policies that know one drafter only take the first.
DRAFTERS = {
    DrafterChoice.NGRAM: ("ngram",),
    DrafterChoice.EAGLE: ("eagle",),
    DrafterChoice.DRAFT: ("draft",),
    DrafterChoice.BOTH: ("eagle", "ngram"),
}
MAX_STEPS = 10_000_000
MAX_TARGETS = 10_000
MAX_NUMBER = 1e9
MAX_DURATION_S = 366 * 86_400.0

WORKLOAD, LOAD, SERVICE, OUTPUT = "Requests", "Load", "Service (with --duration)", "Output"

MoreTraces = Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", hidden=True)]
Trace = Annotated[
    list[Path] | None,
    typer.Option(
        "--trace",
        metavar="FILE...",
        help="Acceptance traces, JSON lines, also .gz; several files, or the option repeated.",
        rich_help_panel=WORKLOAD,
    ),
]
Workload = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Draw requests where there are no traces: gsm8k, cnn, sharegpt, instructcoder, mix.",
        rich_help_panel=WORKLOAD,
    ),
]
Drafter = Annotated[
    DrafterChoice, typer.Option("--drafter", help="Who drafts.", rich_help_panel=WORKLOAD)
]
Seed = Annotated[
    int, typer.Option(help="Of requests, their order, and arrivals.", rich_help_panel=WORKLOAD)
]
Policy = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar="NAME", help="Who chooses K; may be repeated. [adaptive]"),
]
MaxK = Annotated[int, typer.Option("--max-k", help="The largest K of any sequence.")]
Cost = Annotated[
    str,
    typer.Option(
        metavar="MACHINE",
        help="What steps take: a name, profile:FILE, FILE.json, or TARGET@GPUxN+DRAFT.",
    ),
]
Concurrency = Annotated[
    int, typer.Option(help="Sequences that decode together.", rich_help_panel=LOAD)
]
Ramp = Annotated[
    str | None,
    typer.Option(
        metavar="A:B[:C...]",
        help="Concurrency that moves from A to B and on, with equal steps per doubling.",
        rich_help_panel=LOAD,
    ),
]
Steps = Annotated[
    int, typer.Option(help="Steps counted, after 200 of warm-up.", rich_help_panel=LOAD)
]
Duration = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        help="Simulate a whole service for S virtual seconds: queues, prompts, drafts apart.",
        rich_help_panel=SERVICE,
    ),
]
ArrivalsOption = Annotated[
    str | None,
    typer.Option(
        "--arrivals",
        metavar="LAW",
        help="poisson:RATE, bursts:LOW:HIGH:PERIOD, ramp:R1:R2[:R3...], day:LOW:HIGH, in requests "
        "per second. Default: a closed loop of --concurrency clients for each target.",
        rich_help_panel=SERVICE,
    ),
]
Targets = Annotated[int, typer.Option(help="Target replicas.", rich_help_panel=SERVICE)]
Drafts = Annotated[
    int, typer.Option(help="Draft replicas apart; 0: beside the target.", rich_help_panel=SERVICE)
]
MaxTargets = Annotated[
    int | None,
    typer.Option(
        help="Let targets come and go by the service's own rule: --targets at least, so many at "
        "most.",
        rich_help_panel=SERVICE,
    ),
]
MaxDrafts = Annotated[
    int | None,
    typer.Option(help="The same for drafts, from --drafts on.", rich_help_panel=SERVICE),
]
StartUp = Annotated[
    float,
    typer.Option(
        metavar="S", help="What a new replica takes until it serves.", rich_help_panel=SERVICE
    ),
]
Network = Annotated[
    str,
    typer.Option(
        metavar="LAW",
        help="Of one message to a draft: constant:MS or lognormal:MEDIAN_MS:P99_MS.",
        rich_help_panel=SERVICE,
    ),
]
DraftDown = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[DRAFT@]START:END",
        help="A draft, all without a number, is gone between two seconds; may be repeated.",
        rich_help_panel=SERVICE,
    ),
]
KvTokens = Annotated[
    int, typer.Option(help="KV tokens that a target holds.", rich_help_panel=SERVICE)
]
MaxBatchedTokens = Annotated[
    int, typer.Option(help="Token budget of a step.", rich_help_panel=SERVICE)
]
MaxSequences = Annotated[
    int, typer.Option(help="Sequences of a target's step.", rich_help_panel=SERVICE)
]
WarmUp = Annotated[
    float,
    typer.Option(
        metavar="S",
        help="Seconds before that do not count: a few times what a request takes.",
        rich_help_panel=SERVICE,
    ),
]
SampleOption = Annotated[
    str | None,
    typer.Option(
        "--sample",
        metavar="WxS",
        help="Simulate W windows of S seconds, spread over the duration, for up to four targets, "
        "and estimate the rest; the error of that is stated.",
        rich_help_panel=SERVICE,
    ),
]
GpuHourCost = Annotated[
    float | None,
    typer.Option(help="Price of one GPU-hour: cost per million tokens.", rich_help_panel=SERVICE),
]
TargetGpus = Annotated[
    int | None,
    typer.Option(help="GPUs of a target. Default: the machine's.", rich_help_panel=SERVICE),
]
DraftGpus = Annotated[
    int, typer.Option(help="GPUs of a draft that is apart.", rich_help_panel=SERVICE)
]
Reproduce = Annotated[
    str | None,
    typer.Option(
        metavar="PAPER",
        help="Published speed-ups beside simulated ones: arXiv 2601.11580. With --trace also from "
        "recordings, whose file names tell their data sets. All other options but --seed rest.",
        rich_help_panel=OUTPUT,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw goodput and K over time, and latencies, as .png or .svg.",
        rich_help_panel=OUTPUT,
    ),
]


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Of a service, as typed."""

    duration: float
    arrivals: str | None
    targets: int
    drafts: int
    network: str
    draft_down: tuple[str, ...]
    kv_tokens: int
    max_batched_tokens: int
    max_sequences: int
    warm_up: float
    sample: str | None
    gpu_hour_cost: float | None
    target_gpus: int | None
    draft_gpus: int
    max_targets: int | None
    max_drafts: int | None
    start_up: float

    @property
    def scales(self) -> bool:
        """Whether replicas come and go."""
        return self.max_targets is not None or self.max_drafts is not None


def service_options(context: typer.Context) -> ServiceOptions | None:
    """What the command line says of a service; None for a closed loop, without --duration.

    Raises ConfigError, naming it, for an option that would have no effect.
    """

    def refuse(name: str, needed: str) -> None:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise ConfigError(f"{name}: needs {needed}", field=name)

    given = {field.name: context.params[field.name] for field in fields(ServiceOptions)}
    if given["duration"] is None:
        for name in given:
            refuse(name, "--duration")
        return None
    service = ServiceOptions(**given | {"draft_down": tuple(given["draft_down"] or ())})
    if not service.scales:
        refuse("start_up", "--max-targets or --max-drafts")
    return service


def check_whole(name: str, value: int, least: int, most: int) -> None:
    """Raise ConfigError, naming the option, where a whole number lies outside of its range."""
    if not least <= value <= most:
        raise ConfigError(f"{name} must be between {least} and {most}, not {value}", field=name)


def check_number(
    name: str, value: float, may_be_zero: bool = True, most: float = MAX_NUMBER
) -> None:
    """Raise ConfigError, naming the option, for a number that is negative, not finite, or above
    `most`: beyond that, sums overflow, or nobody lives to see the end."""
    if not (math.isfinite(value) and value >= 0) or (value == 0 and not may_be_zero):
        bound = "at least 0" if may_be_zero else "above 0"
        raise ConfigError(f"{name} must be finite and {bound}, not {value}", field=name)
    if value > most:
        raise ConfigError(f"{name} must be at most {most:g}, not {value}", field=name)
