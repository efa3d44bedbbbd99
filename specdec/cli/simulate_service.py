"""`specdec simulate --duration`: a whole service in virtual time, from options to report."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

from specdec.cli import simulate_plots, simulate_report
from specdec.cli.console import messages, output, print_json, progress_bar
from specdec.cli.simulate_options import (
    MAX_DURATION_S,
    MAX_TARGETS,
    ServiceOptions,
    check_number,
    check_whole,
)
from specdec.errors import ConfigError
from specdec.simulation import plots
from specdec.simulation.closed_runs import BASELINE, MAX_CONCURRENCY
from specdec.simulation.machines import make_machine
from specdec.simulation.policies import PolicySetting, policy_setting
from specdec.simulation.requests import SimulatedRequest
from specdec.simulation.service.admission import Limits
from specdec.simulation.service.arrivals import parse_arrivals
from specdec.simulation.service.drafts import Outage
from specdec.simulation.service.fleet import Service
from specdec.simulation.service.network import parse_latency
from specdec.simulation.service.report import ServiceRun
from specdec.simulation.service.sampling import Sample, run_sampled, windows
from specdec.simulation.service.scaling import Scaling


def run(
    options: ServiceOptions,
    requests: tuple[SimulatedRequest, ...],
    drafters: tuple[str, ...],
    facts: dict[str, Any],
    names: list[str],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Simulate each policy beside `off`, and print."""
    service = _service(options, requests, drafters, facts)
    sample = _sample(options)
    windows(sample, facts["seed"])
    settings = {
        name: _setting(name, drafters, facts["max_k"]) for name in dict.fromkeys([BASELINE, *names])
    }
    runs = _run_all(service, settings, sample, facts["seed"])
    target_gpus = options.target_gpus or service.cost.num_gpus
    report = facts | {
        "duration_s": options.duration,
        "arrivals": options.arrivals,
        "concurrency": None if options.arrivals else facts["concurrency"],
        "targets": options.targets,
        "drafts": options.drafts,
        "gpus": options.targets * target_gpus + options.drafts * options.draft_gpus,
        "sample": options.sample,
        "max_targets": options.max_targets,
        "max_drafts": options.max_drafts,
    }
    price = None
    if options.gpu_hour_cost is not None:
        price = (options.gpu_hour_cost, target_gpus, options.draft_gpus)
    report |= simulate_report.service([runs[name] for name in names], runs[BASELINE], price)
    if plot is not None:
        plots.save(plot, simulate_plots.service([runs[name] for name in names]), columns=2)
        messages().print(f"wrote {plot}")
    if as_json:
        print_json(report)
    else:
        simulate_report.print_service(output(), report)


def _run_all(
    service: Service, settings: dict[str, PolicySetting], sample: Sample, seed: int
) -> dict[str, ServiceRun]:
    runs = {}
    with progress_bar("simulating windows", len(settings) * sample.num_windows) as advance:
        for name, setting in settings.items():
            sampled = run_sampled(service, setting, sample, seed, advance)
            runs[name] = ServiceRun(name, setting.drafters, service, sampled)
    return runs


def _setting(name: str, drafters: tuple[str, ...], max_k: int) -> PolicySetting:
    if name == "oracle":
        raise ConfigError(
            "policy: oracle looks at a batch that is known, and runs without --duration only",
            field="policy",
        )
    return policy_setting(name, drafters, max_k)


def _service(
    options: ServiceOptions,
    requests: SequenceOf[SimulatedRequest],
    drafters: tuple[str, ...],
    facts: dict[str, Any],
) -> Service:
    check_number("duration", options.duration, may_be_zero=False, most=MAX_DURATION_S)
    check_number("warm_up", options.warm_up, most=MAX_DURATION_S)
    check_whole("concurrency", facts["concurrency"], 1, MAX_CONCURRENCY)
    check_whole("targets", options.targets, 1, MAX_TARGETS)
    check_whole("drafts", options.drafts, 0, MAX_TARGETS)
    check_whole("kv_tokens", options.kv_tokens, 1, 10**9)
    check_whole("max_batched_tokens", options.max_batched_tokens, 1, 10**6)
    check_whole("max_sequences", options.max_sequences, 1, options.max_batched_tokens)
    check_whole("target_gpus", options.target_gpus or 1, 1, 1024)
    check_whole("draft_gpus", options.draft_gpus, 1, 1024)
    if options.gpu_hour_cost is not None:
        check_number("gpu_hour_cost", options.gpu_hour_cost)
    load = facts["concurrency"]
    cost = make_machine(facts["cost"], drafters)
    return Service(
        requests=requests,
        drafters=drafters,
        cost=cost,
        load=parse_arrivals(options.arrivals, options.duration) if options.arrivals else load,
        max_k=facts["max_k"],
        num_targets=options.targets,
        num_drafts=options.drafts,
        latency=parse_latency(options.network),
        outages=tuple(
            outage for text in options.draft_down for outage in _outages(text, options.drafts)
        ),
        limits=Limits(options.max_sequences, options.max_batched_tokens, options.kv_tokens),
        scaling=_scaling(options, cost.num_gpus) if options.scales else None,
    )


def _scaling(options: ServiceOptions, num_gpus: int) -> Scaling:
    most_targets, most_drafts = options.max_targets, options.max_drafts
    most_targets = options.targets if most_targets is None else most_targets
    most_drafts = options.drafts if most_drafts is None else most_drafts
    check_whole("max_targets", most_targets, 1, MAX_TARGETS)
    check_whole("max_drafts", most_drafts, 0, MAX_TARGETS)
    check_number("start_up", options.start_up, most=MAX_DURATION_S)
    if options.sample is not None:
        raise ConfigError(
            "sample: replicas that come and go have a history; leave --sample out", field="sample"
        )
    return Scaling(
        most_targets,
        most_drafts,
        options.start_up,
        target_cost=options.target_gpus or num_gpus,
        draft_cost=options.draft_gpus,
    )


def _outages(text: str, num_drafts: int) -> list[tuple[int, Outage]]:
    """`START:END` of all drafts, or `NUMBER@START:END` of one."""
    number, at, times = text.rpartition("@")
    try:
        start_s, end_s = (float(part) for part in times.split(":"))
        numbers = [int(number)] if at else list(range(num_drafts))
    except ValueError:
        start_s, end_s, numbers = math.nan, math.nan, []
    if not 0 <= start_s < end_s < math.inf:
        raise ConfigError(
            f"draft_down: {text!r} is no START:END or DRAFT@START:END with 0 <= START < END, in "
            "seconds",
            field="draft_down",
        )
    if not num_drafts:
        raise ConfigError("draft_down: there are no --drafts", field="draft_down")
    return [(each, Outage(start_s, end_s)) for each in numbers]


def _sample(options: ServiceOptions) -> Sample:
    if options.sample is None:
        return Sample(options.duration, 1, options.duration, options.warm_up)
    count, _, length = options.sample.partition("x")
    try:
        num_windows, window_s = int(count), float(length)
    except ValueError:
        num_windows, window_s = 0, 0.0
    if num_windows < 1 or not 0 < window_s < math.inf:
        raise ConfigError(
            f"sample: {options.sample!r} is no WxS, windows and seconds, such as 24x20",
            field="sample",
        )
    return Sample(options.duration, num_windows, window_s, options.warm_up)
