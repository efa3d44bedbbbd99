"""Which requests a replica computes in its next step: one token budget, and room for KV.

First come, first served; the latest is the first to be preempted and is recomputed later, as in
the engine's scheduler, with tokens in place of blocks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from specdec.simulation.requests import SimulatedRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """max_num_batched_tokens: of a step, prompt chunks, decoding and draft tokens together.
    kv_capacity_tokens: of all sequences of a replica."""

    max_num_sequences: int = 256
    max_num_batched_tokens: int = 2048
    kv_capacity_tokens: int = 400_000


@dataclass(slots=True)
class Job:
    """A request on its way. `position`: output tokens so far; `num_computed`: tokens of prompt and
    earlier output whose KV is there, of `num_known`."""

    request: SimulatedRequest
    arrived_s: float
    position: int = 0
    num_computed: int = 0
    first_token_s: float | None = None
    seq_id: int = 0

    @property
    def num_known(self) -> int:
        return self.request.prompt_len + self.position


@dataclass(slots=True)
class Chunks:
    """Prefill of one step: (job, tokens), and those of the jobs that are complete after it."""

    parts: list[tuple[Job, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(tokens for _, tokens in self.parts)


class Admission:
    """The queue of a replica, and the prompts that it is computing."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: deque[Job] = deque()
        self.prefilling: list[Job] = []

    @property
    def num_reserved_tokens(self) -> int:
        """KV held for prompts that are being computed."""
        return sum(job.num_known for job in self.prefilling)

    def fits(self, request: SimulatedRequest) -> bool:
        """Whether the whole request could ever be held."""
        return request.prompt_len + request.output_len <= self.limits.kv_capacity_tokens

    def schedule(
        self, num_decodes: int, num_decode_kv_tokens: int, num_reserved: int, may_admit: bool
    ) -> Chunks:
        """Prompt chunks beside `num_decodes` decoding sequences; admits who has room.

        num_reserved: tokens of the budget that are kept for drafts; one is left for prompts.
        """
        chunks = Chunks()
        budget = self.limits.max_num_batched_tokens - num_decodes
        budget = min(budget, max(1, budget - (num_reserved if num_decodes else 0)))
        for job in self.prefilling:
            budget -= self._add(chunks, job, budget)
        free = self.limits.kv_capacity_tokens - num_decode_kv_tokens - self.num_reserved_tokens
        free -= num_decodes
        room = self.limits.max_num_sequences - num_decodes - len(self.prefilling)
        room = room if may_admit else 0
        while self.waiting and budget > 0 and room > 0 and self.waiting[0].num_known < free:
            job = self.waiting.popleft()
            self.prefilling.append(job)
            free -= job.num_known + 1
            room -= 1
            budget -= self._add(chunks, job, budget)
        return chunks

    def _add(self, chunks: Chunks, job: Job, budget: int) -> int:
        tokens = min(job.num_known - job.num_computed, max(budget, 0))
        if tokens > 0:
            chunks.parts.append((job, tokens))
        return tokens

    def advance(self, chunks: Chunks) -> list[Job]:
        """The chunks were computed; returns the jobs that now have all they knew."""
        for job, tokens in chunks.parts:
            job.num_computed += tokens
        done = [job for job in self.prefilling if job.num_computed >= job.num_known]
        self.prefilling = [job for job in self.prefilling if job.num_computed < job.num_known]
        return done

    def preempt(self, job: Job) -> None:
        """Back to the head of the queue, without its KV."""
        job.num_computed = 0
        self.waiting.appendleft(job)
