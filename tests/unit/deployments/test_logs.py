"""Nothing that a client names begins a line of its own in our logs."""

from __future__ import annotations

import io
import json
import logging

import pytest
from ray._common.formatters import JSONFormatter
from ray.serve._private.logging_utils import ServeFormatter

from deployments.logs import OURS, OneLine, join_serve_log

FORGED = "2026-01-01 ERROR all keys are void"
ENDS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


@pytest.fixture
def logger():
    logger = logging.getLogger("deployments.test_logs")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    handler.addFilter(OneLine())
    logger.handlers, logger.propagate = [handler], False
    logger.stream, logger.handler = stream, handler
    return logger


@pytest.mark.parametrize("end", ENDS, ids=ascii)
def test_a_record_is_one_line(logger, end):
    logger.warning("request %s ended", f"a{end}{FORGED}")
    logger.warning(f"a{end}{FORGED}")
    lines = logger.stream.getvalue().splitlines()
    assert len(lines) == 2
    assert all(FORGED in line for line in lines), "told, in its place"


def test_a_terminal_is_not_written_to(logger):
    logger.warning("%s", "\x1b[2J\x07\x9b")
    assert logger.stream.getvalue() == "WARNING \\x1b[2J\\x07\\x9b\n"


@pytest.mark.parametrize("end", ENDS, ids=ascii)
def test_the_message_of_an_exception_begins_no_record(logger, end):
    try:
        raise ValueError(f"a{end}{FORGED}")
    except ValueError:
        logger.exception("failed")
    first, *stack = logger.stream.getvalue().splitlines()
    assert first == "ERROR failed"
    assert any("raise ValueError" in line for line in stack)
    assert all(line.startswith("    ") for line in stack)
    assert not any(line.strip().startswith("ERROR") for line in stack)


def test_a_record_without_arguments_keeps_its_percent_signs(logger):
    logger.warning("100% of %s")
    logger.warning("%d%%", 3)
    assert logger.stream.getvalue() == "WARNING 100% of %s\nWARNING 3%\n"


def test_json_stays_one_object_per_line(logger):
    logger.handler.setFormatter(JSONFormatter())
    logger.warning("%s", f"a\n{FORGED}\u2028", extra={"response_id": "b\nc"})
    (line,) = logger.stream.getvalue().splitlines()
    assert json.loads(line)["message"] == f"a\\x0a{FORGED}\\u2028"
    assert json.loads(line)["response_id"] == "b\nc"


def test_the_id_that_serve_takes_from_a_header_is_one_short_word(logger):
    """`X-Request-Id` stands in front of each line about the call."""
    logger.handler.setFormatter(ServeFormatter("Gateway", "abc"))
    given = f"x -- {FORGED}\n\u2028" + "y" * 60_000
    logger.warning("ended", extra={"request_id": given, "route": "/v1"})
    (line,) = logger.stream.getvalue().splitlines()
    assert len(line) < 300
    assert line.count(" -- ") == 1
    assert line.endswith(" -- ended")


def test_a_message_of_serves_keeps_its_lines_behind_spaces(logger):
    other = logging.getLogger("ray.serve.test_logs")
    other.handlers, other.propagate = logger.handlers, False
    other.error("Request failed:\nTraceback\n%s", f"ValueError: a\u2028b\n{FORGED}")
    first, *others = logger.stream.getvalue().splitlines()
    assert first == "ERROR Request failed:"
    assert all(line.startswith("    ") for line in others)


def test_our_loggers_write_where_serve_does_and_each_handler_is_guarded_once():
    serve_logger = logging.getLogger("ray.serve")
    before = serve_logger.handlers
    handler = logging.StreamHandler(io.StringIO())
    ours = [logging.getLogger(name) for name in OURS]
    states = [(each, each.handlers, each.level, each.propagate) for each in ours]
    try:
        serve_logger.handlers = [handler]
        join_serve_log()
        join_serve_log()
        assert [type(each) for each in handler.filters] == [OneLine]
        logging.getLogger("deployments.gateway").error("a\nb")
        assert handler.stream.getvalue() == "a\\x0ab\n"
    finally:
        serve_logger.handlers = before
        for each, handlers, level, propagate in states:
            each.handlers, each.propagate = handlers, propagate
            each.setLevel(level)
