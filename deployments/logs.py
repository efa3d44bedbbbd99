"""Our log lines in the log files of the replica that wrote them.

Serve gives each replica a logger of its own, `ray.serve`, with its file and format; what other
loggers say below a warning is lost.
"""

from __future__ import annotations

import logging

OURS = ("specdec", "deployments")


def join_serve_log() -> None:
    """Send what this package logs from INFO on where Serve's own lines go. Called by replicas."""
    serve_logger = logging.getLogger("ray.serve")
    for name in OURS:
        logger = logging.getLogger(name)
        logger.handlers = serve_logger.handlers
        logger.setLevel(logging.INFO)
        logger.propagate = False
