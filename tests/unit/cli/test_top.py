"""`specdec top` without a server: what is refused before anybody is asked."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--interval", "0"), "interval: must be between 0.5 and 60 seconds, got 0"),
        (("--interval", "-1"), "interval: must be between"),
        (("--interval", "nan"), "interval: must be between"),
        (("--interval", "inf"), "interval: must be between"),
        (("--interval", "soon"), "--interval"),
        (("--url", "localhost:8000"), "url: expected http://HOST:PORT"),
        (("--url", "ftp://localhost"), "url: expected"),
        (("--url", ""), "url: expected"),
        (("--url", "http://"), "url: expected"),
        (("--url", "http://localhost:x"), "url: expected"),
        (("--url", "http://localhost:99999"), "url: expected"),
        (("--url", "http://local host"), "url: expected"),
        (("--url", "http://[::1"), "url: expected"),
    ],
)
def test_what_makes_no_sense_is_named(specdec, arguments, message):
    result = specdec("top", *arguments, code=2)
    assert message in result.stderr
    assert result.stdout == ""
