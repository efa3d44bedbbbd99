"""Trace files: what their lines become, and which faults are named by line."""

from __future__ import annotations

import pytest

from specdec.errors import ConfigError
from specdec.simulation.traces import load_traces
from tests.unit.simulation.simulated import trace_line, write_trace


def test_recorded_lengths_lose_the_target_s_own_token(tmp_path):
    path = write_trace(tmp_path / "t.jsonl.gz", trace_line(4, 3, eagle=[3, 1, 2]))
    loaded = load_traces([path], ("eagle",))
    (request,) = loaded.requests
    assert (request.prompt_len, request.output_len) == (4, 3)
    assert request.acceptable["eagle"].tolist() == [2, 0, 1]


def test_one_drafter_sets_the_length_and_two_must_align(tmp_path):
    path = write_trace(
        tmp_path / "t.jsonl",
        trace_line(2, 3, eagle=[1, 1], ngram=[1, 2, 3]),
        "",
        trace_line(2, 2, eagle=[2, 1], ngram=[1, 2]),
    )
    assert [r.output_len for r in load_traces([path], ("eagle",)).requests] == [2, 2]
    both = load_traces([path, path], ("eagle", "ngram"))
    assert len(both.requests) == 2
    assert both.num_unaligned == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: Expecting property name"),
        ("[]", "line 2: expected a JSON object"),
        (trace_line(eagle=[]), "line 2: accept_len_eagle: expected a list"),
        (trace_line(eagle=[1, 0]), "line 2: accept_len_eagle: an accepted length"),
        (trace_line(eagle=[1, True]), "line 2: accept_len_eagle: expected a list"),
        (trace_line(ngram=[1]), "line 2: accept_len_eagle: expected a list"),
        (trace_line(eagle=[1]) | {"prompt_token_ids": [-1]}, "line 2: prompt_token_ids: a token"),
        (trace_line(eagle=[1]) | {"generated_token_ids": "a"}, "line 2: generated_token_ids: exp"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path, line, words):
    path = write_trace(tmp_path / "t.jsonl", trace_line(eagle=[1, 2, 3]), line)
    with pytest.raises(ConfigError, match=words) as caught:
        load_traces([path], ("eagle",))
    assert caught.value.field == "trace"


def test_files_that_hold_no_request_are_refused(tmp_path):
    empty = write_trace(tmp_path / "empty.jsonl")
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(b"\x1f\x8b no gzip")
    for path, words in (
        (empty, "no request"),
        (broken, "cannot read"),
        (tmp_path / "missing", "cannot read"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_traces([path], ("eagle",))
    unaligned = write_trace(tmp_path / "u.jsonl", trace_line(2, 3, eagle=[1], ngram=[1]))
    with pytest.raises(ConfigError, match="all of 1 lines"):
        load_traces([unaligned], ("eagle", "ngram"))
