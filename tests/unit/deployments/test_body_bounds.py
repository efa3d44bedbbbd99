"""What a body may cost, whatever is in it: time of the event loop, and memory.

Sizes are combined with wrong types: a schema that does not fit is what made a list of a million
entries cost seconds and gigabytes. Limits here are loose, since the machine may be busy: what they
hold off took 50 times as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import subprocess
import sys
import time

import pytest

from deployments.json_bounds import MAX_CONTAINERS, MAX_STRINGS, check_json
from deployments.openai_requests import ChatBody, CompletionBody, DetokenizeBody, parse
from specdec.errors import InvalidRequestError

MAX_BYTES = 4 * 2**20
MAX_CPU_S = 1.0
MAX_RESIDENT_BYTES = 256 * 2**20


def many(unit: str, count: int) -> str:
    return ",".join([unit] * count)


def filled(head: str, unit: str, tail: str) -> bytes:
    """As many units as make a body of the largest size."""
    count = (MAX_BYTES - len(head) - len(tail)) // (len(unit) + 1)
    return f"{head}{many(unit, count)}{tail}".encode()


def keyed(head: str, value: str, tail: str, count: int) -> bytes:
    return (head + ",".join(f'"{i}":{value}' for i in range(count)) + tail).encode()


OBJECT, TEXT, ONE = "{}", '"x"', "1"
UNITS = ("{}", "[]", "1", "1.5", "null", TEXT)
LISTS = {
    "prompt": (CompletionBody, '{"prompt":[', "]}"),
    "prompts": (CompletionBody, '{"prompt":[[', "]]}"),
    "stop": (CompletionBody, '{"prompt":"a","stop":[', "]}"),
    "allowed_token_ids": (CompletionBody, '{"prompt":"a","allowed_token_ids":[', "]}"),
    "bad_words": (CompletionBody, '{"prompt":"a","bad_words":[', "]}"),
    "unknown": (CompletionBody, '{"prompt":"a","unknown":[', "]}"),
    "messages": (ChatBody, '{"messages":[', "]}"),
    "content": (ChatBody, '{"messages":[{"role":"user","content":[', "]}]}"),
    "tools": (ChatBody, '{"messages":[],"tools":[', "]}"),
    "tokens": (DetokenizeBody, '{"tokens":[', "]}"),
}


def cost_s(kind, raw) -> float:
    begun = time.process_time()
    with contextlib.suppress(InvalidRequestError):
        parse(kind, raw, MAX_BYTES)
    return time.process_time() - begun


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", LISTS)
def test_no_list_of_anything_costs_much(name, unit):
    kind, head, tail = LISTS[name]
    whole = filled(head, unit, tail)
    assert cost_s(kind, whole) < MAX_CPU_S
    # As many as may be: what is counted as too much costs nothing more.
    for count in (MAX_CONTAINERS // 2, MAX_STRINGS - 20, MAX_BYTES // 12 - 20):
        assert cost_s(kind, f"{head}{many(unit, count)}{tail}".encode()) < MAX_CPU_S


@pytest.mark.parametrize("value", ["1", '"a"', "null", "{}"])
@pytest.mark.parametrize("head", ['{"prompt":"a","logit_bias":{', '{"prompt":"a","speculation":{'])
def test_no_object_of_anything_costs_much(head, value):
    for count in (10_000, MAX_STRINGS - 20, 300_000):
        assert cost_s(CompletionBody, keyed(head, value, "}}", count)) < MAX_CPU_S
        assert cost_s(CompletionBody, keyed('{"prompt":"a",', value, "}", count)) < MAX_CPU_S


def test_the_largest_body_does_not_hold_up_the_loop():
    """A probe that is due every millisecond beside the worst bodies."""

    async def scenario() -> float:
        worst, is_done = 0.0, False

        async def probe() -> None:
            nonlocal worst
            while not is_done:
                due = time.thread_time()
                await asyncio.sleep(0.001)
                worst = max(worst, time.thread_time() - due)

        probing = asyncio.create_task(probe())
        for kind, head, tail in LISTS.values():
            for unit in ("{}", "1", '"a"'):
                await asyncio.sleep(0.002)
                cost_s(kind, filled(head, unit, tail))
        is_done = True
        await probing
        return worst

    assert asyncio.run(scenario()) < MAX_CPU_S


MEMORY = """
import resource, sys
from deployments.openai_requests import CompletionBody, parse
from specdec.errors import InvalidRequestError
limit = int(sys.argv[1])
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
for unit in (b"{}", b"[]", b'""', b"1", b"null"):
    head, tail = b'{"prompt":[', b"]}"
    body = head + b",".join([unit] * ((limit - 20) // (len(unit) + 1))) + tail
    try:
        parse(CompletionBody, body, limit)
    except InvalidRequestError:
        pass
print(peak() - before)
"""


def test_the_largest_body_takes_little_memory():
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY, str(MAX_BYTES)], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < MAX_RESIDENT_BYTES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (f'{{"a":[{many(OBJECT, MAX_CONTAINERS)}]}}', "arrays and objects"),
        (f'{{"a":[{many(TEXT, MAX_STRINGS)}]}}', "strings"),
        (f'{{"a":[{many(ONE, 400_000)}]}}', "values"),
        ("[" * 400_000, "arrays and objects"),
    ],
    ids=["containers", "strings", "values", "depth"],
)
def test_too_much_of_anything_is_named(body, what):
    with pytest.raises(InvalidRequestError, match=f"body: holds .* {what}, more than") as error:
        check_json(body.encode(), MAX_BYTES)
    assert error.value.field == "body"


def test_what_stands_inside_of_text_does_not_count():
    """Braces, commas and escaped quotes, in any order, with any number of backslashes."""
    texts = ["{[,]}" * 50_000, '",{' * 50_000, '\\"{' * 50_000, "\\" * 50_001, '\\\\",[' * 20_000]
    for text in texts:
        raw = json.dumps({"prompt": text}).encode()
        check_json(raw, MAX_BYTES)
        assert parse(CompletionBody, raw, MAX_BYTES).prompt == text


def test_a_long_prompt_of_token_ids_and_a_batch_of_them_pass():
    for prompt in (list(range(131_072)), [list(range(2048))] * 128, ["the cat"] * 128):
        raw = json.dumps({"prompt": prompt}).encode()
        assert parse(CompletionBody, raw, MAX_BYTES).prompt == prompt


def test_a_long_conversation_with_parts_and_tools_passes():
    message = {"role": "user", "content": [{"type": "text", "text": "the cat, the {dog}"}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"messages": [message] * 2048, "tools": [tool] * 128}
    assert len(parse(ChatBody, json.dumps(body).encode(), MAX_BYTES).messages) == 2048


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (CompletionBody, {"prompt": "a", "stop": ["x"] * 17}, "stop"),
        (CompletionBody, {"prompt": "a", "bad_words": ["x"] * 1001}, "bad_words"),
        (ChatBody, {"messages": [{"role": "user", "content": "a"}] * 2049}, "messages"),
        (ChatBody, {"messages": [{"role": "a", "content": [{}] * 1025}]}, "messages.0.content"),
        (ChatBody, {"messages": [], "tools": [{}] * 129}, "tools"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_list_that_is_too_long_is_named_with_its_limit(kind, body, field):
    with pytest.raises(InvalidRequestError, match="must have at most") as error:
        parse(kind, json.dumps(body).encode(), MAX_BYTES)
    assert error.value.field == field


@pytest.mark.parametrize(
    "prompt", [None, 1, 1.5, {}, [None], ["a", 1], [1, "a"], [1, True], [[1], 2], [[1], ["a"]]]
)
def test_a_prompt_of_mixed_or_other_kinds_is_refused(prompt):
    with pytest.raises(InvalidRequestError) as error:
        parse(CompletionBody, json.dumps({"prompt": prompt}).encode(), MAX_BYTES)
    assert error.value.field == "prompt"
