"""A plan put to the test: its replicas, or a few of them, in the service simulation."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from specdec.simulation.planning.plan import Load, Option
from specdec.simulation.policies import policy_setting
from specdec.simulation.requests import SimulatedRequest
from specdec.simulation.roofline import Roofline
from specdec.simulation.service.admission import Limits
from specdec.simulation.service.arrivals import poisson
from specdec.simulation.service.fleet import Service
from specdec.simulation.service.network import Latency
from specdec.simulation.service.report import ServiceRun
from specdec.simulation.service.sampling import Sample, run_sampled

SECONDS, WARM_UP_S = 60.0, 30.0
WINDOWS, WINDOW_S = 3, 10.0
MAX_WHOLE_TARGETS = 4


def simulate_plan(
    option: Option,
    requests: SequenceOf[SimulatedRequest],
    drafter: str,
    load: Load,
    max_k: int,
    network_ms: float,
    seed: int,
) -> dict[str, Any]:
    """The engine's controller at the planned load: what it commits, and its latencies."""
    layout = option.layout
    context = float(np.mean([r.prompt_len + r.output_len / 2 for r in requests]))
    drafts = {} if layout.draft is None else {"draft": layout.draft}
    service = Service(
        requests=requests,
        drafters=(drafter,),
        cost=Roofline(layout.target, drafts, draft_context=context),
        load=poisson(load.requests_per_s),
        max_k=max_k,
        num_targets=option.num_targets,
        num_drafts=option.num_drafts,
        latency=Latency(network_ms / 1000),
        limits=Limits(load.max_num_sequences, 2048, layout.kv_capacity_tokens()),
    )
    name = "adaptive" if option.most_k else "off"
    whole = option.num_targets <= MAX_WHOLE_TARGETS
    windows = (1, SECONDS) if whole else (WINDOWS, WINDOW_S)
    sample = Sample(SECONDS, *windows, WARM_UP_S)
    sampled = run_sampled(service, policy_setting(name, (drafter,), max_k), sample, seed)
    run = ServiceRun(name, (drafter,), service, sampled)
    mean_len = float(np.mean([request.output_len for request in requests]))
    return {
        "policy": name,
        "offered_tokens_per_s": round(load.requests_per_s * mean_len, 1),
        "goodput_tokens_per_s": round(run.goodput_tokens_per_s, 1),
        "goodput_relative_standard_error": round(sampled.standard_error, 4),
        "tpot_ms": _milliseconds(run.tpot_s),
        "ttft_ms": _milliseconds(run.ttft_s),
        "mean_k": round(run.totals.num_drafted / max(run.totals.num_decodes, 1), 3),
    }


def _milliseconds(values: list[float]) -> dict[str, float]:
    """Median and 99th percentile; 0 where nothing ended."""
    low, high = np.percentile(values, (50, 99)) if values else (0.0, 0.0)
    return {"p50": round(1000 * float(low), 3), "p99": round(1000 * float(high), 3)}
