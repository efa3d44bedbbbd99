"""`specdec explain`: which k a request on a server got, step by step, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from specdec.cli.console import output, print_json
from specdec.cli.explanation_table import print_explanations
from specdec.cli.options import API_KEY_VARIABLE, MAX_TIMEOUT_S, AsJson

if TYPE_CHECKING:
    from specdec.client import ExplainedSequence

EXAMPLES = """Examples:

    specdec explain cmpl-3ef07d58de9a46a0bfd25de4077a3d0a --address localhost:9000

    specdec explain my-request --address localhost:9000 --json

The id is the one in the response: `id` over HTTP, `request_id` over gRPC. It works while the
request runs and for a while after; a request that must be told for certain asks itself, by
`speculation.explain` or generate --explain.

Exit status: 0 done, 1 failed, 2 unknown request or bad input, 3 server unavailable or too slow."""

RequestId = Annotated[str, typer.Argument(help="The request's id, as its response gave it.")]
Address = Annotated[str, typer.Option(help="host:port of the server's gRPC.")]
ApiKey = Annotated[str | None, typer.Option(envvar=API_KEY_VARIABLE, help="The request's key.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.001, max=MAX_TIMEOUT_S, help="Give up after this many seconds."
    ),
]


def explain(
    request_id: RequestId,
    address: Address = "localhost:9000",
    api_key: ApiKey = None,
    timeout_s: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Tell which k a recent or running request got in every step, and why."""
    from specdec.client import Client

    with Client(address, api_key=api_key) as client:
        sequences = client.explain(request_id, timeout_s=timeout_s)
    if as_json:
        print_json({"sequences": [asdict(sequence) for sequence in sequences]})
        return
    for sequence in sequences:
        _print(output(), sequence)


def _print(console: Console, sequence: ExplainedSequence) -> None:
    state = sequence.finish_reason or "running"
    console.print(f"[bold]{escape(sequence.request_id)}[/]  {state}, on {sequence.replica_id}")
    num_known, num_steps = len(sequence.explanations), sequence.num_steps
    if num_known < num_steps:
        console.print(
            f"[yellow]the log reaches the last {num_known} of {num_steps} decode steps[/]"
        )
    if sequence.explanations:
        print_explanations(console, sequence.explanations)
    else:
        console.print(
            "no decode step yet" if not num_steps else "nothing is known of them any more"
        )
