"""The machines of arXiv 2601.11580: fits to its speed-ups, and for Qwen3-8B what follows from them.

Qwen3-8B was not fitted: it is Llama-3.1-8B scaled by its bytes, and its drafters take the part of a
step's time that figure 4 gives them for one sequence.
"""

from __future__ import annotations

from specdec.simulation.costs import LOOKUP, MS, ROOF_8B, ROOF_70B_TP4, Calibrated, DraftTime, Roof
from specdec.simulation.reproduction.published import SHARES
from specdec.simulation.workloads import WORKLOADS

H100_BYTES_PER_S = 3.35e12
QWEN_WEIGHTS, QWEN_KV = 16.4 / 16.06, 147_456 / 131_072
QWEN_DRAFT_KV_BYTES = 114_688
ROOF_QWEN_8B = Roof(
    weights=ROOF_8B.weights * QWEN_WEIGHTS,
    token=ROOF_8B.token * QWEN_WEIGHTS,
    kv=ROOF_8B.kv * QWEN_KV,
    around=ROOF_8B.around,
    prefill=ROOF_8B.prefill * QWEN_WEIGHTS,
)
FITTED = ("llama-3.1-8b", "llama-3-70b")
ROOFS = {"llama-3.1-8b": ROOF_8B, "llama-3-70b": ROOF_70B_TP4, "qwen3-8b": ROOF_QWEN_8B}
GPUS = {"llama-3.1-8b": 1, "llama-3-70b": 4, "qwen3-8b": 1}
# Milliseconds of a draft step, from fits with K = 3.
STEP_MS = {
    ("llama-3.1-8b", "eagle"): 1.6 / 3,
    ("llama-3.1-8b", "eagle3"): 1.6 / 3,
    ("llama-3-70b", "eagle"): 1.5 / 3,
    ("llama-3-70b", "draft"): 3.5 / 3,
}


def machine(model: str, dataset: str) -> Calibrated:
    """The machine of a model, with the drafters that were measured on it."""
    times = {"ngram": LOOKUP}
    times |= {name: DraftTime(ms * MS) for (of, name), ms in STEP_MS.items() if of == model}
    if model == "qwen3-8b":
        times |= _qwen_drafters(dataset)
    return Calibrated(ROOFS[model], times, GPUS[model])


def _qwen_drafters(dataset: str) -> dict[str, DraftTime]:
    """A 0.6B draft reads 0.8 of its target's KV bytes in every draft step."""
    context = context_tokens(dataset)
    kv_s = context * QWEN_DRAFT_KV_BYTES / H100_BYTES_PER_S
    return {
        "eagle3": DraftTime(_step_ms_of_share("eagle3") * MS),
        "draft": DraftTime(_step_ms_of_share("draft") * MS - kv_s, token_s=kv_s),
    }


def _step_ms_of_share(drafter: str) -> float:
    """Drafting over verification, for one sequence, times the weights' time, over three steps."""
    drafting, verifying, *_ = SHARES["qwen3-8b", drafter][0]
    return drafting / verifying * ROOF_QWEN_8B.weights / 3


def context_tokens(dataset: str) -> float:
    """KV tokens of a sequence on average over its time: the prompt and half of the output."""
    law = WORKLOADS[dataset]
    return law.prompt_len + law.output_len / 2
