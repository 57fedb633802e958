"""Laws of asking for the usage: only that member changes, and only where a stream is sure and nobody has asked."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import json_object
from gateway.wire.ask_usage import ask

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6).filter(lambda name: name != "stream_options")
values = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
options = st.one_of(
    st.none(),
    st.dictionaries(names, values, max_size=2),
    st.builds(lambda more: {**more, "include_usage": False}, st.dictionaries(names, values, max_size=2)),
)


@given(
    others=st.dictionaries(names, values, max_size=4),
    given_options=st.just("none") | options,
    first=st.booleans(),
    indent=st.sampled_from([None, 1]),
    space=st.sampled_from(["", " \n"]),
)
def test_only_the_options_change_and_the_members_say_the_same(others, given_options, first, indent, space):
    told = {} if given_options == "none" else {"stream_options": given_options}
    request = {**told, **others, "stream": True} if first else {**others, "stream": True, **told}
    body = (space + json.dumps(request, indent=indent)).encode()
    members = json_object.parse(body)
    for one in (bytes(body), bytearray(body)):
        members = json_object.parse(body)
        asked = ask(one, members)
        assert asked is not None
        wanted = {**(told.get("stream_options") or {}), "include_usage": True}
        wanted.pop("continuous_usage_stats", None)
        assert json.loads(asked) == {**request, "stream_options": wanted}
        assert json.loads(json_object.build(members)) == {**request, "stream_options": wanted}
        if not told:
            assert bytes(asked).endswith(body.lstrip()[1:])


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m"}',
        b'{"stream":false}',
        b'{"stream":"true"}',
        b'{"stream":1,"stream_options":{}}',
        b'{"stream":null,"stream_options":null}',
        b'{"stream":true,"stream_options":{"include_usage":true}}',
        b'{"stream":true,"stream_options":{"include_usage":1}}',
        b'{"stream":true,"stream_options":{"include_usage":"yes"}}',
        b'{"stream":true,"stream_options":[]}',
        b'{"stream":true,"stream_options":7}',
        b'{"stream":false,"stream":true,"stream":false}',
    ],
)
def test_nothing_is_asked_where_it_is_asked_already_or_no_stream(body):
    members = json_object.parse(body)
    before = dict(members)
    assert ask(body, members) is None
    assert members == before


def test_without_our_usage_the_running_usage_did_nothing_so_it_goes():
    body = b'{"stream":true,"stream_options":{"continuous_usage_stats":true,"x":1},"n":2}'
    assert ask(body, json_object.parse(body)) == b'{"stream":true,"stream_options":{"x":1,"include_usage":true},"n":2}'


def test_a_body_that_cannot_be_built_again_takes_a_new_member_only():
    body = b'{"stream":true,"prompt":"\\ud800"}'
    readable = json_object.without_lone_surrogates(body)
    assert readable is not None
    assert (
        ask(body, json_object.parse(readable), whole=False) == b'{"stream_options":{"include_usage":true},' + body[1:]
    )
    assert (
        ask(
            b'{"stream":true,"stream_options":null}',
            json_object.parse(b'{"stream":true,"stream_options":null}'),
            whole=False,
        )
        is None
    )
