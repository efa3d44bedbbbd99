"""`specdec profile`: kept under a key that the engine finds again, or written where it was told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdec.cli.local_engine import open_engine
from specdec.config import EngineConfig, ModelConfig
from specdec.speculation.controller.profile import read_profiles

SMALL = ("--max-num-sequences", 2, "--max-num-batched-tokens", 8, "--repeats", 1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "profiles"


def test_what_is_kept_is_used_at_the_next_start(specdec, models, tiny_llama, cache):
    report = specdec.json("profile", *models, *SMALL, "--max-num-speculative-tokens", 3)
    assert {Path(file).parent for file in report["files"]} == {cache}
    target, draft = report["profiles"]
    assert [step["num_tokens"] for step in target["steps"] if not step["num_kv_tokens"]] == [
        *range(1, 9)
    ]
    assert {(r["num_sequences"], r["depth"]) for r in draft["drafts"]} == {
        (batch, depth) for batch in (1, 2) for depth in (1, 2, 3)
    }
    with open_engine(_config(tiny_llama), None) as engine:
        assert engine.controller.knows_steps


def _config(folder):
    return EngineConfig(target=ModelConfig(model=str(folder), dtype="float64"))


def test_a_file_of_ones_own(specdec, tiny_llama, cache, tmp_path):
    path = tmp_path / "mine.json"
    options = ("--target", tiny_llama, "--draft", tiny_llama, "--dtype", "float64", *SMALL)
    result = specdec("profile", *options, "--output", path)
    (whole,) = read_profiles(path)  # one model in one place has one profile, with both parts
    assert whole.steps
    assert whole.drafts
    assert str(path) in result.stdout
    assert "target step, ms" in result.stdout
    assert not cache.exists()
    with open_engine(_config(tiny_llama), None) as engine:
        assert not engine.controller.knows_steps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--output", "/no/such/folder/p.json"), "must be a file in a folder that exists"),
        (("--output", "/tmp"), "must be a file in a folder that exists"),
        (("--repeats", 0), "--repeats"),
        (("--max-num-sequences", 0), "--max-num-sequences"),
        (("--target", "/no/such/model"), "/no/such/model"),
    ],
)
def test_bad_input_ends_before_anything_is_measured(specdec, cache, arguments, message):
    result = specdec("profile", *arguments, code=2)
    assert message in result.stderr
    assert not cache.exists()


def test_the_profile_is_json_for_other_tools(specdec, tiny_llama, tmp_path):
    path = tmp_path / "p.json"
    specdec("profile", "--target", tiny_llama, *SMALL, "--output", path)
    assert json.loads(path.read_text())["format"] == 1
