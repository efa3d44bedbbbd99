"""`specdec explain` without a server: what is refused before anything is sent."""

from __future__ import annotations

import pytest

NOBODY = "localhost:1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "--address", ""), "address: must be host:port"),
        (("a", "--address", "x\udcff:1"), "address: must be host:port"),
        (("\udcff", "--address", NOBODY), "request_id: cannot send"),
        (("a", "--address", NOBODY, "--timeout", "inf"), "--timeout"),
        (("a", "--address", NOBODY, "--timeout", "1e20"), "to 604800"),
        (("a", "--address", NOBODY, "--timeout", "nan"), "--timeout"),
    ],
)
def test_what_cannot_be_sent_is_named(specdec, arguments, message):
    result = specdec("explain", *arguments, code=2)
    assert message in result.stderr
    assert result.stdout == ""
