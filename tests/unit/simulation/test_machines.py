"""Step times against hand calculation, and against each other where they describe one machine."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from specdec.errors import ConfigError
from specdec.simulation.costs import Llama8B, llama_8b_calibrated, llama_70b_tp4
from specdec.simulation.hardware import parse_machine
from specdec.simulation.machines import MACHINES, make_machine
from specdec.simulation.profiled import Profiled
from specdec.simulation.roofline import Efficiency, Gpu, ModelSize, Placed, Roofline
from specdec.speculation.controller.profile import (
    DraftPoint,
    ModelProfile,
    ProfileKey,
    ProfilePoint,
    write_profiles,
)


def test_the_published_8b_machine():
    machine = Llama8B()
    # 5.886 + 0.02101 * 32 + 3.926e-5 * 10000 + 1.207 ms.
    assert machine.run_s(32, 10_000) == pytest.approx(8.15792e-3)
    assert machine.propose_s({"eagle": (3, 24), "ngram": (5, 40)}) == pytest.approx(2.186e-3)
    assert machine.propose_s({}) == 0


def test_the_fitted_machines():
    # Alone at 100 KV tokens: sqrt(256 + 0.065^2) + 0.0025 + 1.1 ms, 58 tokens/s.
    assert llama_70b_tp4().run_s(1, 100) == pytest.approx(17.10263e-3, rel=1e-5)
    assert 1 / llama_70b_tp4().run_s(1, 100) == pytest.approx(58, abs=0.6)
    assert llama_70b_tp4().propose_s({"draft": (3, 3)}) == pytest.approx(3.5e-3)
    assert llama_8b_calibrated().run_s(350, 0) == pytest.approx((math.hypot(6.3, 6.3) + 1.2) / 1000)
    assert llama_8b_calibrated().prefill_token_s == pytest.approx(2.04e-5)


def test_stairs_are_flat_and_then_jump():
    machine = make_machine("llama-70b-tp4-stairs")
    around = 160 * 0.0135 + 1.1
    assert machine.run_s(1, 0) == pytest.approx((14.5 + around) / 1000)
    assert machine.run_s(385, 0) == machine.run_s(512, 0) == pytest.approx((30.6 + around) / 1000)
    assert machine.run_s(513, 1000) == pytest.approx((47.8 + 0.025 + around) / 1000)
    # Beyond 4096 along (227.8 - 113.0) / 2048 ms per token.
    assert machine.run_s(4196, 0) == pytest.approx((227.8 + 100 * 114.8 / 2048 + around) / 1000)
    assert machine.prefill_token_s == pytest.approx(114.8 / 2048 / 1000)


@pytest.mark.parametrize("name", MACHINES)
def test_one_size_and_many_agree_and_more_is_never_much_faster(name):
    machine = make_machine(name, ("ngram",))
    sizes = np.array([1, 7, 64, 129, 300, 1000, 5000])
    many = machine.run_many_s(sizes, 5000)
    assert many.tolist() == pytest.approx([machine.run_s(int(size), 5000) for size in sizes])
    assert machine.run_s(1000, 5000) > machine.run_s(100, 5000)


def test_a_roofline_by_hand():
    gpu = Gpu(operations_per_s=100e12, bytes_per_s=1e12, memory_bytes=40e9, all_reduce_s=1e-5)
    model = ModelSize(10e9, 20e9, 100_000, 20)
    placed = Placed(model, gpu, 2, Efficiency(0.5, 0.5, 1.0))
    # 20 GB / (2 * 0.5 TB/s) = 20 ms; 200 tokens * 20 GFLOP / (2 * 50 TFLOP/s) = 40 ms;
    # 10000 KV tokens * 100 kB / 2 TB/s = 0.5 ms; 40 reductions of 10 us.
    expected = math.hypot(0.020, 0.040) + 0.0005 + 0.0004
    assert float(placed.step_s(200, 10_000)) == pytest.approx(expected)
    assert placed.kv_capacity_tokens == (72 - 20) * 10_000
    with pytest.raises(ConfigError, match="do not fit"):
        _ = Placed(ModelSize(1e9, 50e9, 1, 1), gpu).kv_capacity_tokens


def test_a_roofline_draft_takes_steps_over_its_sequences():
    gpu = Gpu(100e12, 1e12, 40e9)
    draft = Placed(ModelSize(1e9, 2e9, 10_000, 4), gpu, 1, Efficiency(1.0, 1.0, 1.0))
    machine = Roofline(draft, {"draft": draft}, draft_context=1000)
    # Four steps over 8 sequences: hypot(2 ms, 8 * 20 us) + 8 * 1000 * 10 kB / 1 TB/s + 0.3 ms.
    assert machine.propose_s({"draft": (4, 32)}) == pytest.approx(
        4 * (math.hypot(2e-3, 1.6e-4) + 8e-5 + 3e-4)
    )
    assert machine.propose_s({"ngram": (4, 32)}) == pytest.approx(5e-5)


@pytest.mark.parametrize(
    ("text", "fitted"),
    [("llama-3.1-70b@h100x4", llama_70b_tp4()), ("llama-3.1-8b@h100", llama_8b_calibrated())],
)
@pytest.mark.parametrize(("num_tokens", "tolerance"), [(1, 0.05), (64, 0.05), (512, 0.25)])
def test_hardware_numbers_give_what_was_fitted(text, fitted, num_tokens, tolerance):
    """512 tokens lie beyond the knee, where the two fits themselves reach 0.55 and 0.9 of the
    peak; the default stands between."""
    machine = parse_machine(text)
    assert machine.run_s(num_tokens, 20_000) == pytest.approx(
        fitted.run_s(num_tokens, 20_000), rel=tolerance
    )


def test_drafts_run_beside_the_target_or_on_a_gpu_of_their_own():
    beside = parse_machine("llama-3.1-70b@h100x4+llama-3.2-1b")
    apart = parse_machine("llama-3.1-70b@h100x4+llama-3.2-1b@l40s")
    assert beside.drafts["draft"].tensor_parallel_size == 4
    assert apart.drafts["draft"].tensor_parallel_size == 1
    assert apart.drafts["draft"].gpu.bytes_per_s == 0.864e12
    assert beside.drafters == ("draft", "ngram")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cray", "unknown machine 'cray'; allowed are llama-8b"),
        ("llama-3.1-8b@cray", "gpu: unknown 'cray'; known are a100"),
        ("gpt@h100", "model: unknown 'gpt'"),
        ("a@b@c@d", "is no machine"),
        ("missing.json", "cannot read missing.json"),
        ("profile:missing.json", "cannot read the profile"),
    ],
)
def test_unknown_machines_are_named(name, words):
    with pytest.raises(ConfigError, match=words):
        make_machine(name)


def test_a_machine_without_the_drafter_is_refused():
    with pytest.raises(ConfigError, match="tells nothing of 'eagle'; it knows draft, ngram"):
        make_machine("llama-3.1-70b@h100x4+llama-3.2-1b", ("eagle",))


def test_a_machine_file_takes_any_numbers(tmp_path):
    path = tmp_path / "machine.json"
    model = {
        "num_parameters": 1e9,
        "weights_bytes": 2e9,
        "kv_bytes_per_token": 1e4,
        "num_layers": 8,
    }
    target = {"model": "llama-3.1-8b", "gpu": "h100", "efficiency": {"weights": 1.0}}
    path.write_text(json.dumps({"target": target, "draft": {"model": model, "gpu": "l40s"}}))
    machine = make_machine(str(path), ("draft",))
    assert machine.run_s(1, 0) == pytest.approx(16.06e9 / 3.35e12 + 1.1e-3, rel=1e-4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "takes an object with target"),
        ({"target": {"model": "llama-3.1-8b"}}, "target: takes an object with model and gpu"),
        ({"target": {"model": {}, "gpu": "h100"}}, "target: needs all numbers of num_parameters"),
        (
            {"target": {"model": "llama-3.1-8b", "gpu": "h100", "tensor_parallel_size": 0}},
            "tensor_parallel_size: must be a whole number, 1 to 1024",
        ),
        (
            {"target": {"model": "llama-3.1-8b", "gpu": "h100", "tensor_parallel_size": 10**350}},
            "tensor_parallel_size: must be a whole number, 1 to 1024",
        ),
        (
            {"target": {"model": {"num_layers": 10**350}, "gpu": "h100"}},
            "target: expected an object of numbers up to 1e",
        ),
        (
            {"target": {"model": "llama-3.1-8b", "gpu": "h100", "efficiency": {"weights": -1}}},
            "target.weights: an efficiency is from 0.001 to 1",
        ),
        ({"target": {"model": "llama-3.1-8b", "gpu": {"memory_bytes": "x"}}}, "object of numbers"),
    ],
)
def test_faults_of_a_machine_file_are_named(tmp_path, content, words):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=words):
        make_machine(str(path))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"target": ' + "9" * 5000 + "}", "{"])
def test_a_machine_file_that_is_no_json_is_named(tmp_path, text):
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"cost: cannot read .*machine\.json"):
        make_machine(str(path))


KEY = ProfileKey("m", "float32", "none", "cpu", 1, 2)


def test_a_profile_s_steps_are_interpolated_and_its_kv_slope_is_shared():
    points = [ProfilePoint(n, kv, 0.01 + 0.001 * n + 1e-6 * kv) for n in (1, 4) for kv in (0, 1000)]
    machine = Profiled(ModelProfile(KEY, tuple(points)))
    assert machine.run_s(2, 500) == pytest.approx(0.0125)
    assert machine.run_s(10, 0) == pytest.approx(0.02)
    padded = Profiled(ModelProfile(KEY, tuple(points), (), (4, 8)))
    assert padded.run_s(2, 0) == padded.run_s(4, 0) == pytest.approx(0.014)
    assert padded.run_s(9, 0) == pytest.approx(0.019)


def test_a_profile_s_draft_rounds_are_fitted(tmp_path):
    target = ModelProfile(KEY, (ProfilePoint(1, 0, 0.01),))
    rounds = [DraftPoint(b, d, 0.001 + d * (0.002 + 0.0001 * b)) for b in (1, 8) for d in (1, 4)]
    draft = ModelProfile(ProfileKey("d", "float32", "none", "cpu", 1, 2), (), tuple(rounds))
    path = tmp_path / "profile.json"
    write_profiles(path, [draft, target])
    machine = make_machine(f"profile:{path}", ("draft", "ngram"))
    assert machine.propose_s({"draft": (3, 12)}) == pytest.approx(0.001 + 3 * (0.002 + 0.0004))
    # What falls with the depth is not believed: nothing gets a negative price.
    odd = ModelProfile(KEY, (), (DraftPoint(1, 1, 0.004), DraftPoint(1, 4, 0.003)))
    assert Profiled(target, odd).propose_s({"draft": (16, 16)}) > 0
