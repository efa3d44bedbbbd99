"""A profile's file: what was written is read, another key is not found, and faults are named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from specdec.errors import ConfigError
from specdec.speculation.controller.profile import (
    DraftPoint,
    ModelProfile,
    ProfileKey,
    ProfilePoint,
    find_profile,
    joined,
    read_profiles,
    store_profile,
    write_profiles,
)

KEY = ProfileKey("tiny@1", "float32", "none", "Some CPU @ 2 GHz", 1, 2)
STEPS = (ProfilePoint(1, 0, 0.05), ProfilePoint(8, 1024, 0.0625))
DRAFTS = (DraftPoint(1, 2, 0.01), DraftPoint(4, 8, 0.0425))


def test_what_is_written_is_read(tmp_path):
    profiles = (ModelProfile(KEY, STEPS, DRAFTS, (1, 2, 4, 8)), ModelProfile(KEY))
    write_profiles(tmp_path / "new" / "p.json", profiles)
    assert read_profiles(tmp_path / "new" / "p.json") == profiles
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["p.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "tiny@2"},
        {"dtype": "bfloat16"},
        {"quantization": "int8"},
        {"device": "Another CPU"},
        {"tensor_parallel_size": 2},
        {"num_threads": 1},
    ],
)
def test_only_the_very_same_key_is_found(tmp_path, change):
    store_profile(tmp_path, ModelProfile(KEY, STEPS))
    other = replace(KEY, **change)
    assert find_profile(tmp_path, KEY).steps == STEPS
    assert find_profile(tmp_path, other) is None
    # Not even where somebody copied the file to the other key's name.
    (tmp_path / KEY.file_name).rename(tmp_path / other.file_name)
    assert find_profile(tmp_path, other) is None


def test_a_model_may_be_target_and_draft(tmp_path):
    store_profile(tmp_path, ModelProfile(KEY, STEPS, graph_sizes=(1, 8)))
    store_profile(tmp_path, ModelProfile(KEY, drafts=DRAFTS))
    whole = ModelProfile(KEY, STEPS, DRAFTS, (1, 8))
    assert find_profile(tmp_path, KEY) == whole
    assert joined(
        [ModelProfile(KEY, STEPS, graph_sizes=(1, 8)), ModelProfile(KEY, (), DRAFTS)]
    ) == [whole]
    again = (ProfilePoint(1, 0, 0.04),)
    store_profile(tmp_path, ModelProfile(KEY, again))
    assert find_profile(tmp_path, KEY) == ModelProfile(KEY, again, DRAFTS)


def document(**changes):
    entry = {
        "key": {
            "model": "tiny@1",
            "dtype": "float32",
            "quantization": "none",
            "device": "cpu",
            "tensor_parallel_size": 1,
            "num_threads": 2,
        },
        "steps": [{"num_tokens": 1, "num_kv_tokens": 0, "seconds": 0.05}],
        "drafts": [],
        "graph_sizes": [],
    }
    return {"format": 1, "profiles": [entry | changes]}


def step(**changes):
    return [{"num_tokens": 1, "num_kv_tokens": 0, "seconds": 0.05} | changes]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "file: must be an object"),
        ({"format": 1}, "profiles: is missing"),
        (document() | {"format": 2}, "format: this version reads 1, got 2"),
        (document() | {"more": 1}, "more: unknown; known are format, profiles"),
        (document(steps={}), r"profiles\[0\].steps: must be a list"),
        (
            document(steps=step(seconds=-1)),
            r"steps\[0\].seconds: must be a number of seconds, 1e-09",
        ),
        (document(steps=step(seconds=float("nan"))), r"steps\[0\].seconds: must be a number"),
        (document(steps=step(seconds=1e300)), r"steps\[0\].seconds: must be .* to 86400"),
        (document(steps=step(seconds=10**350)), r"seconds: must be .* got 10{9,40}\.\.\.0{9,40}$"),
        (
            document(steps=step(num_kv_tokens=10**30)),
            r"num_kv_tokens: must be .* 0 to 1099511627776",
        ),
        (document(drafts=[{"num_sequences": 1, "depth": 2**60, "seconds": 1}]), r"depth: must be"),
        (document(graph_sizes=[1, 2**63]), r"graph_sizes: must be rising"),
        (document(steps=step(num_tokens=1.5)), r"steps\[0\].num_tokens: must be a whole number"),
        (document(steps=step(num_kv_tokens=True)), r"num_kv_tokens: must be a whole number"),
        (document(drafts=step()), r"drafts\[0\].num_sequences: is missing"),
        (document(key={"model": ""}), r"profiles\[0\].key.dtype: is missing"),
        (document(graph_sizes=[4, 2]), r"graph_sizes: must be rising whole numbers"),
    ],
)
def test_a_fault_is_named_by_its_field(tmp_path, content, message):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=message) as caught:
        read_profiles(path)
    assert str(path) in caught.value.message


def test_what_is_no_json_and_no_file_is_said(tmp_path):
    (tmp_path / "p.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        read_profiles(tmp_path / "p.json")
    for text in ("[" * 100_000, '{"format": ' + "9" * 5000 + "}"):
        (tmp_path / "p.json").write_text(text)
        with pytest.raises(ConfigError, match="not JSON"):
            read_profiles(tmp_path / "p.json")
    with pytest.raises(ConfigError, match="cannot read"):
        read_profiles(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="cannot write"):
        write_profiles(tmp_path / "p.json" / "below.json", [])
