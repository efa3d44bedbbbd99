"""`specdec simulate`: policies for K on virtual machines, with the engine's own controller."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec.cli.console import messages, output, print_json, progress_bar
from specdec.cli.options import AsJson
from specdec.errors import ConfigError

if TYPE_CHECKING:
    from specdec.simulation.closed_runs import ClosedScenario

EXAMPLES = """Examples:

    specdec simulate --trace traces.jsonl.gz --drafter eagle --concurrency 32 --json

    specdec simulate --trace a.jsonl b.jsonl --drafter both --policy adaptive --policy fixed:3

    specdec simulate --trace a.jsonl --drafter ngram --policy vllm --policy oracle --ramp 1:256:1

Policies: adaptive, off, fixed:K, fixed:DRAFTER:K, threshold, vllm, sglang, turbospec, hf, oracle.
docs/simulation.md explains what is simulated, and every field of the JSON.

Exit status: 0 done, 2 bad input; nothing is written then."""


class DrafterChoice(StrEnum):
    """Which recordings of a trace may be drafted with."""

    NGRAM = "ngram"
    EAGLE = "eagle"
    BOTH = "both"


# In order of preference: policies that know one drafter only take the first.
DRAFTERS = {
    DrafterChoice.NGRAM: ("ngram",),
    DrafterChoice.EAGLE: ("eagle",),
    DrafterChoice.BOTH: ("eagle", "ngram"),
}
MAX_STEPS = 10_000_000

WORKLOAD, LOAD = "Requests", "Load"

MoreTraces = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE]...", help="More trace files.", hidden=True)
]
Trace = Annotated[
    list[Path] | None,
    typer.Option(
        "--trace",
        metavar="FILE...",
        help="Acceptance traces, JSON lines, also .gz; several files, or the option repeated.",
        rich_help_panel=WORKLOAD,
    ),
]
Drafter = Annotated[
    DrafterChoice, typer.Option("--drafter", help="Who drafts.", rich_help_panel=WORKLOAD)
]
Policy = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar="NAME", help="Who chooses K; may be repeated. [adaptive]"),
]
MaxK = Annotated[int, typer.Option("--max-k", help="The largest K of any sequence.")]
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
Seed = Annotated[int, typer.Option(help="Of the order of requests.", rich_help_panel=WORKLOAD)]


def simulate(
    more_traces: MoreTraces = None,
    trace: Trace = None,
    drafter: Drafter = DrafterChoice.EAGLE,
    policy: Policy = None,
    max_k: MaxK = 16,
    concurrency: Concurrency = 32,
    ramp: Ramp = None,
    steps: Steps = 2000,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare policies for K on recorded requests: goodput, K, acceptance, in virtual time."""
    files = [*(trace or ()), *(more_traces or ())]
    scenario, facts = _scenario(files, drafter, max_k, concurrency, ramp, steps, seed)
    from specdec.cli import simulate_report
    from specdec.simulation import closed_runs

    names = list(dict.fromkeys(policy or ["adaptive"]))
    closed_runs.check_policies(scenario, names)
    with progress_bar("simulating", len({*names, closed_runs.BASELINE})) as advance:
        runs = closed_runs.compare(scenario, names, advance)
    report = facts | simulate_report.closed(runs)
    if as_json:
        print_json(report)
    else:
        simulate_report.print_closed(output(), report)


def _scenario(
    files: list[Path],
    drafter: DrafterChoice,
    max_k: int,
    concurrency: int,
    ramp: str | None,
    steps: int,
    seed: int,
) -> tuple[ClosedScenario, dict[str, object]]:
    """What is simulated, and the facts of it that a report names."""
    from specdec.simulation.closed_runs import MAX_CONCURRENCY, ClosedScenario, constant
    from specdec.simulation.costs import Llama8B
    from specdec.simulation.traces import load_traces

    _check("concurrency", concurrency, 1, MAX_CONCURRENCY)
    _check("steps", steps, 1, MAX_STEPS)
    _check("seed", seed, 0, 2**63 - 1)
    levels = constant(concurrency, steps) if ramp is None else _ramp(ramp, steps)
    if not files:
        raise ConfigError("trace: name at least one file of traces", field="trace")
    drafters = DRAFTERS[drafter]
    traces = load_traces(files, drafters)
    if traces.num_unaligned:
        messages().print(f"left out {traces.num_unaligned} lines whose recordings do not align")
    facts: dict[str, object] = {
        "drafter": drafter.value,
        "concurrency": concurrency if ramp is None else None,
        "ramp": ramp,
        "steps": steps,
        "seed": seed,
        "max_k": max_k,
        "traces": [str(path) for path in files],
        "num_requests": len(traces.requests),
        "num_unaligned": traces.num_unaligned,
    }
    return ClosedScenario(traces.requests, drafters, Llama8B(), levels, seed, max_k), facts


def _ramp(text: str, steps: int) -> list[int]:
    from specdec.simulation.closed_runs import ramp

    try:
        corners = [int(part) for part in text.split(":")]
    except ValueError:
        raise ConfigError(
            f"ramp: takes whole numbers, such as 1:256:1, not {text!r}", field="ramp"
        ) from None
    return ramp(corners, steps)


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name} must be between {least} and {most}, not {value}", field=name)
