"""From gRPC statuses, and errors told in band, to the exceptions of `specdec.errors`.

The rich details (google.rpc.Status) are read field by field, so that the light client needs no
package for their types.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from specdec.errors import (
    DeadlineError,
    ForbiddenError,
    InvalidRequestError,
    ModelNotFoundError,
    ModelOutputError,
    OverloadedError,
    RequestNotFoundError,
    SpecdecError,
    UnauthenticatedError,
    UnavailableError,
)
from specdec.v1 import inference_pb2

DETAILS_KEY = "grpc-status-details-bin"
DEFAULT_RETRY_AFTER_S = 1.0

Code = grpc.StatusCode
ERRORS: dict[grpc.StatusCode, type[SpecdecError]] = {
    Code.INVALID_ARGUMENT: InvalidRequestError,
    Code.OUT_OF_RANGE: InvalidRequestError,
    Code.FAILED_PRECONDITION: InvalidRequestError,
    Code.NOT_FOUND: ModelNotFoundError,
    Code.UNAUTHENTICATED: UnauthenticatedError,
    Code.PERMISSION_DENIED: ForbiddenError,
    Code.UNAVAILABLE: UnavailableError,
    Code.CANCELLED: UnavailableError,
    Code.DEADLINE_EXCEEDED: DeadlineError,
}
# Where a code stands for several errors, the reason tells which.
ERRORS_BY_REASON: dict[str, type[SpecdecError]] = {
    RequestNotFoundError.reason: RequestNotFoundError,
    ModelOutputError.reason: ModelOutputError,
}
CODE_OF_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in Code}


@dataclass(slots=True)
class Details:
    """What the rich details of a status add to its code and message."""

    reason: str | None = None
    field: str | None = None
    retry_after_s: float | None = None


def error_of_call(error: Any) -> SpecdecError:
    """The exception for a failed call (grpc.RpcError of a call, or grpc.aio.AioRpcError)."""
    details = read_details(error.trailing_metadata() or ())
    return _build(error.code(), error.details() or str(error.code()), details)


def error_in_band(error: inference_pb2.Error) -> SpecdecError:
    """The exception for an error that a stream carried in its last message."""
    retry_after_s = None
    if error.HasField("retry_after"):
        retry_after_s = error.retry_after.seconds + error.retry_after.nanos / 1e9
    code = CODE_OF_NUMBER.get(error.code, Code.UNKNOWN)
    return _build(
        code, error.message, Details(error.reason or None, error.field or None, retry_after_s)
    )


def _build(code: grpc.StatusCode, message: str, details: Details) -> SpecdecError:
    if code is Code.RESOURCE_EXHAUSTED:
        retry_after_s = details.retry_after_s or DEFAULT_RETRY_AFTER_S
        error: SpecdecError = OverloadedError(message, retry_after_s=retry_after_s)
    else:
        usual = ERRORS.get(code, SpecdecError)
        error = ERRORS_BY_REASON.get(details.reason or "", usual)(message, field=details.field)
    if details.reason is not None:
        error.reason = details.reason
    return error


def read_details(trailing_metadata: Iterable[Any]) -> Details:
    """Reason, field and delay out of a call's trailing metadata; details that do not parse are
    as good as none."""
    result = Details()
    for key, value in trailing_metadata:
        if key == DETAILS_KEY:
            try:
                _read_status(value, result)
            except (DecodeError, UnicodeDecodeError):
                return Details()
    return result


def _read_status(data: bytes, result: Details) -> None:
    """google.rpc.Status: details (3) are google.protobuf.Any: type_url (1), value (2)."""
    for number, detail in _fields(data):
        if number != 3:
            continue
        detail_fields = dict(_fields(detail))
        value = detail_fields.get(2, b"")
        match detail_fields.get(1, b"").decode().rpartition("/")[2]:
            case "google.rpc.ErrorInfo":  # reason (1)
                result.reason = _text(value) or result.reason
            case "google.rpc.BadRequest":  # field_violations (1): field (1)
                for _, violation in _fields(value)[:1]:
                    result.field = _text(violation)
            case "google.rpc.RetryInfo":  # retry_delay (1): seconds (1), nanos (2)
                delay = dict(_fields(dict(_fields(value)).get(1, b"")))
                result.retry_after_s = delay.get(1, 0) + delay.get(2, 0) / 1e9


def _fields(data: bytes) -> list[tuple[int, Any]]:
    """Field numbers and raw values of any message: bytes where length-delimited, else a number."""
    fields = UnknownFieldSet(Empty.FromString(data))
    return [(fields[i].field_number, fields[i].data) for i in range(len(fields))]


def _text(data: bytes) -> str | None:
    """The string in field 1 of a message."""
    first = dict(_fields(data)).get(1)
    return first.decode() if first else None
