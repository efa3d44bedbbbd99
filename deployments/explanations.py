"""Why requests got their K, on the way out: from the target replicas to gRPC messages and JSON.

It also says what is missing: a request nobody knows, or one that the logs no longer reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from specdec.engine.explanations import MAX_REQUESTS, Explained
from specdec.errors import RequestNotFoundError
from specdec.params import shown
from specdec.sequence import Explanation
from specdec.speculation.controller.decision_log import MAX_STEPS
from specdec.v1 import inference_pb2 as pb

NAMES = tuple(field.name for field in fields(Explanation))
FINISH_REASONS = {
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "abort": pb.FINISH_REASON_ABORT,
    "error": pb.FINISH_REASON_ERROR,
}


@dataclass(frozen=True, slots=True)
class ReplicaExplanations:
    """What one target replica knows of a request."""

    replica_id: str
    sequences: list[Explained]


def check_found(request_id: str, answers: Sequence[ReplicaExplanations]) -> None:
    """Raises RequestNotFoundError, which says whether the request is unknown or too long ago."""
    sequences = [each for answer in answers for each in answer.sequences]
    if not sequences:
        raise RequestNotFoundError(
            f"request {shown(request_id)} is not known: each target replica remembers its last "
            f"{MAX_REQUESTS} sequences that came to a decode step",
            field="request_id",
        )
    if all(each.num_steps > 0 and not each.explanations for each in sequences):
        raise RequestNotFoundError(
            f"the log no longer reaches request {shown(request_id)}: each target replica keeps its "
            f"last {MAX_STEPS} steps; ask with the request, by speculation.explain",
            field="request_id",
        )


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """One decode step, under the names of `Explanation`."""
    return {name: getattr(explanation, name) for name in NAMES}


def explanation_message(explanation: Explanation) -> pb.Explanation:
    """The same as a message; absent is what is None."""
    given = explanation_json(explanation)
    return pb.Explanation(**{name: value for name, value in given.items() if value is not None})


def explain_message(answers: Sequence[ReplicaExplanations]) -> pb.ExplainResponse:
    """All sequences of a request, from all replicas, by name."""
    sequences = [
        pb.ExplainedSequence(
            request_id=each.request_id,
            replica_id=answer.replica_id,
            finish_reason=_finish_reason(each.finish_reason),
            num_steps=each.num_steps,
            explanations=[explanation_message(one) for one in each.explanations],
        )
        for answer in answers
        for each in answer.sequences
    ]
    return pb.ExplainResponse(sequences=sorted(sequences, key=lambda each: each.request_id))


def _finish_reason(name: str | None) -> pb.FinishReason:
    return pb.FINISH_REASON_UNSPECIFIED if name is None else FINISH_REASONS[name]
