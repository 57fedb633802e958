"""When silence has lasted, and how an engine is asked for one token."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pool.progress import TICKS, Silence, gave_a_token, questions
from gateway.pool.spec import Model

TICK = st.tuples(st.integers(0, 3), st.booleans())


def test_silence_has_lasted_at_the_fifth_tick_and_is_counted_anew():
    silence = Silence()
    assert [silence.tick(1, False) for _ in range(12)] == [False] * 4 + [True] + [False] * 4 + [True] + [False] * 2


@given(st.lists(TICK, max_size=40))
def test_silence_has_lasted_only_after_ticks_with_requests_and_without_a_byte(ticks):
    silence = Silence()
    lasted = [silence.tick(in_flight, stirred) for in_flight, stirred in ticks]
    for index, one in enumerate(lasted):
        if one:
            assert all(in_flight and not stirred for in_flight, stirred in ticks[index - TICKS : index + 1])


def test_a_model_of_its_own_is_asked_for_one_token_by_both_routes():
    models = [Model("adapter", {"parent": "m"}), Model("m", {"parent": None})]
    (text, text_body), (chat, chat_body) = questions(models)
    assert (text, chat) == ("/v1/completions", "/v1/chat/completions")
    for body in (json.loads(text_body), json.loads(chat_body)):
        assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 1, False)


def test_where_only_an_adapter_is_told_it_is_asked_for_and_where_nothing_is_nothing():
    assert json.loads(questions([Model("adapter", {"parent": "m"})])[0][1])["model"] == "adapter"
    assert questions([]) == ()


@pytest.mark.parametrize(("status", "gave"), [(200, True), (404, None), (429, None), (503, False), (0, False)])
def test_an_answer_shows_progress_or_not_or_says_nothing(status, gave):
    assert gave_a_token(status) is gave
