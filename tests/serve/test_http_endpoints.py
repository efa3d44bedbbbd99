"""The small endpoints: models, tokens, health, version, metrics."""

from __future__ import annotations

import re
from importlib.metadata import version

import httpx
import ray

from deployments.fleet_ledger import LEDGER_ACTOR
from deployments.samples import Key
from tests.serve.harness import MAX_K, MAX_MODEL_LEN, OPERATOR

HEADERS = {"authorization": "Bearer key-a"}


def get(service, path):
    return httpx.get(f"{service.url}{path}", headers=OPERATOR, timeout=30)


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


def test_openapi_is_what_the_pages_are_made_of(service):
    body = get(service, "/openapi.json").json()["paths"]["/v1/chat/completions"]["post"][
        "requestBody"
    ]
    assert "messages" in body["content"]["application/json"]["schema"]["properties"]


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


def test_every_completion_token_has_a_source_per_request_and_in_total(service, openai):
    """Completion = first token + decode steps + emitted accepted draft tokens."""
    before = samples(get(service, "/metrics").text)
    completion = 0
    for wish in ({"mode": "fixed", "k": 4}, {"mode": "off"}, {"mode": "auto"}):
        answer = openai.completions.create(
            model="tiny",
            prompt="the cat sat on the mat and the cat sat",
            max_tokens=24,
            temperature=0,
            extra_body={"speculation": wish, "ignore_eos": True},
        )
        report = answer.metrics["speculative_decoding"]
        completion += answer.usage.completion_tokens
        assert answer.usage.completion_tokens == (
            1 + report["num_decode_steps"] + report["num_emitted_accepted_draft_tokens"]
        )
    after = samples(get(service, "/metrics").text)

    def growth(pattern):
        return sum(
            value - before.get(key, 0)
            for key, value in after.items()
            if re.fullmatch(pattern, key.replace('model_name="tiny"', ""))
        )

    steps = growth(r'specdec_decode_steps_by_k_total\{k="\d+",\}')
    assert completion == growth(r"specdec_generation_tokens_total\{\}")
    assert completion == (
        growth(r"specdec_prefill_outputs_total\{\}")
        + steps
        + growth(r"specdec_emitted_accepted_tokens_total\{\}")
        - growth(r"specdec_cut_target_tokens_total\{\}")
    )
    assert growth(r'specdec_decode_steps_by_k_total\{k="[1-9]\d*",\}') == growth(
        r"specdec_drafts_total\{\}"
    )
    assert steps == growth(r'specdec_decode_steps_by_reason_total\{(,?reason="\w+",?)\}')
    assert growth(r"specdec_time_to_first_token_seconds_count\{\}") == 3
    assert growth(r"specdec_inter_token_latency_seconds_count\{\}") == steps
    assert growth(r'specdec_time_to_first_token_seconds_bucket\{,?le="\+Inf",?\}') == 3


def test_gateways_share_what_every_target_counted(service):
    get(service, "/metrics")
    actors = ray.util.list_named_actors(all_namespaces=True)
    (ledger,) = [each for each in actors if LEDGER_ACTOR in each["name"] and "main" in each["name"]]
    known = ray.get(ray.get_actor(ledger["name"], ledger["namespace"]).merge.remote({}))
    target = service.describe()
    steps = Key("specdec_steps", "_total")
    assert 0 < known[target.replica_id][steps] <= target.stats.counters.num_steps


def test_metrics_are_wellformed(service):
    response = get(service, "/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    names = {re.split(r"[{ ]", key)[0] for key in samples(response.text)}
    assert all(re.fullmatch(r"(specdec_|vllm:spec_decode_)[a-z0-9_]+", name) for name in names)
    documented = set(re.findall(r"^# HELP (\S+) \S", response.text, re.M))
    families = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in names}
    assert families <= {re.sub(r"_total$", "", name) for name in documented}
