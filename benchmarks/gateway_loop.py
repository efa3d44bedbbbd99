"""The gateway on the loop that writes to its clients, against a thread of its own (Serve's way).

    python -m benchmarks.gateway_loop [--streams 8] [--rounds 8] [--max-tokens 64]

Two demos without a draft stand at once, one of each kind, and take turns: all streams on one, then
on the other. Prints tokens per second of ours over Serve's way, and each gateway's CPU time per
token.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.measure import Run, machine, speed_ratio, verdict
from benchmarks.served_demo import Demo, body, demo_config, serving, streams

AIM = 0.99
SEPARATE = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "1"}
PROMPT_TOKENS = 24


def separate_config() -> dict[str, Any]:
    config = demo_config({}, with_draft=False)
    options = {"num_cpus": 0.5, "runtime_env": {"env_vars": SEPARATE}}
    deployments = config["applications"][0].setdefault("deployments", [])
    deployments[:] = [each for each in deployments if each["name"] != "Gateway"]
    deployments.append({"name": "Gateway", "ray_actor_options": options})
    return config


def gateway_s(demo: Demo) -> float:
    return demo.cpu_seconds()["replica Gateway"]


def measure(demos: list[Demo], num_streams: int, num_rounds: int, max_tokens: int) -> None:
    runs: list[list[Run]] = [[] for _ in demos]
    spent_s = [0.0 for _ in demos]
    for number in range(num_rounds + 1):
        requests = [
            body([100 + number + stream + 31 * i for i in range(PROMPT_TOKENS)], max_tokens)
            for stream in range(num_streams)
        ]
        for side in (0, 1) if number % 2 else (1, 0):
            before_s = gateway_s(demos[side])
            run, _ = streams(demos[side].port, requests)
            if number:  # the first warms both
                runs[side].append(run)
                spent_s[side] += gateway_s(demos[side]) - before_s
    ratio = speed_ratio(runs[0], runs[1])
    print(f"{num_streams} streams, ours over a thread of its own: {ratio}")
    for name, side in (("ours", 0), ("a thread of its own", 1)):
        tokens = sum(run.num_tokens for run in runs[side])
        print(f"  gateway, {name}: {1e6 * spent_s[side] / tokens:.0f} CPU µs per token")
    print(verdict("speed of ours over the other", ratio.value, AIM))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    print(machine())
    with serving(demo_config({}, with_draft=False)) as ours, serving(separate_config()) as other:
        measure([ours, other], options.streams, options.rounds, options.max_tokens)


if __name__ == "__main__":
    main()
