"""How many bytes a CUDA device has left for the KV pool, measured by a profile run.

The run is the largest step that the limits allow, with logits for every row that can ask for
them, so that whatever is left over may be given to the pool for good. Never run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from specdec.step_plan import StepPlan


def largest_plan(num_tokens: int, num_logit_rows: int, block_size: int) -> StepPlan:
    """The step with the highest memory peak: one prompt chunk of `num_tokens`, logits wanted for
    as many of its rows as any step asks for: a full batch of draft tokens, and log-probabilities
    of prompts beside it."""
    plan = StepPlan()
    blocks = list(range(-(-num_tokens // block_size)))
    plan.add([0] * num_tokens, 0, blocks, block_size, min(num_logit_rows, num_tokens))
    return plan


def free_bytes_after(
    run_largest: Callable[[], object], device: torch.device, utilization: float
) -> int:
    """Bytes left of `utilization` of the device once the peak of `run_largest` is set aside.

    The throw-away pool of the profile run counts into the peak: a small margin. What other
    processes and libraries hold on the device counts as taken.
    """
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    run_largest()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    foreign = total - free - torch.cuda.memory_reserved(device)
    return max(0, int(total * utilization) - foreign - peak)
