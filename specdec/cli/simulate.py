"""`specdec simulate`: policies for K on virtual machines, with the engine's own controller."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specdec.cli import simulate_options as options
from specdec.cli.console import messages, output, print_json, progress_bar
from specdec.cli.options import AsJson
from specdec.cli.simulate_options import DRAFTERS, DrafterChoice, check_whole
from specdec.errors import ConfigError

if TYPE_CHECKING:
    from specdec.simulation.requests import SimulatedRequest

EXAMPLES = """Examples:

    specdec simulate --trace traces.jsonl.gz --drafter eagle --concurrency 32 --json

    specdec simulate --trace a.jsonl b.jsonl --drafter both --policy adaptive --policy fixed:3

    specdec simulate --workload mix --policy vllm --policy oracle --ramp 1:256:1 --plot ramp.svg

    specdec simulate --workload cnn --drafter draft --cost llama-70b-tp4 --duration 60 \\
        --arrivals poisson:12 --targets 4 --drafts 1 --network lognormal:0.2:1.5

    specdec simulate --workload gsm8k --drafter draft --cost llama-70b-tp4 --duration 1800 \\
        --arrivals ramp:1:12:1 --targets 1 --max-targets 4 --drafts 1 --max-drafts 4

    specdec simulate --workload mix --duration 86400 --arrivals day:40:400 --targets 100 \\
        --sample 24x20

    specdec simulate --reproduce 2601.11580 --trace gsm8k.jsonl.gz

Policies: adaptive, off, fixed:K, fixed:DRAFTER:K, threshold, vllm, sglang, turbospec, hf, oracle
(oracle without --duration only).

Without --duration a closed loop: sequences that end are replaced at once, and prompts are free.
docs/simulation.md explains what is simulated, and every field of the JSON.

Exit status: 0 done, 2 bad input; nothing is written then."""


def simulate(
    context: typer.Context,
    more_traces: options.MoreTraces = None,
    trace: options.Trace = None,
    workload: options.Workload = None,
    drafter: options.Drafter = DrafterChoice.EAGLE,
    seed: options.Seed = 0,
    policy: options.Policy = None,
    max_k: options.MaxK = 16,
    cost: options.Cost = "llama-8b",
    concurrency: options.Concurrency = 32,
    ramp: options.Ramp = None,
    steps: options.Steps = 2000,
    duration: options.Duration = None,
    arrivals: options.ArrivalsOption = None,
    targets: options.Targets = 1,
    drafts: options.Drafts = 0,
    network: options.Network = "constant:0.3",
    draft_down: options.DraftDown = None,
    kv_tokens: options.KvTokens = 400_000,
    max_batched_tokens: options.MaxBatchedTokens = 2048,
    max_sequences: options.MaxSequences = 256,
    warm_up: options.WarmUp = 30.0,
    sample: options.SampleOption = None,
    gpu_hour_cost: options.GpuHourCost = None,
    target_gpus: options.TargetGpus = None,
    draft_gpus: options.DraftGpus = 1,
    max_targets: options.MaxTargets = None,
    max_drafts: options.MaxDrafts = None,
    start_up: options.StartUp = 120.0,
    reproduce: options.Reproduce = None,
    plot: options.Plot = None,
    as_json: AsJson = False,
) -> None:
    """Compare policies for K in virtual time: goodput, K, acceptance, latencies, cost."""
    check_whole("seed", seed, 0, 2**63 - 1)
    files = [*(trace or ()), *(more_traces or ())]
    if reproduce is not None:
        from specdec.cli import reproduce as reproduction

        reproduction.reproduce(reproduce, files, seed, as_json)
        return
    names = list(dict.fromkeys(policy or ["adaptive"]))
    if plot is not None:
        from specdec.simulation import plots

        plots.check_path(plot)
    service = options.service_options(context)
    requests, facts = _requests(files, workload, drafter, seed)
    facts |= {"seed": seed, "max_k": max_k, "cost": cost, "concurrency": concurrency}
    if service is None:
        _closed_loop(requests, DRAFTERS[drafter], facts, names, ramp, steps, plot, as_json)
        return
    from specdec.cli import simulate_service

    if ramp is not None:
        raise ConfigError("ramp: with --duration, use --arrivals ramp:R1:R2", field="ramp")
    simulate_service.run(service, requests, DRAFTERS[drafter], facts, names, plot, as_json)


def _requests(
    files: list[Path], workload: str | None, drafter: DrafterChoice, seed: int
) -> tuple[tuple[SimulatedRequest, ...], dict[str, Any]]:
    """The requests, and what a report says of them."""
    from specdec.simulation.traces import load_traces
    from specdec.simulation.workloads import synthetic_requests

    facts: dict[str, Any] = {"drafter": drafter.value}
    if (workload is None) == (not files):
        raise ConfigError("trace: name files of traces, or a --workload", field="trace")
    if workload is not None:
        requests = synthetic_requests(workload, DRAFTERS[drafter], seed)
        return requests, facts | {"workload": workload, "num_requests": len(requests)}
    traces = load_traces(files, DRAFTERS[drafter])
    if traces.num_unaligned:
        messages().print(f"left out {traces.num_unaligned} lines whose recordings do not align")
    return traces.requests, facts | {
        "traces": [str(path) for path in files],
        "num_requests": len(traces.requests),
        "num_unaligned": traces.num_unaligned,
    }


def _closed_loop(
    requests: tuple[SimulatedRequest, ...],
    drafters: tuple[str, ...],
    facts: dict[str, Any],
    names: list[str],
    ramp: str | None,
    steps: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    from specdec.cli import simulate_report
    from specdec.simulation import closed_runs
    from specdec.simulation.machines import make_machine

    concurrency = facts["concurrency"]
    check_whole("concurrency", concurrency, 1, closed_runs.MAX_CONCURRENCY)
    check_whole("steps", steps, 1, options.MAX_STEPS)
    levels = closed_runs.constant(concurrency, steps) if ramp is None else _ramp(ramp, steps)
    machine = make_machine(facts["cost"], drafters)
    scenario = closed_runs.ClosedScenario(
        requests, drafters, machine, levels, facts["seed"], facts["max_k"]
    )
    closed_runs.check_policies(scenario, names)
    with progress_bar("simulating", len({*names, closed_runs.BASELINE})) as advance:
        runs = closed_runs.compare(scenario, names, advance)
    facts |= {"ramp": ramp, "steps": steps}
    if ramp is not None:
        facts["concurrency"] = None
    report = facts | simulate_report.closed(runs)
    if plot is not None:
        from specdec.cli import simulate_plots
        from specdec.simulation import plots

        plots.save(plot, simulate_plots.closed(runs), columns=2)
        messages().print(f"wrote {plot}")
    if as_json:
        print_json(report)
    else:
        simulate_report.print_closed(output(), report)


def _ramp(text: str, steps: int) -> list[int]:
    from specdec.simulation.closed_runs import ramp

    try:
        corners = [int(part) for part in text.split(":")]
    except ValueError:
        raise ConfigError(
            f"ramp: takes whole numbers, such as 1:256:1, not {text!r}", field="ramp"
        ) from None
    return ramp(corners, steps)
