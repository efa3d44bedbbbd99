"""Where drafts listen: nowhere that nobody asked for."""

from __future__ import annotations

import pydantic
import pytest

from deployments.addresses import address_of, draft_hosts
from deployments.settings import DraftServerSettings


@pytest.mark.parametrize(
    ("host", "node_ip", "expected"),
    [
        (None, "127.0.0.1", ("127.0.0.1", "127.0.0.1")),
        (None, "10.1.2.3", ("10.1.2.3", "10.1.2.3")),
        ("0.0.0.0", "10.1.2.3", ("0.0.0.0", "10.1.2.3")),
        ("::", "fd00::7", ("::", "fd00::7")),
        ("10.9.9.9", "10.1.2.3", ("10.9.9.9", "10.9.9.9")),
    ],
)
def test_a_draft_listens_where_targets_dial_unless_told_otherwise(host, node_ip, expected) -> None:
    assert draft_hosts(host, node_ip) == expected
    assert draft_hosts(DraftServerSettings().host, node_ip) == (node_ip, node_ip)


def test_an_address_of_either_family() -> None:
    assert address_of("127.0.0.1", 9100) == "127.0.0.1:9100"
    assert address_of("fd00::7", 0) == "[fd00::7]:0"


@pytest.mark.parametrize("host", ["", "a b", "10.1.2.3:9100/", "x" * 300])
def test_a_host_that_is_none(host) -> None:
    with pytest.raises(pydantic.ValidationError, match="host"):
        DraftServerSettings(host=host)
