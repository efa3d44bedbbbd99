"""One tenant's time to its first token, alone and beside another tenant's flood.

    python -m benchmarks.tenants --model smollm2 [--requests 24]

One thread, speculation off. The flood keeps 24 more sequences waiting than can run, of 32 tokens
and more. The other tenant sends one request after another, at random moments of the flood's
course; every second of them goes to an engine that is empty. Both are timed from the moment at
which the engine takes the request up, in CPU time of the process: with one thread that is the wall
time of an idle machine, whatever else runs on this one.
"""

from __future__ import annotations

import argparse
import random
import time

import numpy as np

from benchmarks.local_runs import OFF, build
from benchmarks.measure import machine
from specdec.engine import Engine
from specdec.engine.request import GenerateRequest
from specdec.model.catalog import resolve
from specdec.params import SamplingParams

AIM = 2.0
NUM_PLACES = 8
NUM_FLOODING = 24
NUM_PROMPT_TOKENS = 96


def asked(engine: Engine, rng: random.Random, tenant: str, max_tokens: int) -> GenerateRequest:
    prompt = rng.choices(range(3, engine.limits.vocab_size), k=NUM_PROMPT_TOKENS)
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.0, ignore_eos=True, speculation=OFF
    )
    return GenerateRequest(tenant, prompt, params, partition=tenant, traffic_class=tenant)


def first_token_s(engine: Engine, rng: random.Random) -> float:
    """The time of one request of the quiet tenant to its first token, which is all it wants."""
    request = asked(engine, rng, "quiet", max_tokens=1)
    began_s = time.process_time()
    engine.add_request(request)
    while not any(output.request_id == "quiet" for output in engine.step()):
        pass
    return time.process_time() - began_s


def flood(engine: Engine, rng: random.Random) -> None:
    """Fill the queue up again, and let the flood go on for a random number of steps."""
    for _ in range(NUM_FLOODING - engine.scheduler.num_waiting):
        engine.add_request(asked(engine, rng, "flood", max_tokens=rng.randint(32, 64)))
    for _ in range(rng.randint(1, 12)):
        engine.step()


def run(model: str, num_requests: int) -> None:
    rng = random.Random(0)
    engine = build(str(resolve(model)), threads=1, max_num_sequences=NUM_PLACES)
    flooded = build(str(resolve(model)), threads=1, max_num_sequences=NUM_PLACES)
    for _ in range(8):
        flood(flooded, rng)
    alone, beside = [], []
    for _ in range(num_requests):
        alone.append(first_token_s(engine, rng))
        flood(flooded, rng)
        beside.append(first_token_s(flooded, rng))
    for name, seconds in (("alone", alone), ("beside a flood", beside)):
        p50, p95 = np.percentile(seconds, [50, 95]) * 1000
        print(f"  {name:15} first token p50 {p50:6.0f} ms, p95 {p95:6.0f} ms")
    ratio = float(np.percentile(beside, 95) / np.percentile(alone, 95))
    print(f"  p95 beside the flood over alone: {ratio:.2f} (aim: at most {AIM})")
    print(f"  sequences of the flood put back: {flooded.scheduler.num_preemptions}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=24)
    options = parser.parse_args()
    print(f"{machine()}; one tenant beside another's flood, {options.requests} requests each")
    run(options.model, options.requests)


if __name__ == "__main__":
    main()
