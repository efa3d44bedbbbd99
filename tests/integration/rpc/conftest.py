"""Servers and links that end with their test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specdec.rpc.draft_link import LinkSettings
from specdec.rpc.remote_proposer import DraftMember, RemoteProposer
from tests.integration.rpc.servers import PATIENT, Server
from tests.unit.rpc.scripted_draft import ScriptedDraft, identity


@pytest.fixture
def serve() -> Iterator:
    servers: list[Server] = []

    def start(draft: ScriptedDraft | None = None, port: int = 0) -> Server:
        servers.append(Server(draft or ScriptedDraft(), port))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def connect() -> Iterator:
    proposers: list[RemoteProposer] = []

    def start(
        *members: DraftMember, identity=identity(), settings: LinkSettings = PATIENT
    ) -> RemoteProposer:
        proposers.append(RemoteProposer(identity, settings))
        proposers[-1].set_members(members)
        return proposers[-1]

    yield start
    for proposer in proposers:
        proposer.shutdown()
