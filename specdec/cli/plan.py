"""`specdec plan`: how many replicas of which layout a load needs on stated hardware."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specdec.cli.console import messages, output, print_json
from specdec.cli.options import AsJson
from specdec.cli.simulate_options import check_number, check_whole
from specdec.errors import ConfigError

if TYPE_CHECKING:
    from specdec.simulation.planning.layouts import Demand
    from specdec.simulation.planning.plan import Option, Plan
    from specdec.simulation.roofline import Placed, Roofline

EXAMPLES = """Examples:

    specdec plan llama-3.1-70b@h100x4+llama-3.2-1b --rate 60 --tpot-ms 20 --workload mix

    specdec plan llama-3.1-8b@h100+llama-3.2-1b@l40s --rate 200 --tpot-ms 12 --network 0.3 --json

    specdec plan llama-3.1-8b@h100 --rate 50 --tpot-ms 10 --workload instructcoder

    specdec plan machine.json --rate 10 --tpot-ms 30 --trace traces.jsonl.gz --drafter ngram --check

The machine is TARGET@GPUxN+DRAFT[@GPU], or a .json file of numbers: docs/simulation.md. Without a
draft, prompt lookup is planned.

Exit status: 0 a plan, 2 bad input or no layout that keeps the latency."""

DECIMALS = 4
MAX_K_LIMIT = 32
MIN_HEADROOM = 0.01

Machine = Annotated[str, typer.Argument(help="TARGET@GPUxN+DRAFT[@GPU], or a .json file.")]
Rate = Annotated[float, typer.Option(help="Requests per second at the peak.")]
TpotMs = Annotated[float, typer.Option(help="Milliseconds per output token that must be kept.")]
WorkloadName = Annotated[
    str, typer.Option(help="gsm8k, cnn, sharegpt, instructcoder or mix, where there is no trace.")
]
Trace = Annotated[
    list[Path] | None, typer.Option("--trace", metavar="FILE", help="Acceptance traces instead.")
]
DrafterName = Annotated[
    str | None,
    typer.Option(help="Whose acceptance. Default: draft, or ngram for a machine without one."),
]
NetworkMs = Annotated[
    float, typer.Option("--network", help="Milliseconds of one message to a draft apart.")
]
MaxK = Annotated[int, typer.Option("--max-k", help="The largest K of any sequence.")]
Headroom = Annotated[
    float, typer.Option(help="Part of the capacity that is planned with; the rest is for bursts.")
]
MaxSequences = Annotated[int, typer.Option(help="Sequences of a target's step.")]
GpuHourCost = Annotated[float | None, typer.Option(help="Price of one GPU-hour.")]
Seed = Annotated[int, typer.Option(help="Of requests that are drawn.")]
Check = Annotated[
    bool,
    typer.Option("--check", help="Simulate the best plan, with the engine's controller, for 60 s."),
]


def plan(
    machine: Machine,
    rate: Rate,
    tpot_ms: TpotMs = 50.0,
    workload: WorkloadName = "mix",
    trace: Trace = None,
    drafter: DrafterName = None,
    network: NetworkMs = 0.3,
    max_k: MaxK = 8,
    headroom: Headroom = 0.85,
    max_sequences: MaxSequences = 256,
    gpu_hour_cost: GpuHourCost = None,
    seed: Seed = 0,
    check: Check = False,
    as_json: AsJson = False,
) -> None:
    """Targets, drafts, K and layout for a load, and whether a draft apart pays per GPU."""
    _check_numbers(rate, tpot_ms, network, headroom, max_k, max_sequences, gpu_hour_cost)
    check_whole("seed", seed, 0, 2**63 - 1)
    from specdec.simulation.planning import plan as planning

    of = _machine(machine)
    beside, apart = placements(of)
    name = _drafter(drafter, machine, has_draft=beside is not None)
    requests = _requests(trace or [], workload, name, seed)
    demand = _demand(requests, name, max_k)
    load = planning.Load(rate, tpot_ms / 1000, headroom, max_sequences)
    candidates = planning.layouts(of.target, beside, apart, 2 * network / 1000)
    found = planning.make_plan(candidates, demand, load)
    report: dict[str, Any] = {
        "machine": machine,
        "drafter": name,
        "requests_per_s": rate,
        "tpot_ms": tpot_ms,
        "network_ms": network,
        "headroom": headroom,
        **_found(found, demand, gpu_hour_cost, rate * demand.output_len),
    }
    if check:
        from specdec.simulation.planning.check import simulate_plan

        messages().print("simulating the plan: 60 s of virtual time")
        report["check"] = simulate_plan(found.best, requests, name, load, max_k, network, seed)
    if as_json:
        print_json(report)
    else:
        _print(output(), report, found)


def _check_numbers(
    rate: float,
    tpot_ms: float,
    network: float,
    headroom: float,
    max_k: int,
    max_sequences: int,
    gpu_hour_cost: float | None,
) -> None:
    check_number("rate", rate, may_be_zero=False)
    check_number("tpot_ms", tpot_ms, may_be_zero=False)
    check_number("network", network)
    check_number("headroom", headroom, may_be_zero=False, most=1)
    if headroom < MIN_HEADROOM:
        raise ConfigError(
            f"headroom must be at least {MIN_HEADROOM}, not {headroom}", field="headroom"
        )
    check_whole("max_k", max_k, 0, MAX_K_LIMIT)
    check_whole("max_sequences", max_sequences, 1, 4096)
    if gpu_hour_cost is not None:
        check_number("gpu_hour_cost", gpu_hour_cost)


def _drafter(wanted: str | None, machine: str, has_draft: bool) -> str:
    """Whose acceptance is planned with. Raises ConfigError (field `drafter`)."""
    name = wanted or ("draft" if has_draft else "ngram")
    if (name == "ngram") == has_draft:
        raise ConfigError(
            f"drafter: {name} does not belong to {machine}, which has "
            f"{'a draft' if has_draft else 'no draft'}",
            field="drafter",
        )
    return name


def _machine(text: str) -> Roofline:
    from specdec.simulation.hardware import parse_machine, read_machine

    return read_machine(Path(text)) if text.endswith(".json") else parse_machine(text)


def placements(machine: Roofline) -> tuple[Placed | None, Placed | None]:
    """The draft on the target's GPUs, and apart: as stated, or on one GPU of the target's kind."""
    from dataclasses import replace

    draft = machine.drafts.get("draft")
    if draft is None:
        return None, None
    target = machine.target
    beside = replace(draft, gpu=target.gpu, tensor_parallel_size=target.tensor_parallel_size)
    if draft == beside:
        return beside, replace(draft, tensor_parallel_size=1)
    return beside, draft


def _requests(traces: list[Path], workload: str, drafter: str, seed: int) -> Any:
    from specdec.simulation.traces import load_traces
    from specdec.simulation.workloads import synthetic_requests

    if traces:
        return load_traces(traces, (drafter,)).requests
    return synthetic_requests(workload, (drafter,), seed, count=200)


def _demand(requests: Any, drafter: str, max_k: int) -> Demand:
    from specdec.simulation.planning.layouts import Demand
    from specdec.simulation.renewal import tokens_per_round

    return Demand(
        sum(request.prompt_len for request in requests) / len(requests),
        sum(request.output_len for request in requests) / len(requests),
        {k: tokens_per_round(requests, drafter, k) for k in range(max_k + 1)},
    )


def _found(
    found: Plan, demand: Demand, gpu_hour_cost: float | None, tokens_per_s: float
) -> dict[str, Any]:
    from specdec.simulation.planning.plan import verdict

    return {
        "prompt_tokens": round(demand.prompt_len, 1),
        "output_tokens": round(demand.output_len, 1),
        **_entry(found.best, gpu_hour_cost, tokens_per_s),
        "verdict": verdict(found),
        "disaggregation_pays_per_gpu": _pays(found),
        "layouts": [_entry(option, gpu_hour_cost, tokens_per_s) for option in found.options],
    }


def _pays(found: Plan) -> bool | None:
    """None where there is nothing to compare."""
    from specdec.simulation.planning.plan import SAME

    apart, together = found.best_apart, found.best_together
    if apart is None or together is None:
        return None
    return apart.requests_per_s_per_gpu > (1 + SAME) * together.requests_per_s_per_gpu


def _entry(option: Option, gpu_hour_cost: float | None, tokens_per_s: float) -> dict[str, Any]:
    entry = {
        "layout": option.layout.name,
        "targets": option.num_targets,
        "drafts": option.num_drafts,
        "gpus": option.gpus,
        "k": [option.least_k, option.most_k],
        "k_at_load": option.loaded.k,
        "batch_at_load": option.loaded.batch,
        "tpot_ms_at_load": round(1000 * option.loaded.tpot_s, DECIMALS),
        "draft_busy": round(option.loaded.draft_busy, DECIMALS),
        "requests_per_s_per_gpu": round(option.requests_per_s_per_gpu, DECIMALS),
    }
    if gpu_hour_cost is not None:
        per_token = option.gpus * gpu_hour_cost / 3600 / tokens_per_s
        entry["cost_per_million_tokens"] = round(1e6 * per_token, DECIMALS)
    return entry


def _print(console: Console, report: dict[str, Any], found: Plan) -> None:
    from specdec.cli.simulate_report import print_table

    console.print(
        f"{report['requests_per_s']:g} requests/s of {report['prompt_tokens']:g} prompt and "
        f"{report['output_tokens']:g} output tokens, at most {report['tpot_ms']:g} ms per token\n"
    )
    least, most = report["k"]
    drafts = f", {report['drafts']} drafts" if report["drafts"] else ""
    console.print(
        f"[bold]{report['layout']}: {report['targets']} targets{drafts}, {report['gpus']} GPUs, "
        f"K from {least} to {most}[/]"
    )
    console.print(
        f"at this load about {report['batch_at_load']} sequences per target, K = "
        f"{report['k_at_load']}, {report['tpot_ms_at_load']:.1f} ms per token\n"
    )
    headings = ["layout", "targets", "drafts", "GPUs", "K", "ms/token", "requests/s per GPU"]
    has_price = "cost_per_million_tokens" in report
    headings += ["per M tokens"] if has_price else []
    rows = []
    for each in report["layouts"]:
        row = [
            each["layout"],
            str(each["targets"]),
            str(each["drafts"]),
            str(each["gpus"]),
            "-".join(map(str, dict.fromkeys(each["k"]))),
            f"{each['tpot_ms_at_load']:.1f}",
            f"{each['requests_per_s_per_gpu']:.3f}",
        ]
        rows.append(row + ([f"{each['cost_per_million_tokens']:.3f}"] if has_price else []))
    print_table(console, headings, rows)
    console.print(f"\n{report['verdict']}")
    if "check" in report:
        console.print(f"\nsimulated: {_check_text(report['check'])}")


def _check_text(check: dict[str, Any]) -> str:
    tpot, ttft = check["tpot_ms"], check["ttft_ms"]
    return (
        f"{check['goodput_tokens_per_s']:.0f} tokens/s of {check['offered_tokens_per_s']:.0f} "
        f"offered, TPOT p50/p99 {tpot['p50']:.1f}/{tpot['p99']:.1f} ms, TTFT p50/p99 "
        f"{ttft['p50']:.0f}/{ttft['p99']:.0f} ms, mean K {check['mean_k']:.2f}"
    )
