"""Errors on Serve's gRPC ingress, delivered the way that Serve really delivers them.

Serve's context has no abort. In a unary call, setting code, details and the rich status and then
*returning an empty message* brings all of it to the client; raising loses the metadata. In a
stream they must be set *before the last message is yielded*; that message carries the error in
band as well.
"""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from ray.serve.grpc_util import RayServegRPCContext

from specdec.errors import (
    BodyTimeoutError,
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
from specdec.v1 import inference_pb2 as pb

DOMAIN = "specdec"
CODES: dict[type[SpecdecError], grpc.StatusCode] = {
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    ForbiddenError: grpc.StatusCode.PERMISSION_DENIED,
    ModelNotFoundError: grpc.StatusCode.NOT_FOUND,
    RequestNotFoundError: grpc.StatusCode.NOT_FOUND,
    BodyTimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
    OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    ModelOutputError: grpc.StatusCode.INTERNAL,
}


def fail(context: RayServegRPCContext, error: SpecdecError) -> pb.Error:
    """Set the call's status from `error`; returns the in-band form. Then return or yield an empty
    message, and nothing after it."""
    status = rich_status(error)
    context.set_code(_code(error))
    context.set_details(status.message)
    # A list: Serve appends to it, and a TypeError here would lose the status.
    context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
    in_band = pb.Error(
        code=status.code, reason=error.reason, message=status.message, field=error.field or ""
    )
    if isinstance(error, OverloadedError):
        in_band.retry_after.CopyFrom(_duration(error.retry_after_s))
    return in_band


def rich_status(error: SpecdecError) -> status_pb2.Status:
    """google.rpc.Status with ErrorInfo, and BadRequest or RetryInfo where they apply."""
    code = _code(error)
    details = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)]
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, (OverloadedError, UnavailableError)):
        delay_s = error.retry_after_s if isinstance(error, OverloadedError) else 1.0
        details.append(error_details_pb2.RetryInfo(retry_delay=_duration(delay_s)))
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=_message(error))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def _code(error: SpecdecError) -> grpc.StatusCode:
    return CODES.get(type(error), grpc.StatusCode.INTERNAL)


def _message(error: SpecdecError) -> str:
    return error.message if type(error) in CODES else "internal error"


def _duration(seconds: float) -> duration_pb2.Duration:
    return duration_pb2.Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))
