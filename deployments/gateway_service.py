"""What HTTP and gRPC have in common at the front door: who calls, for which model, what is asked.

Turns one call into the engine's requests. It knows the target's limits from its description and
refuses early, with the same errors the engine would give.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from deployments.api_keys import Caller, load_api_keys
from deployments.auth import traffic_class_of
from deployments.explanations import ReplicaExplanations, check_found
from deployments.prompts import MAX_MESSAGES, Prompt, Prompter
from deployments.request_records import RequestRecords
from deployments.settings import AppSettings
from deployments.target import TargetDescription
from deployments.target_client import TargetClient
from deployments.tracing import Tracing
from specdec.engine.builder import model_name
from specdec.engine.request import GenerateRequest, allowed_drafters, check_logprobs
from specdec.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    UnavailableError,
)
from specdec.params import SamplingParams, shown, validate_prompt

logger = logging.getLogger(__name__)

HEALTH_REUSE_S = 1.0
# It stands in log lines among other fields: no space, no quote, nothing that ends a field or line.
MAX_REQUEST_ID_CHARS = 128
MAX_RESPONSE_ID_CHARS = MAX_REQUEST_ID_CHARS + 32
REQUEST_ID = re.compile(rf"[A-Za-z0-9._:/@+=~-]{{1,{MAX_REQUEST_ID_CHARS}}}")
# More prompt tokens than these are checked in a thread, so that other streams go on: about 1 ms.
MAX_CHECKED_AT_ONCE = 4096


class GatewayService:
    """One per gateway replica."""

    def __init__(
        self,
        settings: AppSettings,
        target: TargetClient,
        prompter: Prompter,
        tracing: Tracing | None = None,
    ) -> None:
        self.settings = settings.gateway
        self.speculation = settings.target.speculation
        self.max_logprobs_bytes = settings.target.scheduler.max_logprobs_bytes
        self._keys = load_api_keys(self.settings)
        self.model = self.settings.model_name or model_name(settings.target.target)
        self.target = target
        self.records = RequestRecords(target, self.model, tracing, self.settings.log_requests)
        self.prompter = prompter
        self.started_s = int(time.time())
        self._description: TargetDescription | None = None
        self._health: asyncio.Task[None] | None = None
        self._healthy_until_s = 0.0

    async def description(self) -> TargetDescription:
        """The target's limits. They do not change while the application runs."""
        if self._description is None:
            described = await self.target.describe_all()
            if not described:
                raise UnavailableError("the target is not ready; try again")
            self._description = described[0]
        return self._description

    def caller(self, authorization: str | None) -> Caller:
        """Who calls: asked before anything else is looked at.

        Raises UnauthenticatedError where keys are configured and none fits.
        """
        return self._keys.caller(authorization)

    def operator(self, authorization: str | None) -> Caller:
        """As `caller`, for what tells of all tenants. Raises ForbiddenError for other callers."""
        return self._keys.operator(authorization)

    def check_model(self, name: str | None) -> None:
        if name and name != self.model:
            raise ModelNotFoundError(
                f"model {shown(name)} is not served here; served: {self.model!r}", field="model"
            )

    def check_request_id(self, given: str) -> None:
        """It goes into logs and responses as it is. Raises InvalidRequestError."""
        if REQUEST_ID.fullmatch(given) is None:
            raise InvalidRequestError(
                f"request_id: must be 1 to {MAX_REQUEST_ID_CHARS} letters, digits or characters of "
                f"._:/@+=~-, got {shown(given)}",
                field="request_id",
            )

    def check_num_prompts(self, num_prompts: int, n: int = 1) -> None:
        """Before any of them is tokenised. Raises InvalidRequestError."""
        if num_prompts * n > self.settings.max_prompts:
            raise InvalidRequestError(
                f"n: {num_prompts} prompts x n = {shown(n)} exceeds {self.settings.max_prompts}",
                field="n",
            )

    def check_num_messages(self, num_messages: int) -> None:
        """Raises InvalidRequestError."""
        if num_messages > MAX_MESSAGES:
            raise InvalidRequestError(
                f"messages: must have at most {MAX_MESSAGES} entries, got {num_messages}",
                field="messages",
            )

    async def check_tokens(self, token_ids: Sequence[int], field: str) -> None:
        """For ids that are to be decoded one by one: no more than a context holds, all of the
        vocabulary. Raises InvalidRequestError."""
        limits = await self.description()
        if len(token_ids) > limits.max_model_len:
            raise InvalidRequestError(
                f"{field}: {len(token_ids)} tokens are more than the {limits.max_model_len} of the "
                "context",
                field=field,
            )
        for token_id in token_ids:
            if not 0 <= token_id < limits.vocab_size:
                raise InvalidRequestError(
                    f"{field}: {shown(token_id)} is not between 0 and {limits.vocab_size - 1}",
                    field=field,
                )

    async def token_ids(
        self,
        prompt: Prompt,
        field: str = "prompt",
        add_special_tokens: bool = True,
        keep_end: bool = False,
    ) -> list[int]:
        """Tokenised in a thread: a long text must not hold up the other streams. Text that cannot
        fit the context is refused, or with `keep_end` cut."""
        if not isinstance(prompt, str):
            return prompt
        return await asyncio.to_thread(
            self.prompter.encode,
            prompt,
            field,
            add_special_tokens,
            max_tokens=(await self.description()).max_model_len,
            keep_end=keep_end,
        )

    async def chat_token_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        chat_template: str | None = None,
        template_arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        keep_end: bool = False,
    ) -> list[int]:
        """As `token_ids`, for a conversation. A client's own template must be allowed."""
        if chat_template is not None and not self.settings.allow_client_chat_template:
            raise InvalidRequestError(
                "chat_template: this server takes no templates from clients", field="chat_template"
            )
        return await asyncio.to_thread(
            self.prompter.chat,
            messages,
            chat_template,
            template_arguments,
            add_generation_prompt,
            continue_final_message,
            max_tokens=(await self.description()).max_model_len,
            keep_end=keep_end,
        )

    async def requests(
        self,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        partition: str,
        request_id: str,
        n: int = 1,
        timeout_s: float | None = None,
    ) -> list[GenerateRequest]:
        """n requests per prompt, checked. Choice i of a seeded request gets seed + i.

        Raises InvalidRequestError, naming the field.
        """
        self.check_num_prompts(len(prompts), n)
        limits = await self.description()
        if sum(map(len, prompts)) > MAX_CHECKED_AT_ONCE:
            await asyncio.to_thread(self._check, prompts, n, params, limits)
        else:
            self._check(prompts, n, params, limits)
        if timeout_s is not None and not 0 < timeout_s <= self.settings.request_timeout_s:
            raise InvalidRequestError(
                f"timeout: must be above 0 and at most {self.settings.request_timeout_s} seconds, "
                f"got {timeout_s}",
                field="timeout",
            )
        timeout_s = timeout_s or self.settings.request_timeout_s
        total = len(prompts) * n
        return [
            GenerateRequest(
                request_id=request_id if total == 1 else f"{request_id}-{i}",
                prompt_token_ids=prompts[i // n],
                params=_seeded(params, i % n),
                partition=partition,
                timeout_s=timeout_s,
                traffic_class=traffic_class_of(partition),
                is_checked=True,
            )
            for i in range(total)
        ]

    def _check(
        self,
        prompts: Sequence[list[int]],
        n: int,
        params: SamplingParams,
        limits: TargetDescription,
    ) -> None:
        params.validate(limits.vocab_size)
        allowed_drafters(params, self.speculation)
        for prompt in prompts:
            validate_prompt(prompt, params, limits.vocab_size, limits.max_model_len)
        lengths = [len(prompt) for prompt in prompts]
        check_logprobs(params, lengths, n, limits.max_model_len, self.max_logprobs_bytes)

    async def explain(self, caller: Caller, request_id: str) -> list[ReplicaExplanations]:
        """Why a request of the caller's tenant got its K.

        Raises RequestNotFoundError where nothing is known of it, or nothing any more.
        """
        # A response's id is the request's behind a prefix, and a number where there are several.
        self.check_request_id(request_id[:MAX_REQUEST_ID_CHARS])
        if len(request_id) > MAX_RESPONSE_ID_CHARS:
            raise InvalidRequestError(
                f"request_id: must have at most {MAX_RESPONSE_ID_CHARS} characters, "
                f"got {shown(request_id)}",
                field="request_id",
            )
        found = await self.target.explain(request_id, caller.tenant)
        check_found(request_id, found)
        return found

    async def check_health(self) -> None:
        """Generate one token. Calls within a second share one proof. Raises SpecdecError."""
        if time.monotonic() < self._healthy_until_s:
            return
        if self._health is None or self._health.done():
            self._health = asyncio.create_task(self._prove_generation())
        await asyncio.shield(self._health)

    async def _prove_generation(self) -> None:
        """A full or long queue is no illness: restarting a busy target would only add to it. Where
        our own token does not come in time, any token for anybody proves the same."""
        num_before = await self._num_generated()
        params = SamplingParams(max_tokens=1, temperature=0)
        request = GenerateRequest(new_request_id("health"), [0], params, partition="health")
        try:
            async with asyncio.timeout(self.settings.health_timeout_s):
                async for _ in self.target.stream(request):
                    pass
        except OverloadedError:
            logger.debug("healthy: the engine answered that its queue is full")
        except TimeoutError:
            if await self._num_generated() <= num_before:
                raise UnavailableError(
                    f"no token was generated within {self.settings.health_timeout_s} s"
                ) from None
        self._healthy_until_s = time.monotonic() + HEALTH_REUSE_S

    async def _num_generated(self) -> int:
        described = await self.target.describe_all()
        return sum(item.stats.counters.num_generation_tokens for item in described)


def new_request_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def _seeded(params: SamplingParams, offset: int) -> SamplingParams:
    if params.seed is None or offset == 0:
        return params
    wrapped = (params.seed + offset + 2**63) % 2**64 - 2**63
    return replace(params, seed=wrapped)
