"""Keys as they are written down and as they arrive; nothing that shows them."""

from __future__ import annotations

import hashlib
import logging
import pickle

import pydantic
import pytest

from deployments.api_keys import ANYBODY, ApiKeys, Caller, digest_of, load_api_keys
from deployments.auth import MAX_CACHE_SALT_CHARS, owner_of, partition_of
from deployments.settings import AppSettings, GatewaySettings
from specdec.errors import ConfigError, ForbiddenError, InvalidRequestError, UnauthenticatedError

SECRET = "sk-very-secret"
FILE = f"""
- key: {SECRET}
  tenant: search
- sha256: {hashlib.sha256(b"sk-of-operations").hexdigest()}
  tenant: operations
  operator: true
"""


@pytest.fixture
def write(tmp_path):
    """write(text) -> settings that name a file with this text"""

    def settings(text):
        path = tmp_path / "keys.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return GatewaySettings(api_keys_file=str(path))

    return settings


def keys_of(**tenants) -> ApiKeys:
    return ApiKeys({digest_of(key): Caller(tenant) for key, tenant in tenants.items()})


def test_a_file_holds_keys_or_their_digests(write):
    keys = load_api_keys(write(FILE))
    assert keys.caller(f"Bearer {SECRET}") == Caller("search", False)
    assert keys.caller("bearer  sk-of-operations ") == Caller("operations", True)
    assert keys.operator("Bearer sk-of-operations").tenant == "operations"
    with pytest.raises(ForbiddenError):
        keys.operator(f"Bearer {SECRET}")


def test_keys_may_stand_in_an_environment_variable(monkeypatch):
    monkeypatch.setenv("SOME_KEYS", '[{"key": "k", "tenant": "t"}]')
    assert load_api_keys(GatewaySettings(api_keys_env="SOME_KEYS")).caller("Bearer k").tenant == "t"
    monkeypatch.delenv("SOME_KEYS")
    with pytest.raises(ConfigError, match=r"gateway\.api_keys_env: SOME_KEYS must hold a list"):
        load_api_keys(GatewaySettings(api_keys_env="SOME_KEYS"))


def test_without_keys_everybody_is_welcome_and_an_operator():
    keys = load_api_keys(GatewaySettings())
    assert keys.caller(None) == keys.operator("Bearer anything") == ANYBODY


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", "Basic key", "key", "Bearer other", "Bearer k"]
)
def test_who_shows_no_known_key_is_nobody(authorization):
    for ask in (keys_of(key="a").caller, keys_of(key="a").operator):
        with pytest.raises(UnauthenticatedError):
            ask(authorization)


@pytest.mark.parametrize("given", ["\ud800", "key?", "key\udcff", "kéy", "x" * 10_000_000])
def test_a_key_that_is_no_text_or_too_long_is_not_known(given):
    with pytest.raises(UnauthenticatedError):
        keys_of(**{"key": "a", "key\ufffd": "b"}).caller(f"Bearer {given}")


def test_a_key_beyond_ascii_is_compared_as_it_is():
    assert keys_of(key="a", kéy="b").caller("Bearer kéy").tenant == "b"


BAD_FILES = {
    "": "must hold a list",
    "{}": "must hold a list",
    "[]": "must hold a list",
    f"- {SECRET}": "entry 1: must be a mapping",
    f"- {{key: {SECRET}}}": "entry 1: tenant",
    f"- {{key: {SECRET}, tenant: a, admin: true}}": "entry 1: must be a mapping with the keys",
    f"- {{key: {SECRET}, sha256: {'0' * 64}, tenant: a}}": "entry 1: give either",
    "- {key: 12345678, tenant: a}": "numbers in quotes",
    "- {key: '', tenant: a}": "entry 1: key",
    f"- {{key: ' {SECRET}', tenant: a}}": "no space around",
    f"- {{key: {'x' * 513}, tenant: a}}": "1 to 512",
    f"- {{sha256: {SECRET}, tenant: a}}": "64 hexadecimal",
    f"- {{key: {SECRET}, tenant: default}}": "tenant",
    f"- {{key: {SECRET}, tenant: 'a\\nb'}}": "tenant",
    f"- {{key: {SECRET}, tenant: {'t' * 65}}}": "tenant",
    f"- {{key: {SECRET}, tenant: a, operator: 1}}": "operator",
    f"- {{key: {SECRET}, tenant: a}}\n- {{key: {SECRET}, tenant: b}}": "twice",
    f"- key: {SECRET}\n  tenant: a: b": "line 2",
    f"- key: &{SECRET}[": "line 1",
    "- key: a\n  tenant: a\n  tenant: b": "line 3",
    b"\xff\xfe": "line 1 is no UTF-8",
    "- key: \x01": "line 1",
    "- 2026-99-99": "line 1",
    "- " + "[" * 5000 + "]" * 5000: "nested too deeply",
}


@pytest.mark.parametrize("text", BAD_FILES, ids=lambda text: repr(text)[:40])
def test_a_bad_file_is_refused_in_one_line_that_tells_no_key(write, text):
    settings = write(text)
    with pytest.raises(ConfigError, match=BAD_FILES[text]) as error:
        load_api_keys(settings)
    assert settings.api_keys_file in error.value.message
    assert error.value.field == "gateway.api_keys_file"
    assert "\n" not in error.value.message
    assert SECRET not in error.value.message
    assert len(error.value.message) < 400


@pytest.mark.parametrize("path", ["/nowhere/keys.yaml", "/dev/zero", "/"])
def test_a_file_that_cannot_be_read_is_named(path):
    with pytest.raises(ConfigError, match=path):
        load_api_keys(GatewaySettings(api_keys_file=path))


def test_nothing_shows_a_key(write, caplog):
    caplog.set_level(logging.DEBUG)
    keys = load_api_keys(write(FILE))
    settings = write(FILE)
    shown = [repr(keys), str(keys), repr(vars(keys)), repr(settings), settings.model_dump_json()]
    shown += [caplog.text, repr(pickle.dumps(keys)), repr(pickle.dumps(settings))]
    for text in shown:
        assert SECRET not in text


def test_keys_in_a_config_are_refused_without_repeating_them():
    args = {
        "target": {"target": {"model": "tiny"}, "speculation": {"drafters": []}},
        "gateway": {"api_keys": {SECRET: "search"}},
    }
    with pytest.raises(pydantic.ValidationError, match="api_keys_file") as error:
        AppSettings.model_validate(args)
    assert SECRET not in str(error.value)
    # Also where they stand under a name that nobody knows.
    with pytest.raises(pydantic.ValidationError) as error:
        AppSettings.model_validate({**args, "gateway": {"keys": {SECRET: "search"}}})
    assert SECRET not in str(error.value)


def test_one_place_for_keys():
    with pytest.raises(pydantic.ValidationError, match="either"):
        GatewaySettings(api_keys_file="a", api_keys_env="B")


def test_a_partition_holds_a_digest_of_the_salt_and_no_more():
    longest = partition_of("t" * 64, "s" * MAX_CACHE_SALT_CHARS)
    assert len(longest) < 160
    assert "ssss" not in longest
    assert owner_of(longest) == "t" * 64
    assert len({partition_of("a", salt) for salt in (None, "b", "c", "\ud800")}) == 4
    assert partition_of("a", None) == partition_of("a", "")
    with pytest.raises(InvalidRequestError, match="at most 1024 characters") as error:
        partition_of("a", "s" * (MAX_CACHE_SALT_CHARS + 1))
    assert error.value.field == "cache_salt"
