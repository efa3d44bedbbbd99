"""The gateway as it stands behind Serve, in this process: its routes and handlers over an engine
of a tiny model. Only Serve itself, its proxy and its handles are missing."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace

import httpx
from ray import serve

from deployments.explanations import ReplicaExplanations
from deployments.gateway import Gateway, http_app
from deployments.gateway_service import GatewayService
from deployments.http_handlers import HttpHandlers
from deployments.prompts import Prompter
from deployments.reader_watch import ReaderWatch, Reading
from deployments.settings import AppSettings
from deployments.target_client import TargetClient
from specdec.engine.async_engine import AsyncEngine
from specdec.engine.request import GenerateRequest
from specdec.sequence import SequenceOutput

KEY, KEYS_VARIABLE = "key-a", "SPECDEC_FUZZ_KEYS"
MODEL = "tiny"
READER_TIMEOUT_S = 60.0


class LocalTarget(TargetClient):
    """A target client whose target is an engine of this process."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._readers = ReaderWatch(self, READER_TIMEOUT_S)

    async def stream(
        self, request: GenerateRequest, stream_id: str = "", reading: Reading | None = None
    ) -> AsyncGenerator[SequenceOutput, None]:
        async with aclosing(self._engine.generate(request)) as outputs:
            async for output in outputs:
                if output.error is not None:
                    raise output.error
                yield output

    async def describe_all(self, timeout_s: float = 0.0) -> list:
        limits = self._engine.engine.limits
        described = SimpleNamespace(
            vocab_size=limits.vocab_size,
            max_model_len=limits.max_model_len,
            drafters=("ngram",),
            max_num_speculative_tokens=8,
        )
        return [described]

    async def explain(self, request_id: str, tenant: str) -> list[ReplicaExplanations]:
        return [ReplicaExplanations("only", self._engine.engine.explain(request_id))]


def gateway_service(engine: AsyncEngine, tokenizer, monkeypatch, **gateway) -> GatewayService:
    """One that asks for a key."""
    monkeypatch.setenv(KEYS_VARIABLE, json.dumps([{"key": KEY, "tenant": "tenant-a"}]))
    settings = AppSettings.model_validate(
        {
            "target": {"target": {"model": MODEL}, "speculation": {"drafters": ["ngram"]}},
            "gateway": {"model_name": MODEL, "api_keys_env": KEYS_VARIABLE, **gateway},
        }
    )
    return GatewayService(settings, LocalTarget(engine), Prompter(tokenizer))


def http_client(service: GatewayService, monkeypatch) -> httpx.AsyncClient:
    """A client of the gateway's own routes; what it raises would be a 500 of Serve's."""
    gateway = object.__new__(Gateway)
    gateway._http = HttpHandlers(service)
    gateway.allowed_origins = service.settings.cors_allow_origins
    context = SimpleNamespace(servable_object=gateway)
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)
    transport = httpx.ASGITransport(app=http_app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")
