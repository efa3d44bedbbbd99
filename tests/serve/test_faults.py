"""Draft faults under Serve: the text stays the target's own, every request finishes, the reason is
told, and speculation comes back by itself."""

from __future__ import annotations

import json
import shutil

import httpx
import pytest
from ray import serve

from deployments.app import build
from deployments.target_client import new_stream_id
from specdec.engine.request import GenerateRequest
from specdec.params import SamplingParams, SpeculationParams
from tests.serve.harness import (
    CALL_TIMEOUT_S,
    READY_TIMEOUT_S,
    describe_target,
    replica_processes,
    settings,
    stopped,
    wait_until,
)
from tests.serve.test_openai import PROMPT, REPEATING, reference

DRAFT_ONLY = {"mode": "fixed", "k": 2, "drafter": "draft"}
LONG = {"max_tokens": 220, "temperature": 0, "ignore_eos": True}


def ask(client):
    """A short request by the draft model alone."""
    return client.complete(REPEATING, max_tokens=24, temperature=0, speculation=DRAFT_ONLY)


def drafts(client):
    return ask(client).speculation.num_accepted_tokens > 0


class TestDraftProcess:
    """On the main application; each test leaves it healed."""

    @pytest.fixture(autouse=True)
    def drafting(self, service, grpc_client):
        wait_until(lambda: drafts(grpc_client), READY_TIMEOUT_S, "a working draft")

    def stream(self, grpc_client, after_first, prompt=PROMPT):
        """Run a long request; `after_first` is called when the draft has been at work in it."""
        stream = grpc_client.generate(prompt, **LONG, speculation=DRAFT_ONLY)
        chunks, done = [], False
        for chunk in stream:
            chunks.append(chunk)
            if not done and chunk.num_accepted_tokens > 0:
                after_first()
                done = True
        assert done, "the draft was never at work"
        return chunks

    def expected(self, engine, tiny_tokenizer):
        return reference(engine, tiny_tokenizer.encode(PROMPT), **LONG)

    def test_killed_mid_stream(self, service, grpc_client, engine, tiny_tokenizer):
        (victim,) = replica_processes("main", "Draft")
        chunks = self.stream(grpc_client, victim.kill)
        ids, text, _ = self.expected(engine, tiny_tokenizer)
        assert [t for chunk in chunks for t in chunk.token_ids] == ids
        assert "".join(chunk.text for chunk in chunks) == text
        assert chunks[-1].speculation.disabled_reason == "draft_unavailable"
        wait_until(lambda: drafts(grpc_client), READY_TIMEOUT_S, "speculation came back by itself")
        (successor,) = replica_processes("main", "Draft")
        assert successor.pid != victim.pid
        assert service.describe().link.num_disconnects >= 1

    def test_hung_and_back(self, service, grpc_client, engine, tiny_tokenizer):
        (process,) = replica_processes("main", "Draft")
        with stopped(process):
            wait_until(
                lambda: ask(grpc_client).speculation.disabled_reason == "draft_unavailable",
                CALL_TIMEOUT_S,
                "its silence was noticed",
            )
            streamed = grpc_client.complete(PROMPT, **LONG, speculation=DRAFT_ONLY)
        ids, _, _ = self.expected(engine, tiny_tokenizer)
        assert list(streamed.token_ids) == ids
        assert streamed.speculation.num_draft_tokens == 0
        assert streamed.speculation.disabled_reason == "draft_unavailable"
        wait_until(lambda: drafts(grpc_client), READY_TIMEOUT_S, "speculation came back by itself")
        assert replica_processes("main", "Draft")[0].pid == process.pid, "it was not replaced"

    def test_hung_while_streaming(self, grpc_client, engine, tiny_tokenizer):
        (process,) = replica_processes("main", "Draft")
        try:
            chunks = self.stream(grpc_client, process.suspend)
        finally:
            process.resume()
        ids, _, _ = self.expected(engine, tiny_tokenizer)
        assert [t for chunk in chunks for t in chunk.token_ids] == ids
        assert chunks[-1].speculation.disabled_reason == "draft_unavailable"


def run_pair(name, app_settings):
    """An application of its own; returns its target's handle. The gateway belongs to it, since
    Serve allows a router of our own on no deployment that clients reach."""
    serve.run(build(app_settings), name=name, route_prefix=f"/{name}", blocking=False)
    wait_until(lambda: describe_target(name), READY_TIMEOUT_S, f"{name}'s target")
    return serve.get_deployment_handle("Target", name).options(method_name="generate", stream=True)


