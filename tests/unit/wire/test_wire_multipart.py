"""A field is found in a form, and a form that could be read in two ways is refused with what is wrong."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import multipart
from gateway.wire.multipart import BadForm, boundary_of, find_text, is_form

TYPE = b"multipart/form-data; boundary=b"
MODEL = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
FILE = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a \\"b\\".wav"\r\ncontent-type: audio/wav\r\n\r\n'
)


def text_field(body: bytes | bytearray, content_type: bytes, name: bytes) -> str | None:
    walk = find_text(body, content_type, name)
    try:
        while True:
            next(walk)
    except StopIteration as end:
        value: str | None = end.value
        return value


def model_in(body: bytes, content_type: bytes = TYPE) -> str | None:
    return text_field(body, content_type, b"model")


def part(disposition: bytes, value: bytes = b"m") -> bytes:
    return b"--b\r\ncontent-disposition: %b\r\n\r\n%b\r\n--b--\r\n" % (disposition, value)


@given(audio=st.binary(max_size=300), model=st.text(min_size=1, max_size=30), first=st.booleans())
def test_what_a_client_library_writes_is_read(audio, model, first):
    files = [("file", ("x.wav", audio)), ("model", (None, model))]
    request = httpx.Request("POST", "http://x", files=files if first else files[::-1])
    body, kind = request.read(), request.headers["content-type"].encode()
    assert text_field(body, kind, b"model") == text_field(bytearray(body), kind, b"model") == model
    assert text_field(body, kind, b"other") is None


@pytest.mark.parametrize(
    "content_type",
    [
        TYPE,
        b'Multipart/Form-Data ; charset=UTF-8;boundary="b"',
        b"multipart/form-data; boundary=b;",
    ],
)
def test_the_boundary_may_be_quoted(content_type):
    assert is_form(content_type)
    assert boundary_of(content_type) == b"b"
    assert model_in(MODEL + b"--b--", content_type) == "m"


def test_a_quoted_boundary_may_hold_what_separates():
    assert boundary_of(b'multipart/form-data; boundary="a; b=c"') == b"a; b=c"


@pytest.mark.parametrize("content_type", [None, b"application/json", b"multipart/mixed; boundary=b"])
def test_what_is_no_form(content_type):
    assert not is_form(content_type)
    with pytest.raises(BadForm, match="not multipart/form-data"):
        boundary_of(content_type or b"")


@pytest.mark.parametrize(
    ("content_type", "wrong"),
    [
        (b"multipart/form-data", "names no boundary"),
        (b'multipart/form-data; boundary=""', "names no boundary"),
        (b"multipart/form-data; boundary=" + b"b" * 201, "names no boundary"),
        (b'multipart/form-data; boundary="b', "cannot be read"),
        (b"multipart/form-data; boundary=b; boundary=c", "twice"),
        (b"multipart/form-data; boundary=b; charset=utf-7", "charset"),
    ],
)
def test_a_content_type_that_cannot_be_believed_is_refused(content_type, wrong):
    with pytest.raises(BadForm, match=wrong):
        model_in(MODEL + b"--b--", content_type)


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"", "begin with the boundary"),
        (b"preamble\r\n" + MODEL + b"--b--", "begin with the boundary"),
        (b"--bx\r\n", "line's end"),
        (MODEL, "closing boundary"),
        (MODEL + b"--b", "line's end"),
        (b"--b\r\nx", "head of a part"),
        (FILE + b"data\r\n", "closing boundary"),
        (MODEL + MODEL + b"--b--", "given twice"),
        (part(b'form-data; name="model"; filename="x"'), "is a file"),
        (part(b'form-data; name="model"; filename*=x'), "is a file"),
        (part(b"attachment; name=model"), "no content-disposition"),
        (part(b"form-data"), "no plain name"),
        (part(b"form-data; name=x; name*=utf-8''model"), "no plain name"),
        (part(b'form-data; name="mo\\del"'), "no plain name"),
        (part(b'form-data; name=x; name="model"'), "twice"),
        (part(b'form-data; name="model'), "cannot be read"),
        (b"--b\r\nx: y\r\n\r\nm\r\n--b--", "no content-disposition"),
        (b"--b\r\n\r\nm\r\n--b--", "header line"),
        (b"--b\r\ncontent-disposition: form-data;\r\n name=model\r\n\r\nm\r\n--b--", "header line"),
        (b"--b\r\ncontent-disposition: form-data; x=y\n; name=model\r\n\r\nm\r\n--b--", "header line"),
        (b"--b\r\ncontent-disposition : form-data; name=model\r\n\r\nm\r\n--b--", "header line"),
        (
            part(b"form-data; name=x\r\nContent-Disposition: form-data; name=model"),
            "two content-disposition",
        ),
        (part(b"form-data; name=model", b"\xff"), "no UTF-8"),
        (part(b"form-data; name=model", b"m" * (multipart.MAX_VALUE_BYTES + 1)), "over 8192 bytes"),
        (MODEL.replace(b"model", b"x") * multipart.MAX_PARTS + b"--b--", "over 1000 parts"),
    ],
)
def test_a_body_that_could_be_read_in_two_ways_is_refused(body, wrong):
    with pytest.raises(BadForm, match=wrong):
        model_in(body)


def test_a_field_beside_a_file_is_found_on_either_side():
    assert model_in(FILE + b"\r\n--c\r\ndata\r\n" + MODEL + b"--b--") == "m"
    assert model_in(MODEL + FILE + b"\r\n--b--\r\nepilogue") == "m"
    assert model_in(FILE + b"\r\n--b--") is None
    assert model_in(b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n\r\n--b--') == ""
    assert model_in(part(b"form-data; name=model", b"m" * multipart.MAX_VALUE_BYTES)) == "m" * 8192


@pytest.mark.parametrize("size", [(1 << 20) + step for step in range(-120, -60)] + [5 << 20])
def test_a_boundary_is_found_wherever_a_stretch_of_the_walk_ends(size):
    body = FILE + b"\0" * size + b"\r\n" + MODEL + b"--b--"
    assert model_in(body) == "m"
    assert len(list(find_text(body, TYPE, b"model"))) == size >> 20
    with pytest.raises(BadForm, match="closing boundary"):
        model_in(FILE + b"\0" * size)
