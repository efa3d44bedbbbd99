"""One generation as the command line sees it, in this process or on a server.

Both roads give the same `Step`s and the same `Outcome`, so that what is printed does not depend
on where the model runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from specdec.errors import SpecdecError, UnavailableError

if TYPE_CHECKING:
    from specdec.client import Chunk, Client
    from specdec.engine import Engine, GenerateRequest
    from specdec.sequence import Explanation, RequestMetrics

Decode = Callable[[list[int]], str]


@dataclass(slots=True)
class Step:
    """What one engine step added: committed tokens, and the draft tokens that it verified."""

    token_ids: list[int]
    text: str
    draft_token_ids: list[int] = field(default_factory=list)
    num_accepted_tokens: int = 0


@dataclass(slots=True)
class SpeculationSummary:
    """How speculation went for one request; see README for the words."""

    mode: str = "auto"
    drafter: str | None = None
    verification: str | None = None
    disabled_reason: str | None = None
    clipped_k: int | None = None
    num_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    explanations: tuple[Explanation, ...] = ()

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted, or None where nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts, or None where nothing was drafted."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None


@dataclass(slots=True)
class Outcome:
    """A finished generation. Times in seconds, as seen from here."""

    model: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    num_prompt_tokens: int = 0
    time_to_first_token_s: float | None = None
    total_s: float = 0.0
    speculation: SpeculationSummary = field(default_factory=SpeculationSummary)

    @property
    def tokens_per_s(self) -> float | None:
        """New tokens per second over the whole request, prompt processing included."""
        return len(self.token_ids) / self.total_s if self.total_s > 0 else None

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; `token_ids` is at its top level."""
        result = asdict(self)
        result["num_output_tokens"] = len(self.token_ids)
        result["tokens_per_s"] = self.tokens_per_s
        result["speculation"]["acceptance_rate"] = self.speculation.acceptance_rate
        result["speculation"]["mean_acceptance_length"] = self.speculation.mean_acceptance_length
        return result

    def add(self, step: Step, elapsed_s: float) -> None:
        """Take in one step that ended `elapsed_s` after the start."""
        if step.token_ids and self.time_to_first_token_s is None:
            self.time_to_first_token_s = elapsed_s
        self.token_ids += step.token_ids
        self.text += step.text
        self.total_s = elapsed_s


def generate_local(
    engine: Engine, request: GenerateRequest, model: str, on_step: Callable[[Step], None]
) -> Outcome:
    """Run one request on an engine in this process. Raises the request's own error, if it fails."""
    outcome = Outcome(model=model, num_prompt_tokens=len(request.prompt_token_ids))
    started_s = time.monotonic()
    for output in engine.generate([request]):
        step = Step(
            output.token_ids, output.text, output.draft_token_ids, output.num_accepted_tokens
        )
        outcome.add(step, time.monotonic() - started_s)
        on_step(step)
        if output.finish_reason is not None:
            outcome.finish_reason = output.finish_reason
            outcome.stop_reason = output.stop_reason
            _raise_for(output.finish_reason, output.error)
        if output.metrics is not None:
            outcome.speculation = _summary(output.metrics)
    return outcome


def generate_remote(
    client: Client,
    prompt: str | list[dict[str, str]],
    options: dict[str, Any],
    timeout_s: float,
    on_step: Callable[[Step], None],
) -> Outcome:
    """Run one request on a server. Raises the exceptions of the client."""
    outcome = Outcome(model=client.get_model().name)
    started_s = time.monotonic()
    for chunk in client.generate(prompt, timeout_s=timeout_s, **options):
        step = Step(
            list(chunk.token_ids),
            chunk.text,
            list(chunk.draft_token_ids),
            chunk.num_accepted_tokens,
        )
        outcome.add(step, time.monotonic() - started_s)
        on_step(step)
        if chunk.finish_reason is not None:
            _close(outcome, chunk)
    return outcome


def _close(outcome: Outcome, last: Chunk) -> None:
    outcome.finish_reason = last.finish_reason
    outcome.stop_reason = last.stop_reason
    if last.usage is not None:
        outcome.num_prompt_tokens = last.usage.num_prompt_tokens
    if last.speculation is not None:
        names = SpeculationSummary.__slots__
        outcome.speculation = SpeculationSummary(
            **{name: getattr(last.speculation, name) for name in names}
        )


def _raise_for(finish_reason: str, error: SpecdecError | None) -> None:
    if error is not None:
        raise error
    if finish_reason == "error":
        raise UnavailableError("the engine failed the request without saying why")


def _summary(metrics: RequestMetrics) -> SpeculationSummary:
    stats = metrics.stats
    return SpeculationSummary(
        mode=metrics.mode,
        drafter=metrics.drafter,
        verification=metrics.verification.value,
        disabled_reason=metrics.disabled_reason,
        clipped_k=metrics.clipped_k,
        num_steps=stats.num_steps,
        num_drafts=stats.num_drafts,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        explanations=tuple(metrics.explanations or ()),
    )
