"""Logs: one line per event, whatever is in it."""

import io
import logging
from collections.abc import Iterator

import pytest

from gateway.observability.logs import CHATTY, LINE_CHARACTERS, OneLine, set_up_logs


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    names = ("", *CHATTY)
    levels = [logging.getLogger(name).level for name in names]
    yield
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler.formatter, OneLine)]:
        root.removeHandler(handler)
    for name, level in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(level)


def written(level: str, *events: tuple[int, str]) -> list[str]:
    stream = io.StringIO()
    set_up_logs(level, stream)
    for severity, message in events:
        logging.getLogger("gateway.test").log(severity, "%s", message)
    return stream.getvalue().splitlines()


def test_an_event_is_one_line_with_time_level_and_logger():
    (line,) = written("info", (logging.INFO, "first\nsecond\r\nthird"))
    stamp, rest = line.split(" ", 1)
    assert stamp.endswith("+00:00")
    assert rest == "INFO gateway.test: first\\nsecond\\r\\nthird"


def test_a_traceback_stays_on_its_event_s_line():
    stream = io.StringIO()
    set_up_logs("error", stream)
    try:
        int("x")
    except ValueError:
        logging.getLogger("gateway.test").exception("bad number")
    (line,) = stream.getvalue().splitlines()
    assert "bad number" in line
    assert "ValueError" in line


def test_a_line_has_an_end():
    (line,) = written("info", (logging.INFO, "x" * (2 * LINE_CHARACTERS)))
    assert len(line) == LINE_CHARACTERS + 1


def test_the_level_leaves_out_what_is_below_it():
    lines = written("warning", (logging.INFO, "quiet"), (logging.WARNING, "loud"))
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["loud"]


def test_a_second_set_up_writes_no_event_twice():
    written("info")
    assert len(written("info", (logging.INFO, "once"))) == 1


def test_a_level_above_warning_holds_for_other_people_s_loggers_too():
    stream = io.StringIO()
    set_up_logs("error", stream)
    for name in CHATTY:
        logging.getLogger(name).warning("Invalid HTTP request received.")
    assert stream.getvalue() == ""
