"""Four kinds of requests and what is known of their acceptance, by the names of data sets.

The figures describe Llama-3.1-8B on the prompts of arXiv 2601.11580: rates and curves for prompt
lookup and an EAGLE head as measured there; `draft`, a small model of the target's family, by the
tokens per round that fit its speed-ups with Llama-3-70B.
"""

from __future__ import annotations

from specdec.errors import ConfigError
from specdec.simulation.acceptance_process import DrafterLaw, WorkloadLaw, draw_requests
from specdec.simulation.requests import SimulatedRequest

DRAWN_REQUESTS = 400


def _family_draft(chance: float) -> DrafterLaw:
    """Even acceptance along the positions, spread between requests as that of an EAGLE head."""
    return DrafterLaw((40 * chance, 40 * (1 - chance)), (chance,))


WORKLOADS: dict[str, WorkloadLaw] = {
    "gsm8k": WorkloadLaw(
        prompt_len=94,
        prompt_spread=0.2,
        output_len=165,
        output_spread=0.3,
        drafters={
            "eagle": DrafterLaw((81, 41), (0.65, 0.63, 0.65, 0.62, 0.65, 0.65)),
            "ngram": DrafterLaw((13, 169), (0.56, 0.60, 0.64, 0.71, 0.70, 0.72), 0.03),
            "draft": _family_draft(0.775),  # 2.84 tokens at K = 3
        },
    ),
    "cnn": WorkloadLaw(
        prompt_len=838,
        prompt_spread=0.5,
        output_len=322,
        output_spread=0.4,
        drafters={
            "eagle": DrafterLaw((68, 40), (0.62, 0.64, 0.66, 0.68, 0.73, 0.72)),
            "ngram": DrafterLaw((7.9, 59.5), (0.72, 0.76, 0.78, 0.80, 0.81, 0.82), 0.07),
            "draft": _family_draft(0.67),  # 2.42
        },
    ),
    "sharegpt": WorkloadLaw(
        prompt_len=355,
        prompt_spread=1.1,
        output_len=740,
        output_spread=1.1,
        drafters={
            "eagle": DrafterLaw((14.6, 9.4), (0.59, 0.64, 0.69, 0.73, 0.75, 0.76)),
            "ngram": DrafterLaw((0.9, 8.2), (0.76, 0.79, 0.85, 0.87, 0.88, 0.90), 0.17),
            "draft": _family_draft(0.722),  # 2.62
        },
    ),
    "instructcoder": WorkloadLaw(
        prompt_len=171,
        prompt_spread=0.3,
        output_len=250,
        output_spread=0.8,
        drafters={
            "eagle": DrafterLaw((16.8, 6.8), (0.63, 0.69, 0.74, 0.76, 0.80, 0.78)),
            "ngram": DrafterLaw((2.1, 6.7), (0.88, 0.92, 0.94, 0.94, 0.96, 0.93), 0.43),
            "draft": _family_draft(0.788),  # 2.90
        },
    ),
}
MIX = "mix"
WORKLOAD_NAMES = (*WORKLOADS, MIX)


def synthetic_requests(
    name: str, drafters: tuple[str, ...], seed: int, count: int = DRAWN_REQUESTS
) -> tuple[SimulatedRequest, ...]:
    """`count` requests of WORKLOADS[name], or a quarter of each kind for `mix`.

    Raises ConfigError (field `workload` or `drafter`).
    """
    if name == MIX:
        share = count // len(WORKLOADS)
        return tuple(
            request
            for number, law in enumerate(WORKLOADS.values())
            for request in draw_requests(law, drafters, share, seed + number)
        )
    if name not in WORKLOADS:
        raise ConfigError(
            f"workload: unknown workload {name!r}; allowed are {', '.join(WORKLOAD_NAMES)}",
            field="workload",
        )
    return draw_requests(WORKLOADS[name], drafters, count, seed)
