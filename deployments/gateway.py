"""The gateway deployment: HTTP and gRPC in, one Serve handle call per sequence out.

Runs on CPU, holds a tokenizer and no model. Handlers live in `http_handlers.py` and
`grpc_handlers.py`; here are the routes, and the one place where errors become responses.
"""

# No `from __future__ import annotations` here: Serve rewrites the routes' signatures, and FastAPI
# then needs real classes in them, not their names.

import asyncio
import logging
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from ray import serve
from ray.serve.grpc_util import RayServegRPCContext
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from deployments.gateway_service import GatewayService
from deployments.grpc_handlers import GrpcHandlers
from deployments.http_edge import Cors, HeadAsGet
from deployments.http_handlers import HttpHandlers
from deployments.logs import join_serve_log
from deployments.openai_requests import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from deployments.openai_responses import error_body
from deployments.openapi import json_body
from deployments.page_routes import router as page_router
from deployments.prompts import Prompter
from deployments.settings import AppSettings
from deployments.target_client import TargetClient
from deployments.tracing import Tracing, start_tracing
from deployments.write_buffers import bound_write_buffers
from specdec.errors import OverloadedError, SpecdecError, UnauthenticatedError
from specdec.model.tokenizer import load_tokenizer
from specdec.v1 import inference_pb2 as pb

logger = logging.getLogger(__name__)

# Without FastAPI's two pages of documentation: they load their scripts from another host.
http_app = FastAPI(title="specdec", openapi_url="/openapi.json", docs_url=None, redoc_url=None)
http_app.include_router(page_router)


def _allowed_origins() -> tuple[str, ...]:
    """Serve builds the application before the gateway, which knows the settings."""
    origins: tuple[str, ...] = serve.get_replica_context().servable_object.allowed_origins
    return origins


http_app.add_middleware(HeadAsGet)
http_app.add_middleware(Cors, origins=_allowed_origins)


@http_app.exception_handler(SpecdecError)
async def _on_specdec_error(request: Request, error: SpecdecError) -> Response:
    status, body = error_body(error)
    headers = {}
    if isinstance(error, OverloadedError):
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    if isinstance(error, UnauthenticatedError):
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(body, status_code=status, headers=headers)


@http_app.exception_handler(HTTPException)
async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    kind = "NotFoundError" if error.status_code == 404 else "BadRequestError"
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = {"message": message, "type": kind, "param": None, "code": error.status_code}
    return JSONResponse({"error": body}, status_code=error.status_code, headers=error.headers)


@http_app.exception_handler(ClientDisconnect)
async def _on_disconnect(request: Request, error: ClientDisconnect) -> Response:
    """Who left before the body's end reads no answer, and leaving is no fault of ours."""
    logger.debug("%s %s: the client left", request.method, request.url.path)
    return Response(status_code=499)


@http_app.exception_handler(Exception)
async def _on_bug(request: Request, error: Exception) -> Response:
    logger.exception("unhandled error in %s %s", request.method, request.url.path)
    status, body = error_body(SpecdecError(str(error)))
    # Trying again would meet the same bug.
    return JSONResponse(body, status_code=status, headers={"x-should-retry": "false"})


@serve.ingress(http_app)
class Gateway:
    """One gateway replica."""

    # Serve calls __del__ also where the constructor failed.
    _tracing: Tracing | None = None

    def __init__(self, settings: AppSettings, target: DeploymentHandle) -> None:
        join_serve_log()
        bound_write_buffers()
        prompter = Prompter(load_tokenizer(settings.target.target))
        self.allowed_origins = settings.gateway.cors_allow_origins
        replica_id = serve.get_replica_context().replica_id.unique_id
        self._tracing = start_tracing(settings.tracing, "gateway", replica_id)
        service = GatewayService(
            settings,
            TargetClient(target, settings.gateway.reader_timeout_s),
            prompter,
            self._tracing,
        )
        self._http = HttpHandlers(service)
        self._grpc = GrpcHandlers(service)

    async def __del__(self) -> None:
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.shutdown)

    @http_app.post("/v1/completions", openapi_extra=json_body(CompletionBody))
    async def http_completions(self, request: Request) -> Response:
        """Continue prompts."""
        return await self._http.completions(request)

    @http_app.post("/v1/chat/completions", openapi_extra=json_body(ChatBody))
    async def http_chat(self, request: Request) -> Response:
        """Answer a conversation."""
        return await self._http.chat(request)

    @http_app.get("/v1/models")
    async def http_models(self, request: Request) -> Response:
        """List the served model."""
        return await self._http.models(request)

    @http_app.get("/v1/models/{name:path}")
    async def http_model(self, request: Request, name: str) -> Response:
        """Describe the served model: context, drafters, limits."""
        # "/v1/models/" is the list for clients that end each path with a slash.
        return await (self._http.model(request, name) if name else self._http.models(request))

    @http_app.post("/tokenize", openapi_extra=json_body(TokenizeBody))
    async def http_tokenize(self, request: Request) -> Response:
        """Turn a prompt or a conversation into token ids."""
        return await self._http.tokenize(request)

    @http_app.post("/detokenize", openapi_extra=json_body(DetokenizeBody))
    async def http_detokenize(self, request: Request) -> Response:
        """Turn token ids into text."""
        return await self._http.detokenize(request)

    @http_app.get("/health")
    async def http_health(self) -> Response:
        """Generate one token: 200 means that the target answers."""
        return await self._http.health()

    @http_app.get("/metrics")
    async def http_metrics(self, request: Request) -> Response:
        """The whole fleet's metrics, as Prometheus text."""
        return await self._http.metrics(request)

    @http_app.get("/live")
    async def http_live(self, request: Request) -> Response:
        """The whole fleet now, as JSON: what the page and `specdec top` show."""
        return await self._http.live(request)

    @http_app.get("/version")
    async def http_version(self) -> Response:
        """Tell the version of specdec."""
        return self._http.version()

    # The names below are those of specdec.v1.InferenceService, since Serve looks them up; the
    # parameter must be called grpc_context, or Serve does not pass it.

    async def Generate(
        self, request: pb.GenerateRequest, grpc_context: RayServegRPCContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        async for response in self._grpc.generate(request, grpc_context):
            yield response

    async def Complete(
        self, request: pb.CompleteRequest, grpc_context: RayServegRPCContext
    ) -> pb.CompleteResponse:
        return await self._grpc.complete(request, grpc_context)

    async def GetModel(
        self, request: pb.GetModelRequest, grpc_context: RayServegRPCContext
    ) -> pb.GetModelResponse:
        return await self._grpc.get_model(request, grpc_context)

    async def Tokenize(
        self, request: pb.TokenizeRequest, grpc_context: RayServegRPCContext
    ) -> pb.TokenizeResponse:
        return await self._grpc.tokenize(request, grpc_context)

    async def Detokenize(
        self, request: pb.DetokenizeRequest, grpc_context: RayServegRPCContext
    ) -> pb.DetokenizeResponse:
        return await self._grpc.detokenize(request, grpc_context)

    async def Explain(
        self, request: pb.ExplainRequest, grpc_context: RayServegRPCContext
    ) -> pb.ExplainResponse:
        return await self._grpc.explain(request, grpc_context)
