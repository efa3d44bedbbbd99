"""What a warm-up teaches: times, and nothing about acceptance."""

from __future__ import annotations

import pytest

from specdec.engine import GenerateRequest, warmup
from specdec.engine.profiles import profile_folder, profile_key
from specdec.engine.warmup import warm_up
from specdec.params import SamplingParams
from specdec.speculation.controller import DraftPoint, ProfilePoint
from specdec.speculation.controller.profile import ModelProfile, store_profile, write_profiles
from tests.unit.engine.engine_harness import make_engine, random_prompt


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def engine(tiny_llama, tiny_draft):
    engine = make_engine(tiny_llama, tiny_draft, drafters=("draft", "ngram"))
    yield engine
    engine.shutdown()


def test_warm_up_requests_teach_no_acceptance(engine):
    controller = engine.controller
    warm_up(engine)
    assert engine.controller is controller
    snapshot = controller.snapshot()
    assert not [name for name in snapshot if name.startswith(("acceptance", "delivered"))]
    assert snapshot["steps"] == 0.0
    assert engine.counters.num_steps == 0
    assert not engine.has_work
    engine.block_manager.check_integrity([])


def phases(engine):
    """Of the controller, step by step, over one short request."""
    seen = []
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    request = GenerateRequest("r", random_prompt(12, seed=3), params)
    for _ in engine.generate([request]):
        seen.append(engine.controller.snapshot()["phase"])
    return seen


def test_first_requests_pay_no_calibration(engine):
    warm_up(engine)
    assert "calibrating" not in phases(engine)[1:]  # the first output is the prompt's


def test_without_a_warm_up_the_first_steps_calibrate(engine):
    assert phases(engine)[1:3] == ["calibrating", "calibrating"]


def test_what_was_measured_before_is_not_measured_again(tiny_llama, monkeypatch):
    first = make_engine(tiny_llama)
    key = profile_key(_target(tiny_llama), first.executor.device)
    first.shutdown()
    store_profile(profile_folder(), ModelProfile(key, (ProfilePoint(1, 0, 123.0),)))
    engine = make_engine(tiny_llama)
    assert engine.controller.knows_steps
    monkeypatch.setattr(warmup, "measure_steps", None)  # it would be called, and fail
    warm_up(engine)
    engine.shutdown()


def _target(folder):
    from specdec.config import ModelConfig

    return ModelConfig(model=str(folder), dtype="float64")


def test_a_profile_of_another_model_or_device_is_never_used(tiny_llama, tiny_draft):
    engine = make_engine(tiny_llama)
    ours = profile_key(_target(tiny_llama), engine.executor.device)
    theirs = profile_key(_target(tiny_draft), engine.executor.device)
    engine.shutdown()
    assert ours != theirs
    for key in (theirs, ours.__class__(**{**_fields(ours), "device": "another"})):
        profile = ModelProfile(key, (ProfilePoint(1, 0, 0.01),), (DraftPoint(1, 1, 0.01),))
        path = store_profile(profile_folder(), profile)
        path.rename(path.with_name(ours.file_name))
        engine = make_engine(tiny_llama)
        assert not engine.controller.knows_steps
        engine.shutdown()


def _fields(key):
    return {name: getattr(key, name) for name in key.__slots__}


def test_a_named_file_is_read_and_must_be_sound(tiny_llama, tmp_path):
    engine = make_engine(tiny_llama)
    key = profile_key(_target(tiny_llama), engine.executor.device)
    engine.shutdown()
    path = tmp_path / "named.json"
    write_profiles(path, [ModelProfile(key, (ProfilePoint(1, 0, 0.01),))])
    engine = make_engine(tiny_llama, speculation={"profile": str(path)})
    assert engine.controller.knows_steps
    engine.shutdown()
    path.write_text("{}")
    with pytest.raises(Exception, match="format: is missing"):
        make_engine(tiny_llama, speculation={"profile": str(path)})


def test_a_damaged_file_in_the_cache_stops_nothing(tiny_llama, caplog):
    engine = make_engine(tiny_llama)
    key = profile_key(_target(tiny_llama), engine.executor.device)
    engine.shutdown()
    path = store_profile(profile_folder(), ModelProfile(key, (ProfilePoint(1, 0, 0.01),)))
    path.write_text("{")
    engine = make_engine(tiny_llama)
    assert not engine.controller.knows_steps
    assert "measured anew" in caplog.text
    engine.shutdown()
