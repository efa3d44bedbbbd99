"""`specdec doctor`: verdicts follow what is really there."""

from __future__ import annotations

import os
import socket

import pytest
import torch
from safetensors.torch import load_file

from specdec.cli import checks
from specdec.cli.checks import Verdict
from specdec.config import CacheConfig, ModelConfig
from specdec.model.fit import ModelFit, estimate_fit


@pytest.fixture
def free_ports():
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in (first, second)]
    return ["--http-port", ports[0], "--grpc-port", ports[1]]


def by_name(report) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in report["checks"]}


def test_ready_machine(specdec, models, free_ports):
    report = specdec.json("doctor", *models, *free_ports)
    found = by_name(report)
    assert report["ready"]
    assert torch.__version__ in found["packages: engine"]["detail"]
    assert "context 512" in found["target"]["detail"]
    assert found["pair"]["verdict"] == "ok"
    assert found["fit"]["verdict"] == "ok"
    assert f"{len(os.sched_getaffinity(0))} cores" in found["cpu"]["detail"]
    assert "scaled_dot_product_attention" in found["attention"]["detail"]


def test_verdicts_in_words(specdec, tiny_llama, free_ports):
    result = specdec("doctor", "--target", tiny_llama, *free_ports)
    assert result.stdout.rstrip().endswith("ready")


def test_taken_port_fails_with_a_hint(specdec, tiny_llama, free_ports):
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", free_ports[1]))
        taken.listen()
        report = specdec.json("doctor", "--target", tiny_llama, *free_ports, code=1)
    assert not report["ready"]
    assert by_name(report)["http port"]["verdict"] == "fail"
    assert "--http-port" in by_name(report)["http port"]["hint"]
    assert by_name(report)["grpc port"]["verdict"] == "ok"


def test_unknown_and_unfetched_models_fail_and_say_what_to_do(
    specdec, free_ports, tmp_path, monkeypatch
):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    report = specdec.json("doctor", "--target", "smollm2", *free_ports, code=1)
    assert by_name(report)["target"]["hint"] == "specdec models fetch smollm2"
    report = specdec.json("doctor", "--target", "/no/such", *free_ports, code=1)
    assert "/no/such" in by_name(report)["target"]["detail"]


def test_estimate_is_what_the_files_hold(tiny_llama):
    model = ModelConfig(model=str(tiny_llama), dtype="float64")
    fit = estimate_fit(model, CacheConfig(num_blocks=10, block_size=16))
    weights = load_file(tiny_llama / "model.safetensors")
    assert fit.num_parameters == sum(tensor.numel() for tensor in weights.values())
    assert fit.weight_bytes == sum(tensor.nbytes for tensor in weights.values())
    # keys and values of 2 layers x 2 KV heads x 8 numbers of 8 bytes
    assert fit.kv_bytes_per_token == 2 * 2 * 2 * 8 * 8
    assert fit.num_kv_tokens == 160
    assert fit.kv_cache_bytes == 160 * fit.kv_bytes_per_token


def test_estimate_halves_over_two_ranks_and_shrinks_in_int8(tiny_llama):
    def bytes_of(**options) -> int:
        model = ModelConfig(model=str(tiny_llama), dtype="float32", **options)
        return estimate_fit(model, CacheConfig()).weight_bytes

    assert bytes_of(tensor_parallel_size=2) == bytes_of() // 2
    embedding = 288 * 32 * 4
    norms = (2 * 2 + 1) * 32 * 4
    linear = bytes_of() - embedding - norms
    assert bytes_of(quantization="int8") == embedding + norms + linear // 4


def fit(**changes) -> ModelFit:
    values = {
        "model_type": "llama",
        "device": "cpu",
        "dtype": "float32",
        "num_parameters": 10,
        "vocab_size": 100,
        "max_model_len": 64,
        "weight_bytes": 10,
        "kv_bytes_per_token": 1,
        "kv_cache_bytes": 10,
        "num_kv_tokens": 10,
    }
    return ModelFit(**{**values, **changes})


def test_models_too_large_for_the_memory_fail():
    verdict = checks.check_fit([fit(weight_bytes=2**50), fit()])
    assert verdict.verdict is Verdict.FAIL
    assert "1048577.0 GiB needed" in verdict.detail


@pytest.mark.parametrize(
    ("draft", "hint"),
    [({"vocab_size": 90}, "tokenizer"), ({"max_model_len": 32}, "without the draft")],
)
def test_pair_that_fits_badly_is_a_warning(draft, hint):
    verdict = checks.check_pair(fit(), fit(**draft))
    assert verdict.verdict is Verdict.WARN
    assert hint in verdict.hint
    assert checks.check_pair(fit(), fit(vocab_size=128)).verdict is Verdict.OK


def test_missing_and_old_packages_are_named(monkeypatch):
    real = checks.metadata.version

    def version(name: str) -> str:
        if name == "torch":
            return "1.0"
        if name == "gguf":
            raise checks.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(checks.metadata, "version", version)
    found = {check.name: check for check in checks.check_packages()}
    engine = found["packages: engine"]
    assert engine.verdict is Verdict.FAIL
    assert "torch 1.0 is not >=" in engine.detail
    assert "gguf is missing" in engine.detail
    assert "specdec[engine]" in engine.hint


def test_container_limit_bounds_the_memory(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    monkeypatch.setattr(checks, "CGROUP_LIMIT", tmp_path / "memory.max")
    assert checks.available_memory() == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert checks.available_memory() > 2000
