"""How long a fuzzer runs, and from which seed.

Each round draws everything from one seed. `make test` runs a fixed number of rounds from a fixed
seed, so that a red run means the change under test; `make fuzz` runs each fuzzer for
SPECDEC_FUZZ_SECONDS from a fresh seed. A failing round names its seed: SPECDEC_FUZZ_SEED repeats
it.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator

FIXED_SEED = 1


def _first_seed() -> int:
    given = os.environ.get("SPECDEC_FUZZ_SEED")
    if given is not None:
        return int(given)
    return secrets.randbelow(2**32) if "SPECDEC_FUZZ_SECONDS" in os.environ else FIXED_SEED


def _seeds(num_rounds: int) -> Iterator[int]:
    first = _first_seed()
    limit_s = float(os.environ.get("SPECDEC_FUZZ_SECONDS", "0"))
    print(f"first seed {first}")
    if not limit_s:
        yield from range(first, first + num_rounds)
        return
    ends_s = time.monotonic() + limit_s
    for seed in itertools.count(first):
        if time.monotonic() > ends_s:
            print(f"last seed {seed - 1}")
            return
        yield seed


def fuzz(one_round: Callable[[random.Random], None], num_rounds: int) -> None:
    """Run rounds; the error of one that fails tells its seed."""
    for seed in _seeds(num_rounds):
        try:
            one_round(random.Random(seed))
        except BaseException as error:
            error.add_note(f"repeat this round alone with SPECDEC_FUZZ_SEED={seed}")
            raise


async def fuzz_async(one_round, num_rounds: int) -> None:
    """As `fuzz`, for rounds that are coroutines."""
    for seed in _seeds(num_rounds):
        try:
            await one_round(random.Random(seed))
        except BaseException as error:
            error.add_note(f"repeat this round alone with SPECDEC_FUZZ_SEED={seed}")
            raise
