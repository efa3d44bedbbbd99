"""What a pod does before it stops: hand its replicas over, wait for their streams, then go.

A preStop hook: `python -m deployments.drain_node --deadline-s 600`. Ray marks the node as draining,
Serve starts replacements elsewhere and lets the replicas here finish; we wait until they are gone.
Never fails: whatever goes wrong, the pod stops all the same.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

# The name that Ray gives to the process of a Serve replica.
REPLICA_PREFIX = "ray::ServeReplica:"
# A cluster that is going down as a whole answers nobody; its nodes need no drain.
REQUEST_TIMEOUT_S = 30.0
POLL_S = 1.0


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline-s", type=int, required=True, help="longest time to wait")
    deadline_s: int = parser.parse_args(argv).deadline_s
    if deadline_s <= 0:
        parser.error(f"--deadline-s: must be above 0, got {deadline_s}")
    if not request_drain(deadline_s):
        return
    left = wait_until_empty(num_replicas, deadline_s)
    _say(f"{left} replicas left after {deadline_s} s" if left else "all replicas have ended")


def request_drain(deadline_s: int) -> bool:
    """Ask Ray to drain this node; whether it will."""
    command = ["ray", "drain-node", "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--reason-message", "the pod is stopping"]
    command += ["--deadline-remaining-seconds", str(deadline_s)]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=REQUEST_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _say(f"Ray was not asked to drain this node: {error}")
        return False
    if answer.returncode != 0:
        _say(f"Ray does not drain this node: {answer.stderr.strip()[-500:]}")
    return answer.returncode == 0


def num_replicas() -> int:
    """Serve replicas of this node, which are processes of this container."""
    return sum(_title(process).startswith(REPLICA_PREFIX) for process in psutil.process_iter())


def wait_until_empty(
    count: Callable[[], int],
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Poll `count` until it is 0 or the deadline has passed; the last count."""
    end_s = clock() + deadline_s
    while (left := count()) > 0 and clock() < end_s:
        sleep(POLL_S)
    return left


def _title(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    return words[0] if words else ""


def _say(text: str) -> None:
    # A preStop hook's output goes nowhere but into the event of its failure; PID 1's is the log.
    print(f"drain: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
