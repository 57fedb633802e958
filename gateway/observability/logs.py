"""Log set-up: text on stderr, one line per event.

Rule: a log line holds names, ids, counts and times. Prompts, answers and keys are never passed to a logger.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")
LINE_CHARACTERS = 4000
# The simulated engine's server repeats what our own lines say, and warns of every stranger that speaks no HTTP.
CHATTY = {"uvicorn.error": logging.ERROR}


class OneLine(logging.Formatter):
    """Formats an event as one line: UTC time, level, logger, message, and a traceback folded into the same line.

    `who`, where given, stands in front of the message: which of several processes writes.
    """

    def __init__(self, who: str = "") -> None:
        told = who.replace("%", "%%") + ": " if who else ""
        super().__init__(f"%(asctime)s %(levelname)s %(name)s: {told}%(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802, ARG002 - as logging calls it
        """Return the event's time as ISO 8601 in UTC, to the millisecond."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; line breaks in it are written as \\n, and it ends at `LINE_CHARACTERS`."""
        line = super().format(record).replace("\r", "\\r").replace("\n", "\\n")
        return line if len(line) <= LINE_CHARACTERS else line[:LINE_CHARACTERS] + "…"


def set_up_logs(level: str = "info", stream: TextIO | None = None, who: str = "") -> logging.Handler:
    """Send every logger's events from `level` (one of `LEVELS`) up to `stream` (stderr); return the handler.

    A second call replaces the first one's handler.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(OneLine(who))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old.formatter, OneLine)]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_level(level)
    return handler


def set_level(level: str) -> None:
    """Log events from `level` (one of `LEVELS`) up from now on."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name, least in CHATTY.items():
        logging.getLogger(name).setLevel(max(root.level, least))
