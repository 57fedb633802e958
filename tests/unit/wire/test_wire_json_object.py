"""Laws of JSON objects kept as raw members, held against Python's own parser."""

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import json_object

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(texts, values, max_size=6)
spellings = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "indent": st.sampled_from([None, 1]),
        "separators": st.sampled_from([(",", ":"), None]),
    }
)
# What a string may hold between its quotes: escapes of every kind, whole, lone and feigned surrogates.
pieces = st.sampled_from(
    [
        "\\ud83d\\ude00",
        "\\ud83D",
        "\\uDE00",
        "\\uDbFf\\uDC00",
        "\\\\ud800",
        "\\\\\\ud800",
        "\\n",
        '\\"',
        "\\u00e9",
        "\\ufffd",
    ]
) | st.sampled_from(["u", "d", "ud800", "e", "é", "😀", " ", "\\\\"])
strings = st.lists(pieces, max_size=8).map("".join)


@given(value=objects, spelling=spellings)
def test_what_is_built_from_the_members_is_the_same_object(value, spelling):
    body = json.dumps(value, **spelling).encode()
    members = json_object.parse(body)
    assert json.loads(json_object.build(members)) == value
    assert list(members) == list(value)


@given(value=objects, name=texts, put=values, spelling=spellings)
def test_a_changed_member_changes_no_byte_of_another(value, name, put, spelling):
    members = json_object.parse(json.dumps(value, **spelling).encode())
    built = json_object.build({**members, name: json.dumps(put).encode()})
    assert json.loads(built) == {**value, name: put}
    after = json_object.parse(built)
    for other in value:
        if other != name:
            assert bytes(after[other]) == bytes(members[other])


def test_raw_bytes_keep_their_own_spelling():
    body = b'{ "a" : 1.50 , "b":[ 1,\n2 ],"c":"\\u0041", "d": 12345678901234567890123456789 }'
    assert json_object.build(json_object.parse(body)) == (
        b'{"a":1.50,"b":[ 1,\n2 ],"c":"\\u0041","d":12345678901234567890123456789}'
    )


def test_of_a_repeated_name_the_last_counts():
    assert json_object.build(json_object.parse(b'{"a":1,"b":2,"a":3}')) == b'{"a":3,"b":2}'


def test_no_member_is_an_empty_object():
    assert json_object.build(json_object.parse(b" {} ")) == b"{}"


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b'"a"', b"{", b'{"a":01}', b'{"a":NaN}', b'{"a":1}{', b'{"\xff":1}', b'{"a":"\\ud800"}',
     b'{"a":' + b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_object_is_refused_with_a_reason(body):
    with pytest.raises(ValueError, match=r".+"):
        json_object.parse(body)


@given(inner=strings, name=strings)
def test_lone_surrogates_are_replaced_and_nothing_else(inner, name):
    body = f'{{"{name}":"{inner}"}}'.encode()
    plain = json_object.without_lone_surrogates(body)
    expected = {
        re.sub(r"[\ud800-\udfff]", "�", key): re.sub(r"[\ud800-\udfff]", "�", value)
        for key, value in json.loads(body).items()
    }
    if plain is None:
        assert json.loads(body) == expected
        plain = body
    assert len(plain) == len(body)
    assert json.loads(plain) == expected
    # Ours and Python's agree on the result, so reading it is reading what the engine reads.
    assert {key: json_object.text(raw) for key, raw in json_object.parse(plain).items()} == expected


@pytest.mark.parametrize(
    "inner", [b"plain", b"\\\\ud800", b"\\ud83d\\ude00", b"\\\\\\\\uDFFF", b"\\u0041\\ud83D\\uDe00"]
)
def test_a_body_without_lone_surrogates_is_left_as_it_is(inner):
    assert json_object.without_lone_surrogates(b'{"a":"' + inner + b'"}') is None


@pytest.mark.parametrize(
    ("inner", "plain"),
    [
        (b"\\ud800", b"\\ufffd"),
        (b"\\uDC00", b"\\ufffd"),
        (b"\\ud800\\ud83d\\ude00", b"\\ufffd\\ud83d\\ude00"),
        (b"\\ude00\\ud83d", b"\\ufffd\\ufffd"),
        (b"\\\\\\ud800", b"\\\\\\ufffd"),
        (b"\\ud83d\\u0041", b"\\ufffd\\u0041"),
    ],
)
def test_an_unpaired_escape_becomes_the_replacement_character(inner, plain):
    assert json_object.without_lone_surrogates(b'{"a":"' + inner + b'"}') == b'{"a":"' + plain + b'"}'


@given(value=values)
def test_a_member_is_read_as_what_it_is(value):
    raw = json_object.parse(json.dumps({"a": value}).encode())["a"]
    assert json_object.text(raw) == (value if isinstance(value, str) else None)
    assert json_object.integer(raw) == (value if type(value) is int else None)
    assert json_object.is_absent(raw) is (value is None)


def test_an_absent_member_is_nothing():
    assert (json_object.text(None), json_object.integer(None)) == (None, None)
    assert json_object.is_absent(None)


@pytest.mark.parametrize("raw", [b'"\xff"', b"{", b""])
def test_a_member_that_is_no_json_is_neither_text_nor_integer(raw):
    assert (json_object.text(msgspec.Raw(raw)), json_object.integer(msgspec.Raw(raw))) == (None, None)


def test_the_names_of_a_member_that_is_an_object():
    members = json_object.parse(rb'{"a": {"x\u005fy": 1, "z": {}}, "b": ["c"], "d": null}')
    assert json_object.names(members["a"]) == {"x_y", "z"}
    assert json_object.names(members["b"]) == json_object.names(members["d"]) == frozenset()
