"""Tokens: for one id, of one server, compared without telling how far they agree."""

from __future__ import annotations

import hmac

import pytest

from specdec.rpc import credentials
from specdec.rpc.credentials import PeerTokens
from specdec.rpc.remote_proposer import DraftMember


def test_a_token_opens_one_server_for_one_id() -> None:
    ours, theirs = PeerTokens(), PeerTokens()
    token = ours.issue("a")
    assert ours.is_valid("a", token)
    assert not ours.is_valid("b", token)
    assert not theirs.is_valid("a", token)
    assert not ours.is_valid("a", token[:-1])
    assert not ours.is_valid("a", "")
    assert not ours.is_valid("a", "\u00e9" * 64)
    assert PeerTokens(b"x" * 32).issue("a") == PeerTokens(b"x" * 32).issue("a") != token


def test_tokens_are_compared_in_constant_time(monkeypatch) -> None:
    compared = []
    monkeypatch.setattr(
        credentials.hmac,
        "compare_digest",
        lambda left, right: compared.append(right) or hmac.digest is None,
    )
    assert not PeerTokens().is_valid("a", "00")
    assert compared == [b"00"]


def test_a_short_secret_is_none() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        PeerTokens(b"secret")


def test_no_token_shows_where_a_member_is_printed() -> None:
    assert "s3cret" not in repr(DraftMember("d", "127.0.0.1:1", token="s3cret"))
