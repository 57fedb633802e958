"""The soak tells right answers, errors and wrong answers apart, and its lines can fail."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.served import Reading, exit_status
from benchmarks.soak import watch
from benchmarks.soak.call import Answer
from benchmarks.soak.shapes import Shape, essence, shapes, verdict

BODY = {"id": "a", "created": 1, "choices": [{"text": " so"}], "usage": {"completion_tokens": 1}}
PLAIN = Shape("plain", b"", stream=False, expected={k: BODY[k] for k in ("choices", "usage")})
STREAM = Shape("stream", b"", stream=True, expected={0: (" so be it", "stop")})


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def said(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


def error(code: object) -> dict[str, Any]:
    return {"error": {"message": "m", "type": "server_error", "param": None, "code": code}}


DONE = b"data: [DONE]\n\n"
WHOLE = said(" so") + said(" be it", "stop")


@pytest.mark.parametrize(
    ("shape", "answer", "expected"),
    [
        (PLAIN, Answer(200, json.dumps({**BODY, "id": "b", "created": 2}).encode(), True), "right"),
        (PLAIN, Answer(200, json.dumps({**BODY, "choices": []}).encode(), True), "wrong"),
        (PLAIN, Answer(200, json.dumps(BODY).encode(), False), "wrong"),
        (PLAIN, Answer(200, json.dumps(BODY).encode()[:20], True), "wrong"),
        (PLAIN, Answer(502, json.dumps(error("upstream_failed")).encode(), True), "error upstream_failed"),
        (PLAIN, Answer(500, json.dumps(error(500)).encode(), True), "error 500"),
        (PLAIN, Answer(500, json.dumps(error("internal_error")).encode(), True), "wrong"),
        (PLAIN, Answer(502, json.dumps(error(500)).encode(), True), "wrong"),
        (PLAIN, Answer(404, json.dumps(error("no_endpoint")).encode(), True), "wrong"),
        (PLAIN, Answer(502, b"Bad Gateway", True), "wrong"),
        (PLAIN, Answer(502, b'{"detail":"no"}', True), "wrong"),
        (STREAM, Answer(200, WHOLE + DONE, True), "right"),
        (STREAM, Answer(200, WHOLE, True), "wrong"),
        (STREAM, Answer(200, WHOLE + DONE, False), "wrong"),
        (STREAM, Answer(200, said(" so") + DONE, True), "wrong"),
        (STREAM, Answer(200, said(" so") + event(error("upstream_failed")), True), "error in stream upstream_failed"),
        (STREAM, Answer(200, said(" be") + event(error("upstream_failed")), True), "wrong"),
        (STREAM, Answer(200, said(" so") + b"data: half\n\n", True), "wrong"),
    ],
)
def test_an_answer_is_right_an_error_or_wrong(shape: Shape, answer: Answer, expected: str):
    assert verdict(shape, answer).partition(":")[0] == expected


def test_a_stream_without_a_good_end_teaches_nothing():
    with pytest.raises(ValueError, match="no good end"):
        essence(Answer(200, WHOLE, True), stream=True)


def test_the_same_seed_asks_the_same():
    assert list(shapes(Random(3))) == list(shapes(Random(3)))
    assert len({shape.request for shape in shapes(Random(3))}) == 36


def lag(late: int, ticks: int) -> Reading:
    return Reading(
        "# TYPE twohop_loop_lag_seconds histogram\n"
        f'twohop_loop_lag_seconds_bucket{{le="0.02"}} {ticks - late}\n'
        f'twohop_loop_lag_seconds_bucket{{le="+Inf"}} {ticks}\n'
        f"twohop_loop_lag_seconds_sum 1.0\ntwohop_loop_lag_seconds_count {ticks}\n"
    )


def sample(at_s: float = 0.0, rss_mb: float = 60.0, descriptors: int = 20, left: int = 0, late: int = 0):
    return watch.Sample(at_s, rss_mb, descriptors, left, left, left, lag(late, 2400))


def held(lines: list[Any]) -> list[bool | None]:
    return [line.held for line in lines]


def test_what_is_left_behind_fails():
    start, quiet = watch.Sample(0.0, 60.0, 20, 0, 0, 0, lag(0, 0)), [sample(float(s)) for s in range(200)]
    assert held(watch.judge(start, quiet, sample())) == [True] * 6
    assert held(watch.judge(start, quiet, sample(left=1)))[:4] == [False, False, False, True]
    assert held(watch.judge(start, quiet, sample(descriptors=31)))[3] is False
    growing = [sample(float(s), rss_mb=60.0 + s / 10) for s in range(200)]
    assert held(watch.judge(start, growing, sample()))[4] is False
    assert held(watch.judge(start, growing[:100], sample()))[4] is None
    assert exit_status(watch.judge(start, growing, sample())) == 1


@pytest.mark.parametrize(("late", "ticks", "expected"), [(0, 199, None), (3, 400, True), (4, 400, False)])
def test_the_loop_is_late_in_less_than_one_look_of_a_hundred(late: int, ticks: int, expected: bool | None):
    assert watch.lag(lag(5, 100), lag(5 + late, 100 + ticks)).held is expected


def test_a_traceback_in_the_log_fails(tmp_path: Path):
    log = tmp_path / "gateway.log"
    log.write_text("INFO listening\n")
    assert watch.judge_log(log).held
    log.write_text("ERROR a fault\\nTraceback (most recent call last)")
    assert not watch.judge_log(log).held