def generate(handle, token_ids, **params):
    """Outputs of one request at a target's handle, and its metrics."""
    request = GenerateRequest("test", token_ids, SamplingParams(**params), timeout_s=CALL_TIMEOUT_S)
    outputs = list(handle.remote(request, new_stream_id()))
    ids = [token_id for output in outputs for token_id in output.token_ids]
    return ids, outputs[-1].metrics


class TestMisfits:
    """Drafts that do not fit, each at a target of its own."""

    @pytest.fixture
    def pair(self, cluster, service):
        names = []

        def start(name, app_settings):
            names.append(name)
            return run_pair(name, app_settings)

        yield start
        for name in names:
            serve.delete(name, _blocking=True)

    def test_another_tokenizer_is_refused_by_name(
        self, pair, engine, tiny_llama, tiny_draft, tiny_tokenizer, tmp_path
    ):
        stranger = tmp_path / "stranger"
        shutil.copytree(tiny_draft, stranger)
        described = json.loads((stranger / "tokenizer.json").read_text())
        vocabulary = described["model"]["vocab"]
        first, second = "c", "d"
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
        (stranger / "tokenizer.json").write_text(json.dumps(described))

        handle = pair("stranger", settings(tiny_llama, stranger))
        prompt = tiny_tokenizer.encode(PROMPT)
        wish = SpeculationParams(mode="fixed", k=3, drafter="draft")

        def refused():
            ids, metrics = generate(handle, prompt, **LONG, speculation=wish)
            assert ids == reference(engine, prompt, **LONG)[0]
            assert metrics.stats.num_draft_tokens == 0
            return metrics.disabled_reason.startswith("draft_incompatible")

        wait_until(refused, READY_TIMEOUT_S, "the draft was looked at")
        _, metrics = generate(handle, prompt, max_tokens=2, speculation=wish)
        token_id = min(vocabulary[first], vocabulary[second])
        assert f"token {token_id} differs" in metrics.disabled_reason

    def test_a_shorter_context_ends_drafting_where_it_is_full(
        self, pair, engine, tiny_llama, tiny_draft, tiny_tokenizer
    ):
        handle = pair("short", settings(tiny_llama, tiny_draft, draft_max_model_len=64))
        prompt = tiny_tokenizer.encode(PROMPT)
        wish = SpeculationParams(mode="fixed", k=3, drafter="draft")

        def drafted():
            _, metrics = generate(handle, prompt, max_tokens=16, speculation=wish)
            return metrics.stats.num_draft_tokens > 0

        wait_until(drafted, READY_TIMEOUT_S, "a working draft")
        ids, metrics = generate(handle, prompt, **LONG, speculation=wish)
        assert ids == reference(engine, prompt, **LONG)[0]
        assert metrics.disabled_reason == "draft_context_full"
        assert 0 < metrics.stats.num_draft_tokens < 3 * 64
        far = tiny_tokenizer.encode(PROMPT * 5)
        assert len(far) > 64
        ids, metrics = generate(handle, far, **{**LONG, "max_tokens": 60}, speculation=wish)
        assert ids == reference(engine, far, **{**LONG, "max_tokens": 60})[0]
        assert metrics.disabled_reason == "draft_context_full"
        assert metrics.stats.num_draft_tokens == 0


def test_a_draft_that_never_starts(service, engine, tiny_llama, tiny_tokenizer, tmp_path):
    """The rest of the application comes up and serves, over HTTP as well."""
    absent = settings(tiny_llama, tmp_path / "no-such-model")
    serve.run_many(
        [serve.RunTarget(build(absent), name="absent", route_prefix="/absent")],
        wait_for_applications_running=False,
    )
    url = f"{service.url}/absent"
    body = {"prompt": PROMPT, **LONG, "return_token_ids": True}

    def served():
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=CALL_TIMEOUT_S)
        answer.raise_for_status()
        return answer.json()

    try:
        wait_until(served, READY_TIMEOUT_S, "an answer without a draft")
        answer = served()
        ids, text, _ = reference(engine, tiny_tokenizer.encode(PROMPT), **LONG)
        assert answer["choices"][0]["token_ids"] == ids
        assert answer["choices"][0]["text"] == text
        report = answer["metrics"]["speculative_decoding"]
        assert report["disabled_reason"] == "draft_unavailable"
    finally:
        serve.delete("absent", _blocking=True)
