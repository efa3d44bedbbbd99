"""Where `specdec top` gets its readings: GET /live of a gateway, once or by a thread that polls."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from queue import SimpleQueue
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from specdec.cli.top_rates import LATENCIES, Reading
from specdec.errors import (
    ForbiddenError,
    InvalidRequestError,
    SpecdecError,
    UnauthenticatedError,
    UnavailableError,
)

TIMEOUT_S = 5.0
MAX_BYTES = 16 * 2**20
KEY_ERRORS: dict[int, type[SpecdecError]] = {401: UnauthenticatedError, 403: ForbiddenError}
TOTALS = (
    *("requests", "prompt_tokens", "generation_tokens", "steps", "drafts", "draft_tokens"),
    *("accepted_tokens", "baseline_s", "speculating_s", "accepted_per_position", "steps_by_k"),
    "guard_trips",
)
PARTS: dict[str, type | tuple[type, ...]] = {
    "time_s": (int, float),
    **dict.fromkeys(("model", "version"), str),
    **dict.fromkeys(("totals", "latency", "classes", "now"), dict),
    **dict.fromkeys(("targets", "drafters", "drafts"), list),
}


def live_url(url: str) -> str:
    """The address of /live below a gateway's. Raises InvalidRequestError."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is no number, or the brackets do not match
        valid = False
    if not valid or any(character.isspace() for character in url):
        raise InvalidRequestError(
            f"url: expected http://HOST:PORT or https://..., got {url!r}", field="url"
        )
    return f"{url.rstrip('/')}/live"


def fetch(url: str, api_key: str | None = None, timeout_s: float = TIMEOUT_S) -> Reading:
    """One reading of the gateway at `url`.

    Raises UnavailableError where nobody answers, or a gateway that is not ready;
    UnauthenticatedError or ForbiddenError where it wants an operator's key;
    InvalidRequestError where the one who answers is no specdec gateway.
    """
    address = live_url(url)
    request = Request(address, headers={"accept": "application/json"})
    if api_key is not None:
        # Not to where a redirect leads.
        request.add_unredirected_header("authorization", f"Bearer {_header_value(api_key)}")
    try:
        with urlopen(request, timeout=timeout_s) as response:
            value = json.loads(_whole(response, time.monotonic() + timeout_s))
    except HTTPError as error:
        if error.code in KEY_ERRORS:
            raise KEY_ERRORS[error.code](
                f"{address} answers {error.code}: give the key of an operator, by --api-key or "
                "SPECDEC_API_KEY"
            ) from None
        if error.code >= 500:
            raise UnavailableError(f"{address} answers {error.code} {error.reason}") from None
        raise _no_gateway(url, f"it answers {error.code} {error.reason}") from None
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UnavailableError(f"no answer from {address}: {reason}") from None
    except ValueError:  # no JSON, or no text
        raise _no_gateway(url, "it does not answer with JSON") from None
    return _checked(value, url)


def _header_value(api_key: str) -> str:
    if not (api_key.isascii() and api_key.isprintable()):
        raise InvalidRequestError("api_key: must be printable ASCII characters", field="api_key")
    return api_key


def _whole(response: HTTPResponse, deadline_s: float) -> bytes:
    """All that comes, up to MAX_BYTES. The socket's own limit is for each part of it alone."""
    parts, size = [], 0
    while (part := response.read1(2**16)) and size < MAX_BYTES:
        if time.monotonic() > deadline_s:
            raise TimeoutError("it takes too long to answer")
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _checked(value: object, url: str) -> Reading:
    """A reading has everything that is read from it, so that nothing fails later on."""
    if not isinstance(value, dict) or any(
        not isinstance(value.get(part), kind) for part, kind in PARTS.items()
    ):
        raise _no_gateway(url, "its answer is no reading of a fleet")
    totals, latency = value["totals"], value["latency"]
    missing = [name for name in TOTALS if name not in totals]
    missing += [name for name in LATENCIES if name not in latency]
    if missing:
        raise _no_gateway(url, f"its answer lacks {', '.join(missing)}")
    return value


def _no_gateway(url: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"url: {url} is no specdec gateway: {why}", field="url")


@dataclass(frozen=True, slots=True)
class Silence:
    """Nobody has answered since then, in seconds since 1970; why, as far as is known."""

    since_s: float
    reason: str


class Poller:
    """A thread that puts every reading into `readings`, and goes on while nobody answers."""

    def __init__(self, url: str, api_key: str | None, interval_s: float) -> None:
        self._url = url
        self._api_key = api_key
        self._interval_s = interval_s
        self.readings: SimpleQueue[Reading] = SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="specdec-top", daemon=True)
        self.silence: Silence | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask for nothing more; an answer on its way is not waited for."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                reading = fetch(self._url, self._api_key)
            except SpecdecError as error:
                since_s = self.silence.since_s if self.silence is not None else time.time()
                self.silence = Silence(since_s, error.message)
                continue
            self.silence = None
            self.readings.put(reading)
