"""Drafts in processes of their own, killed and hung: what the target loses, and how it heals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.conftest import REPOSITORY
from tests.integration.rpc.servers import PATIENCE_S, PATIENT, PROMPT, free_port, member_at
from tests.unit.rpc.scripted_draft import Decoding, wait_until

CHILD = """
import asyncio, sys
from specdec.rpc.draft_server import DraftServer
from tests.integration.rpc.servers import TOKENS
from tests.unit.rpc.scripted_draft import ScriptedDraft

async def main():
    server = DraftServer(ScriptedDraft(incarnation=int(sys.argv[2])), tokens=TOKENS)
    print(await server.start("127.0.0.1:" + sys.argv[1]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def spawn() -> Iterator:
    children: list[subprocess.Popen] = []

    def start(port: int, incarnation: int) -> subprocess.Popen:
        command = [sys.executable, "-c", CHILD, str(port), str(incarnation)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY)
        children.append(child)
        assert int(child.stdout.readline()) == port
        return child

    yield start
    for child in children:
        child.kill()
        child.wait(10)


def test_a_killed_draft_costs_no_token_and_comes_back(spawn, connect) -> None:
    port = free_port()
    child = spawn(port, 1)
    decoding = Decoding(connect(member_at(port)), 1, PROMPT)
    decoding.until_available()
    assert decoding.steps(5, wait_s=PATIENCE_S) == 20
    child.kill()
    child.wait(10)
    decoding.steps(30, wait_s=PATIENCE_S)
    assert decoding.longest_s < PATIENCE_S / 2, "the loss of the stream, not the wait, ended it"
    wait_until(lambda: decoding.proposer.disabled_reason(1) == "draft_unavailable")
    spawn(port, 2)
    decoding.until_available()
    assert decoding.steps(5, wait_s=PATIENCE_S) == 20


def test_a_hung_draft_is_suspected_then_given_up_and_forgiven(spawn, connect) -> None:
    port = free_port()
    child = spawn(port, 1)
    wary = replace(PATIENT, suspect_after=3, lost_after=8)
    proposer = connect(member_at(port), settings=wary)
    decoding = Decoding(proposer, 1, PROMPT)
    decoding.until_available()
    decoding.steps(2, wait_s=PATIENCE_S)
    num_before = proposer.counters.num_disconnects
    os.kill(child.pid, signal.SIGSTOP)
    decoding.step(wait_s=PATIENCE_S)
    assert decoding.longest_s < PATIENCE_S / 2, "suspicion, not the wait, ended it"
    wait_until(lambda: not proposer.available(1))
    wait_until(lambda: proposer.counters.num_disconnects > num_before)
    assert decoding.steps(20) == 0
    os.kill(child.pid, signal.SIGCONT)
    # On a busy machine it may be suspected again at any time, and is forgiven again.
    wait_until(lambda: decoding.step(wait_s=PATIENCE_S) == 4)
