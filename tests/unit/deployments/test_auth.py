"""Keys as they arrive, including what is no text."""

from __future__ import annotations

import pytest

from deployments.auth import tenant_of
from specdec.errors import UnauthenticatedError


@pytest.mark.parametrize("given", ["\ud800", "key?", "key\udcff", "kéy"])
def test_a_key_that_is_no_valid_unicode_is_not_known(given):
    with pytest.raises(UnauthenticatedError):
        tenant_of(f"Bearer {given}", {"key": "a", "key\ufffd": "b"})


def test_a_key_beyond_ascii_is_compared_as_it_is():
    assert tenant_of("Bearer kéy", {"key": "a", "kéy": "b"}) == "b"
