"""What the figures rest on: ratios, percentiles, the sample of prompts, the reading of a stream."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from benchmarks.measure import Run, cpu_ratio, percentile, speed_ratio, verdict
from benchmarks.peers import FIGURES, shortened
from benchmarks.prompts import MissingPromptsError, read_prompts, sample
from benchmarks.served_demo import body, stream


def test_ratio_weighs_prompts_by_their_time():
    ours = [Run(10, 1.0), Run(10, 4.0)]
    theirs = [Run(10, 2.0), Run(10, 4.0)]
    ratio = speed_ratio(ours, theirs)
    assert ratio.value == pytest.approx((20 / 5) / (20 / 6))
    assert 1.0 <= ratio.low <= ratio.value <= ratio.high <= 2.0


def test_cpu_ratio_ignores_waiting():
    assert cpu_ratio([Run(10, 9.0, cpu_s=1.0)], [Run(5, 1.0, cpu_s=1.0)]) == pytest.approx(2.0)


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (50, 2.5), (100, 4.0)])
def test_percentile_is_linear_between_ranks(percent, expected):
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == pytest.approx(expected)


def test_verdict_names_a_missed_aim():
    assert "MISSED" in verdict("speed", 1.19, 1.2)
    assert "MISSED" not in verdict("speed", 1.2, 1.2)
    assert "MISSED" in verdict("delay", 1.2, 1.1, at_least=False)


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl.gz"
    with gzip.open(path, "wt") as lines:
        for index in range(30):
            category = ("rag", "qa", "writing", "coding")[index % 4]
            lines.write(json.dumps({"category": category, "turns": [f"{index}", "no"]}) + "\n")
    return path


def test_sample_is_seeded_even_and_without_repeats(questions):
    prompts = read_prompts(questions)
    assert {name: len(items) for name, items in prompts.items()} == {
        "rag": 8,
        "qa": 8,
        "mt_bench": 14,
    }
    chosen = sample(prompts, 5, seed=3)
    assert chosen == sample(prompts, 5, seed=3) != sample(prompts, 5, seed=4)
    assert [prompt.category for prompt in chosen] == ["mt_bench", "qa", "rag"] * 5
    assert len({prompt.text for prompt in chosen}) == 15


def test_absent_prompts_are_told(tmp_path):
    with pytest.raises(MissingPromptsError, match="absent"):
        read_prompts(tmp_path / "nothing")


def test_quick_commands_keep_everything_but_their_size():
    assert shortened("serving --repeats 5 --streams 8") == "serving --repeats 1 --streams 8"
    assert all(shortened(each).split()[0] == each.split()[0] for each in FIGURES["serving"])


async def _answering(answer: bytes):
    """A server that sends `answer` to one request, the last event a little later."""

    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        head, tail = answer.rsplit(b"data: ", 1)
        writer.write(head)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"data: " + tail)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(handle, "127.0.0.1", 0)


async def _read(answer: bytes) -> Run:
    server = await _answering(answer)
    async with server:
        return await stream(server.sockets[0].getsockname()[1], body([1], 2))


def test_a_stream_is_timed_and_counted():
    answer = (
        b"HTTP/1.1 200 OK\r\n\r\n"
        b'data: {"choices": [{"text": "a"}]}\n\n'
        b'data: {"choices": [], "usage": {"completion_tokens": 7}}\n\n'
        b"data: [DONE]\n\n"
    )
    run = asyncio.run(_read(answer))
    assert run.num_tokens == 7
    assert 0 < run.first_s < run.seconds
    assert run.seconds >= 0.05


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 503 No\r\n\r\ndata: x\n\n", "503"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\ndata: cut", "ended"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\ndata: [DONE]\n\n", "no usage"),
    ],
)
def test_a_broken_stream_is_no_figure(answer, message):
    with pytest.raises(ValueError, match=message):
        asyncio.run(_read(answer))
