"""specdec.v1.InferenceService through Serve, by the light client and by plain grpc."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from specdec import AsyncClient
from specdec.errors import (
    DeadlineError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    RequestNotFoundError,
    UnauthenticatedError,
)
from specdec.sequence import Explanation
from specdec.v1 import inference_pb2, inference_pb2_grpc
from tests.serve.harness import (
    CALL_TIMEOUT_S,
    MAX_K,
    MAX_MODEL_LEN,
    holds_nothing,
    wait_until,
)
from tests.serve.test_openai import CONVERSATION, MODES, PROMPT, REPEATING, chat_ids, reference

METADATA = (("authorization", "Bearer key-a"), ("application", "main"))


@pytest.fixture
def stub(service):
    with grpc.insecure_channel(service.address) as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


class TestGenerate:
    @pytest.mark.parametrize("speculation", MODES, ids=lambda m: m["mode"])
    def test_text_is_the_engines_own(self, grpc_client, engine, tiny_tokenizer, speculation):
        result = grpc_client.complete(
            PROMPT, max_tokens=40, seed=7, temperature=0.8, speculation=speculation
        )
        token_ids, text, _ = reference(
            engine, tiny_tokenizer.encode(PROMPT), max_tokens=40, seed=7, temperature=0.8
        )
        assert list(result.token_ids) == token_ids
        assert result.text == text
        assert result.usage.num_output_tokens == len(token_ids)

    def test_the_stream_has_one_message_per_step(self, grpc_client):
        asked = {"max_tokens": 40, "temperature": 0, "speculation": {"mode": "fixed", "k": 3}}
        whole = grpc_client.complete(REPEATING, **asked)
        chunks = list(grpc_client.generate(REPEATING, **asked))
        assert [t for chunk in chunks for t in chunk.token_ids] == list(whole.token_ids)
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert len(chunks) == 1 + chunks[-1].speculation.num_steps
        assert sum(len(chunk.draft_token_ids) for chunk in chunks) == (
            chunks[-1].speculation.num_draft_tokens
        )
        assert sum(chunk.num_accepted_tokens for chunk in chunks) == (
            chunks[-1].speculation.num_accepted_tokens
        )
        assert any(len(chunk.token_ids) > 1 for chunk in chunks)
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason == "length"

    def test_conversation_and_token_ids(self, grpc_client, tiny_tokenizer):
        ids = chat_ids(tiny_tokenizer, CONVERSATION)
        asked = {"max_tokens": 12, "temperature": 0}
        by_chat = grpc_client.complete(CONVERSATION, **asked)
        by_ids = grpc_client.complete(ids, **asked)
        assert by_chat.token_ids == by_ids.token_ids

    def test_http_and_grpc_give_the_same(self, grpc_client, openai):
        over_http = openai.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=30, seed=5, stop=["q"]
        )
        over_grpc = grpc_client.complete(PROMPT, max_tokens=30, seed=5, stop=["q"])
        assert over_grpc.text == over_http.choices[0].text

    def test_logprobs(self, grpc_client, engine, tiny_tokenizer):
        asked = {"max_tokens": 8, "temperature": 0, "logprobs": 2}
        result = grpc_client.complete(PROMPT, prompt_logprobs=1, **asked)
        _, _, expected = reference(engine, tiny_tokenizer.encode(PROMPT), **asked)
        got = [position.token.logprob for position in result.logprobs]
        assert got == pytest.approx([e.logprob for e in expected], abs=1e-5)
        assert len(result.prompt_logprobs) == len(tiny_tokenizer.encode(PROMPT))

    def test_clipped_k_and_mode(self, grpc_client):
        result = grpc_client.complete(
            REPEATING, max_tokens=24, temperature=0, speculation={"mode": "fixed", "k": 50}
        )
        assert result.speculation.mode == "fixed"
        assert result.speculation.clipped_k == MAX_K
        assert result.speculation.num_draft_tokens > 0

    async def test_the_asynchronous_client(self, service):
        async with AsyncClient(
            service.address, api_key="key-a", application=service.name
        ) as client:
            whole, streamed = await asyncio.gather(
                client.complete(PROMPT, max_tokens=20, seed=1),
                self._collect(client.generate(PROMPT, max_tokens=20, seed=1)),
            )
        assert whole.text == streamed

    async def _collect(self, stream):
        return "".join([chunk.text async for chunk in stream])

    def test_model_tokenize_detokenize(self, grpc_client, tiny_tokenizer):
        model = grpc_client.get_model()
        assert model.name == "tiny"
        assert model.max_model_len == MAX_MODEL_LEN
        assert model.has_chat_template
        ids = grpc_client.tokenize("the cat — 🐈")
        assert ids == tiny_tokenizer.encode("the cat — 🐈")
        assert grpc_client.detokenize(ids) == "the cat — 🐈"
        assert grpc_client.tokenize(CONVERSATION) == chat_ids(tiny_tokenizer, CONVERSATION)


ASKED = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}


class TestExplain:
    def test_a_request_that_asks_is_told_and_others_are_not(self, grpc_client, openai):
        over_grpc = grpc_client.complete(REPEATING, speculation={"explain": True}, **ASKED)
        report = over_grpc.speculation
        assert len(report.explanations) == report.num_steps > 0
        told = sum(step.num_accepted_tokens for step in report.explanations)
        assert told == report.num_accepted_tokens
        *_, last = grpc_client.generate(REPEATING, speculation={"explain": True}, **ASKED)
        assert len(last.speculation.explanations) == last.speculation.num_steps
        assert grpc_client.complete(REPEATING, **ASKED).speculation.explanations == ()

        asked = {"model": "tiny", "prompt": REPEATING, "max_tokens": 40, "temperature": 0}
        answer = openai.completions.create(
            **asked, extra_body={"ignore_eos": True, "speculation": {"explain": True}}
        )
        report = answer.metrics["speculative_decoding"]
        assert len(report["explanations"]) == report["num_decode_steps"] > 0
        first = report["explanations"][0]
        assert first.keys() == set(Explanation.__slots__)
        assert all(step["reason"] for step in report["explanations"])
        assert (
            "explanations"
            not in (openai.completions.create(**asked).metrics["speculative_decoding"])
        )

    def test_a_request_is_told_by_its_id_afterwards(self, grpc_client, openai):
        done = grpc_client.complete(REPEATING, request_id="told-later", **ASKED)
        (sequence,) = grpc_client.explain("told-later")
        assert (sequence.request_id, sequence.finish_reason) == ("told-later", "length")
        assert len(sequence.explanations) == sequence.num_steps == done.speculation.num_steps
        assert sequence.replica_id

        answer = openai.completions.create(
            model="tiny", prompt=REPEATING, n=2, max_tokens=20, extra_body={"ignore_eos": True}
        )
        names = [sequence.request_id for sequence in grpc_client.explain(answer.id)]
        assert names == [f"{answer.id}-0", f"{answer.id}-1"]

    def test_a_running_request_is_told_too(self, grpc_client):
        stream = grpc_client.generate(
            REPEATING, request_id="running", max_tokens=200, ignore_eos=True
        )
        for _ in range(3):
            next(stream)
        (sequence,) = grpc_client.explain("running")
        stream.close()
        assert len(sequence.explanations) >= 2

    def test_unknown_and_other_tenants_requests_are_not_found(self, service, grpc_client):
        grpc_client.complete(REPEATING, request_id="of-tenant-a", **ASKED)
        with pytest.raises(RequestNotFoundError, match="'never' is not known"):
            grpc_client.explain("never")
        with service.client("key-b") as other:
            with pytest.raises(RequestNotFoundError, match="'of-tenant-a' is not known"):
                other.explain("of-tenant-a")
            other.complete(REPEATING, request_id="of-tenant-a", **{**ASKED, "max_tokens": 9})
            (theirs,) = other.explain("of-tenant-a")
        (mine,) = grpc_client.explain("of-tenant-a")
        assert theirs.num_steps < mine.num_steps
        with service.client("wrong") as stranger, pytest.raises(UnauthenticatedError):
            stranger.explain("of-tenant-a")

    async def test_the_asynchronous_client(self, service):
        async with AsyncClient(
            service.address, api_key="key-a", application=service.name
        ) as client:
            await client.complete(REPEATING, request_id="by-async", **ASKED)
            (sequence,) = await client.explain("by-async")
        assert sequence.explanations


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"max_tokens": 0}, "max_tokens"),
            ({"temperature": float("nan")}, "temperature"),
            ({"temperature": 3}, "temperature"),
            ({"logprobs": 21}, "logprobs"),
            ({"stop": [""]}, "stop"),
            ({"stop_token_ids": [100_000]}, "stop_token_ids"),
            ({"allowed_token_ids": []}, "allowed_token_ids"),
            ({"bad_words": [""]}, "bad_words"),
            ({"speculation": {"drafter": "medusa"}}, "speculation.drafter"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_the_field_is_named_in_both_kinds_of_call(self, grpc_client, options, field):
        for call in (grpc_client.complete, lambda *a, **k: list(grpc_client.generate(*a, **k))):
            with pytest.raises(InvalidRequestError) as refusal:
                call("the cat", **options)
            assert refusal.value.field == field

    @pytest.mark.parametrize("prompt", ["", [], [0, 100_000], "the cat " * MAX_MODEL_LEN])
    def test_prompts(self, grpc_client, prompt):
        with pytest.raises(InvalidRequestError) as refusal:
            grpc_client.complete(prompt)
        assert refusal.value.field.startswith("prompt")

    def test_unknown_model_and_key(self, service, grpc_client):
        with pytest.raises(ModelNotFoundError):
            grpc_client.complete("x", model="gpt-9")
        with pytest.raises(ModelNotFoundError):
            grpc_client.get_model("gpt-9")
        for key in (None, "wrong"):
            with service.client(key) as stranger:
                for call in (
                    lambda: stranger.complete("x"),
                    lambda: list(stranger.generate("x")),
                    stranger.get_model,
                    lambda: stranger.tokenize("x"),
                    lambda: stranger.detokenize([1]),
                ):
                    with pytest.raises(UnauthenticatedError):
                        call()

    def test_the_wire_carries_google_rpc_details(self, stub):
        request = inference_pb2.GenerateRequest(text="x")
        request.sampling.max_tokens = 0
        with pytest.raises(grpc.RpcError) as raised:
            stub.Complete(
                inference_pb2.CompleteRequest(request=request), metadata=METADATA, timeout=30
            )
        check_rich_status(raised.value, "max_tokens")
        stream = stub.Generate(request, metadata=METADATA, timeout=30)
        last = next(stream)
        with pytest.raises(grpc.RpcError) as raised:
            next(stream)
        check_rich_status(raised.value, "max_tokens")
        assert last.error.field == "max_tokens", "and once more in band"
        assert last.finish_reason == inference_pb2.FINISH_REASON_ERROR

    def test_unknown_enum_values_are_refused(self, stub):
        request = inference_pb2.GenerateRequest(text="x")
        request.speculation.mode = 99
        with pytest.raises(grpc.RpcError) as raised:
            stub.Complete(
                inference_pb2.CompleteRequest(request=request), metadata=METADATA, timeout=30
            )
        check_rich_status(raised.value, "speculation.mode")

    def test_garbage_is_no_request(self, service):
        with grpc.insecure_channel(service.address) as channel:
            call = channel.unary_unary(
                "/specdec.v1.InferenceService/Complete",
                request_serializer=bytes,
                response_deserializer=bytes,
            )
            with pytest.raises(grpc.RpcError) as raised:
                call(b"\xff\xff\xff\xff", metadata=METADATA, timeout=30)
        assert raised.value.code() is not grpc.StatusCode.OK
        assert "Traceback" not in (raised.value.details() or "")

    def test_a_full_queue(self, service, grpc_client):
        async def storm():
            async with AsyncClient(
                service.address, api_key="key-a", application=service.name
            ) as client:
                calls = [client.complete("the cat", max_tokens=100) for _ in range(40)]
                return await asyncio.gather(*calls, return_exceptions=True)

        results = asyncio.run(storm())
        refused = [r for r in results if isinstance(r, OverloadedError)]
        served = [r for r in results if not isinstance(r, Exception)]
        assert refused
        assert len(refused) + len(served) == 40
        assert all(error.retry_after_s > 0 for error in refused)

    def test_deadlines(self, grpc_client, service):
        options = {"max_tokens": 240, "ignore_eos": True, "timeout_s": 0.1}
        for call in (grpc_client.complete, lambda *a, **k: list(grpc_client.generate(*a, **k))):
            with pytest.raises(DeadlineError):
                call("the cat", **options)
        wait_until(
            lambda: service.describe().stats.num_running == 0, CALL_TIMEOUT_S, "both are gone"
        )


def check_rich_status(error, field):
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    raw = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(raw)
    assert status.message == error.details()
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("INVALID_ARGUMENT", "specdec")
    assert status.details[1].Unpack(bad)
    assert bad.field_violations[0].field == field


def test_reflection_lists_the_service(service):
    with grpc.insecure_channel(service.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "specdec.v1.InferenceService" in database.get_services()
        found = database.FindFileContainingSymbol("specdec.v1.InferenceService")
    assert found.package == "specdec.v1"


def test_cancelling_frees_target_and_draft_long_before_the_end(service, grpc_client):
    wait_until(lambda: holds_nothing(service.name), CALL_TIMEOUT_S, "an idle application")
    before = service.describe().stats.counters
    stream = grpc_client.generate(
        "the dog ran after the cat",
        max_tokens=230,
        ignore_eos=True,
        speculation={"mode": "fixed", "k": 1},
    )
    next(stream)
    stream.close()
    wait_until(lambda: holds_nothing(service.name), CALL_TIMEOUT_S, "it is gone in both")
    after = service.describe().stats.counters
    assert after.finished["abort"] == before.finished["abort"] + 1
    assert 0 < after.num_generation_tokens - before.num_generation_tokens < 230
