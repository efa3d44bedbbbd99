"""The small endpoints: models, tokens, health, version, metrics."""

from __future__ import annotations

import re
from importlib.metadata import version

import httpx

from tests.serve.harness import MAX_K, MAX_MODEL_LEN

HEADERS = {"authorization": "Bearer key-a"}


def get(service, path):
    return httpx.get(f"{service.url}{path}", headers=HEADERS, timeout=30)


def post(service, path, body):
    return httpx.post(f"{service.url}{path}", json=body, headers=HEADERS, timeout=30)


def samples(text):
    """Prometheus text as {name{labels}: value}."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_models(openai):
    (model,) = openai.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "specdec")
    assert model.max_model_len == MAX_MODEL_LEN
    assert model.drafters == ["draft", "ngram"]
    assert model.max_num_speculative_tokens == MAX_K
    assert openai.models.retrieve("tiny").id == "tiny"


def test_tokenize_and_back(service, tiny_tokenizer):
    text = "the cat sat — ünïcode 🐈"
    answer = post(service, "/tokenize", {"model": "tiny", "prompt": text}).json()
    assert answer["tokens"] == tiny_tokenizer.encode(text)
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == MAX_MODEL_LEN
    back = post(service, "/detokenize", {"tokens": answer["tokens"]}).json()
    assert back == {"prompt": text}


def test_tokenize_a_conversation(service, tiny_tokenizer):
    messages = [{"role": "user", "content": "hi"}]
    answer = post(service, "/tokenize", {"messages": messages, "return_token_strs": True}).json()
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert answer["tokens"] == tiny_tokenizer.encode(text, add_special_tokens=False)
    assert "".join(answer["token_strs"]) == text


def test_tokenize_refuses(service):
    for path, body, field in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/detokenize", {"tokens": [100_000]}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
    ):
        response = post(service, path, body)
        assert response.status_code == 400
        assert response.json()["error"]["param"].split(".")[0] == field


def test_health_generates(service):
    before = service.describe().stats.counters.num_generation_tokens
    response = get(service, "/health")
    assert (response.status_code, response.content) == (200, b"")
    assert service.describe().stats.counters.num_generation_tokens > before


def test_version(service):
    assert get(service, "/version").json() == {"version": version("specdec")}


def test_metrics_follow_the_requests(service, openai):
    before = samples(get(service, "/metrics").text)
    answer = openai.completions.create(
        model="tiny",
        prompt="the cat sat on the mat and the cat sat",
        max_tokens=32,
        temperature=0,
        extra_body={"speculation": {"mode": "fixed", "k": 3}, "ignore_eos": True},
    )
    report = answer.metrics["speculative_decoding"]
    after = samples(get(service, "/metrics").text)

    def growth(name):
        key = f'{name}{{model_name="tiny"}}'
        return after[key] - before[key]

    assert growth("specdec_generation_tokens_total") == 32
    assert growth("specdec_draft_tokens_total") == report["num_draft_tokens"]
    assert growth("vllm:spec_decode_num_draft_tokens_total") == report["num_draft_tokens"]
    assert growth("specdec_accepted_tokens_total") == report["num_accepted_draft_tokens"]
    assert growth("vllm:spec_decode_num_drafts_total") == report["num_spec_steps"]
    at_first = 'specdec_accepted_tokens_per_pos_total{model_name="tiny",position="0"}'
    assert after[at_first] - before.get(at_first, 0) == sum(
        1 for accepted in report["per_step_accepted"] if accepted > 0
    )
    assert after['specdec_draft_replicas{model_name="tiny"}'] == 1
    assert after['specdec_target_replicas{model_name="tiny"}'] == 1
    assert after['specdec_kv_cache_usage_ratio{model_name="tiny"}'] == 0


def test_metrics_are_wellformed(service):
    response = get(service, "/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    names = {re.split(r"[{ ]", key)[0] for key in samples(response.text)}
    assert all(re.fullmatch(r"(specdec_|vllm:spec_decode_)[a-z0-9_]+", name) for name in names)
    documented = set(re.findall(r"^# HELP (\S+) \S", response.text, re.M))
    assert {name.removesuffix("_total") for name in names} <= {
        name.removesuffix("_total") for name in documented
    }
