"""Our log lines in the log files of the replica that wrote them.

Serve gives each replica a logger of its own, `ray.serve`, with its file and format; what other
loggers say below a warning is lost.
"""

from __future__ import annotations

import logging
import re
import traceback

OURS = ("specdec", "deployments")
# Control characters, and the other ends of lines that Unicode has.
_ESCAPES = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
}
# What Serve takes from a call and puts into each line about it.
CONTEXT_FIELDS = ("request_id", "route")
MAX_CONTEXT_CHARS = 128
_NO_WORD = re.compile(r"[^!-~]")
_KEPT_IN_STACKS = ord("\n")
_STACK_ESCAPES = {code: text for code, text in _ESCAPES.items() if code != _KEPT_IN_STACKS}


def join_serve_log() -> None:
    """Send what this package logs from INFO on where Serve's own lines go. Called by replicas."""
    serve_logger = logging.getLogger("ray.serve")
    for handler in serve_logger.handlers:
        if not any(isinstance(each, OneLine) for each in handler.filters):
            handler.addFilter(OneLine())
    for name in OURS:
        logger = logging.getLogger(name)
        logger.handlers = serve_logger.handlers
        logger.setLevel(logging.INFO)
        logger.propagate = False


class OneLine(logging.Filter):
    """Lets every record through, changed so that what a client named begins no other.

    Our messages are one line. Stacks, and Serve's messages, which hold stacks, keep their lines,
    each further one behind four spaces, where no record begins.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_ours = record.name.partition(".")[0] in OURS
        record.msg = message.translate(_ESCAPES) if is_ours else _indented(message)
        record.args = ()
        for name in CONTEXT_FIELDS:
            if name in record.__dict__:
                given = str(record.__dict__[name])[:MAX_CONTEXT_CHARS]
                record.__dict__[name] = _NO_WORD.sub("?", given)
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        if record.exc_text:
            record.exc_text = f"    {_indented(record.exc_text)}"
        return True


def _indented(text: str) -> str:
    first, *others = text.translate(_STACK_ESCAPES).split("\n")
    return "\n".join([first, *(f"    {line.removeprefix('    ')}" for line in others)])
