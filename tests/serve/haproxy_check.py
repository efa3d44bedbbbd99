"""HTTP and gRPC through Serve's HAProxy ingress, on a Ray cluster of its own.

Run by test_haproxy.py as a process, since the ingress is chosen by an environment variable that
all of Serve's processes must see from their start. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx
import psutil
import ray
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions

from deployments.app import build
from specdec import Client
from specdec.errors import InvalidRequestError
from tests.serve.harness import READY_TIMEOUT_S, free_port, settings, start_ray, wait_until

SERVICER = "specdec.v1.inference_pb2_grpc.add_InferenceServiceServicer_to_server"
ASKED = {"max_tokens": 24, "seed": 3}


def main(target: Path) -> None:
    http_port, grpc_port = free_port(), free_port()
    start_ray(num_cpus=8)
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=http_port),
        grpc_options=gRPCOptions(port=grpc_port, grpc_servicer_functions=[SERVICER]),
    )
    serve.run(build(settings(target, None)), name="main", route_prefix="/")
    try:
        print(json.dumps(observe(f"http://127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}")))
    finally:
        serve.shutdown()
        ray.shutdown()


def observe(url: str, address: str) -> dict[str, object]:
    body = {"prompt": "the cat", **ASKED}
    wait_until(
        lambda: httpx.get(f"{url}/health", timeout=10).status_code == 200,
        READY_TIMEOUT_S,
        "HAProxy knows the replicas",
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
