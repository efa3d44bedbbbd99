"""The errors that cross a package boundary.

Raised where a fault is found, translated to HTTP or gRPC only at the door
(`deployments/`). `field` names the request or configuration field at fault, as the
user wrote it; `reason` is a stable UPPER_SNAKE word for machines.
"""

from __future__ import annotations


class SpecdecError(Exception):
    """Base of all errors that a caller may want to catch."""

    reason = "INTERNAL"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only attributes do not survive the default pickling, and these errors travel
        # between Ray actors.
        return (_rebuild, (type(self), self.message, self.__dict__.copy()))


def _rebuild(kind: type[SpecdecError], message: str, state: dict[str, object]) -> SpecdecError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class InvalidRequestError(SpecdecError):
    """A request field holds a value that is not allowed. HTTP 400, INVALID_ARGUMENT."""

    reason = "INVALID_ARGUMENT"


class ConfigError(SpecdecError):
    """A configuration value or combination that cannot work. Raised at start, never later."""

    reason = "INVALID_CONFIG"


class ModelNotFoundError(SpecdecError):
    """The request names a model that is not served here. HTTP 404, NOT_FOUND."""

    reason = "MODEL_NOT_FOUND"


class RequestNotFoundError(SpecdecError):
    """Nothing is known of the request that is asked about, or nothing any more. HTTP 404,
    NOT_FOUND."""

    reason = "REQUEST_NOT_FOUND"


class UnauthenticatedError(SpecdecError):
    """No API key, or an unknown one. HTTP 401, UNAUTHENTICATED."""

    reason = "INVALID_API_KEY"


class ForbiddenError(SpecdecError):
    """A known API key, but not one of an operator. HTTP 403, PERMISSION_DENIED."""

    reason = "NOT_AN_OPERATOR"


class BodyTimeoutError(SpecdecError):
    """The end of the request's body did not come in time. HTTP 408."""

    reason = "BODY_TIMEOUT"


class OverloadedError(SpecdecError):
    """The queue is full. HTTP 429 with `Retry-After`, RESOURCE_EXHAUSTED."""

    reason = "QUEUE_FULL"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelOutputError(SpecdecError):
    """The model computed NaN or infinities where this request needed probabilities; other requests
    go on. HTTP 500, INTERNAL."""

    reason = "MODEL_OUTPUT"


class UnavailableError(SpecdecError):
    """The engine or a peer is lost, loading or draining. HTTP 503, UNAVAILABLE."""

    reason = "UNAVAILABLE"


class DeadlineError(SpecdecError):
    """The request's time ran out. HTTP 504, DEADLINE_EXCEEDED."""

    reason = "DEADLINE_EXCEEDED"
