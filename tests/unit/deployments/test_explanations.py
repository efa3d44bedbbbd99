"""Whose requests are explained, what is said where nothing is known, and which replica spoke."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from ray.exceptions import GetTimeoutError

from deployments.auth import owner_of, partition_of
from deployments.explanations import ReplicaExplanations
from deployments.gateway_service import GatewayService
from deployments.grpc_handlers import GrpcHandlers
from deployments.settings import AppSettings
from deployments.target import Target
from deployments.target_client import TargetClient
from specdec.engine.explanations import Explained
from specdec.errors import UnavailableError
from specdec.sequence import Explanation
from specdec.v1 import inference_pb2 as pb

STEP = Explanation(
    3, 1.5, "on", None, 2, None, None, (0.9, 0.4, 0.2), 0.3, 0.1, 1.2, 1.0, "because"
)


def explained(request_id="r", tenant="tenant", num_steps=1, explanations=(STEP,)):
    partition = partition_of(tenant, "salt")
    return Explained(request_id, partition, "stop", num_steps, tuple(explanations))


@pytest.mark.parametrize("tenant", ["", "a", 'a", "b', "[]"])
def test_the_owner_of_a_partition_is_the_tenant_that_it_was_made_of(tenant):
    assert owner_of(partition_of(tenant, "salt")) == tenant
    assert owner_of(partition_of(tenant, None)) == tenant


def test_the_health_check_is_nobodys():
    assert owner_of("health") is None


async def test_a_target_tells_a_tenant_its_own_requests_only():
    """Two tenants may use one id."""
    mine, theirs = explained(tenant="a"), explained(tenant="b")
    engine = SimpleNamespace(explain=lambda request_id: [mine, theirs])
    target = SimpleNamespace(
        _engine=SimpleNamespace(engine=engine), _replica_id="t1", _explaining=asyncio.Lock()
    )
    explain = Target.explain
    assert (await explain(target, "r", "a")).sequences == [mine]
    assert (await explain(target, "r", "b")).sequences == [theirs]
    assert (await explain(target, "r", "")).sequences == []


class Handle:
    """A deployment whose replicas answer a broadcast as scripted."""

    def __init__(self, answers) -> None:
        self.answers, self.asked = answers, []

    def options(self, **_):
        return self

    def broadcast(self, *arguments):
        self.asked.append(arguments)
        return self

    async def results_async(self, timeout_s, return_exceptions):
        assert timeout_s > 0
        assert return_exceptions
        await asyncio.sleep(0)
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers


KNOWN = ReplicaExplanations("t1", [explained()])
EMPTY = ReplicaExplanations("t2", [])


async def test_every_replica_is_asked_and_one_that_knows_is_enough():
    handle = Handle([EMPTY, KNOWN, RuntimeError("gone")])
    assert await TargetClient(handle, 60.0).explain("r", "tenant") == [EMPTY, KNOWN]
    assert handle.asked == [("explain", "r", "tenant")]


@pytest.mark.parametrize("answers", [[EMPTY, RuntimeError("gone")], GetTimeoutError("late")])
async def test_silence_is_not_taken_for_ignorance(answers):
    with pytest.raises(UnavailableError):
        await TargetClient(Handle(answers), 60.0).explain("r", "tenant")


class Context:
    """As much of Serve's gRPC context as the handlers use."""

    def __init__(self, key) -> None:
        self.key, self.code, self.trailing = key, None, []

    def invocation_metadata(self):
        return [("authorization", f"Bearer {self.key}")]

    def set_code(self, code) -> None:
        self.code = code

    def set_details(self, details) -> None:
        self.details = details

    def set_trailing_metadata(self, metadata) -> None:
        self.trailing = metadata

    @property
    def reason(self):
        status = status_pb2.Status.FromString(dict(self.trailing)["grpc-status-details-bin"])
        info = error_details_pb2.ErrorInfo()
        status.details[0].Unpack(info)
        return info.reason


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    monkeypatch.setenv("SPECDEC_TEST_KEYS", "[{key: key, tenant: tenant}]")


async def ask(answers, request_id="r", key="key"):
    settings = AppSettings.model_validate(
        {
            "target": {"target": {"model": "tiny"}, "speculation": {"drafters": []}},
            "gateway": {"api_keys_env": "SPECDEC_TEST_KEYS"},
        }
    )
    handle = Handle(answers)
    service = GatewayService(settings, TargetClient(handle, 60.0), None)
    context = Context(key)
    reply = await GrpcHandlers(service).explain(pb.ExplainRequest(request_id=request_id), context)
    return reply, context, handle


async def test_all_choices_are_told_by_name_with_their_replica():
    first = ReplicaExplanations("t1", [explained("r-1")])
    second = ReplicaExplanations("t2", [explained("r-0", num_steps=9)])
    reply, context, handle = await ask([first, second])
    assert context.code is None
    assert handle.asked == [("explain", "r", "tenant")]
    told = [(s.request_id, s.replica_id, s.num_steps) for s in reply.sequences]
    assert told == [("r-0", "t2", 9), ("r-1", "t1", 1)]
    (step,) = reply.sequences[0].explanations
    assert (step.step, step.k, step.reason, step.drafter) == (3, 2, "because", "")
    assert not step.HasField("num_draft_tokens")
    assert list(step.survival) == [0.9, 0.4, 0.2]
    assert reply.sequences[0].finish_reason == pb.FINISH_REASON_STOP


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([EMPTY], "request 'r' is not known"),
        (
            [ReplicaExplanations("t1", [explained(num_steps=7, explanations=())])],
            "the log no longer reaches request 'r'",
        ),
    ],
)
async def test_not_found_says_whether_it_is_unknown_or_too_long_ago(answers, words):
    reply, context, _ = await ask(answers)
    assert context.code is grpc.StatusCode.NOT_FOUND
    assert context.reason == "REQUEST_NOT_FOUND"
    assert words in context.details
    assert not reply.sequences


async def test_a_request_before_its_first_decode_step_is_found():
    reply, context, _ = await ask(
        [ReplicaExplanations("t1", [explained(num_steps=0, explanations=())])]
    )
    assert context.code is None
    assert reply.sequences[0].num_steps == 0


@pytest.mark.parametrize(
    ("request_id", "key", "code"),
    [
        ("r", "wrong", grpc.StatusCode.UNAUTHENTICATED),
        ("", "key", grpc.StatusCode.INVALID_ARGUMENT),
        ("x" * 500, "key", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_no_target_is_asked_by_a_stranger_or_for_nonsense(request_id, key, code):
    _, context, handle = await ask([KNOWN], request_id, key)
    assert context.code is code
    assert handle.asked == []
