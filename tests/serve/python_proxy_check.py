"""HTTP and gRPC through Serve's Python proxy, on a Ray cluster of its own.

Run by test_python_proxy.py as a process, since the ingress is chosen by an environment variable
that all of Serve's processes must see from their start. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.serve.ray_setup import prepare, remove

PORTS, FOLDER = prepare("python")  # before anything imports Ray, which reads the environment

import httpx  # noqa: E402
import psutil  # noqa: E402
import ray  # noqa: E402
from ray import serve  # noqa: E402

from deployments.app import build  # noqa: E402
from specdec import Client  # noqa: E402
from specdec.errors import InvalidRequestError  # noqa: E402
from tests.serve.harness import (  # noqa: E402
    READY_TIMEOUT_S,
    settings,
    start_cluster,
    wait_until,
)

ASKED = {"max_tokens": 24, "seed": 3}


def main(target: Path) -> None:
    start_cluster(PORTS, num_cpus=8)
    serve.run(build(settings(target, None)), name="main", route_prefix="/")
    try:
        print(json.dumps(observe(f"http://127.0.0.1:{PORTS.http}", f"127.0.0.1:{PORTS.grpc}")))
    finally:
        serve.shutdown()
        ray.shutdown()
        remove(FOLDER)


def observe(url: str, address: str) -> dict[str, object]:
    body = {"prompt": "the cat", **ASKED}
    wait_until(
        lambda: httpx.get(f"{url}/health", timeout=10).status_code == 200,
        READY_TIMEOUT_S,
        "the proxy knows the replicas",
    )
    whole = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
    with httpx.stream(
        "POST", f"{url}/v1/completions", json={**body, "stream": True}, timeout=60
    ) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    bad = httpx.post(f"{url}/v1/completions", json={**body, "max_tokens": 0}, timeout=60)
    with Client(address, application="main") as client:
        chunks = list(client.generate("the cat", **ASKED))
        completion = client.complete("the cat", **ASKED)
        fields = []
        for call in (client.complete, lambda *a, **k: list(client.generate(*a, **k))):
            try:
                call("the cat", max_tokens=0)
            except InvalidRequestError as error:
                fields.append(error.field)
    return {
        "haproxy_processes": sum(
            process.name() == "haproxy" for process in psutil.Process().children(recursive=True)
        ),
        "http": whole["choices"][0]["text"],
        "http_stream": "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1]),
        "http_done": events[-1],
        "http_error": [bad.status_code, bad.json()["error"]["param"]],
        "grpc": completion.text,
        "grpc_stream": "".join(chunk.text for chunk in chunks),
        "grpc_messages": len(chunks),
        "grpc_fields": fields,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
