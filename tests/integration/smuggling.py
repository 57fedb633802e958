"""Raw inputs that have split one request into two somewhere, and what may come of each; RFC 9112 is the judge.

Wherever an input would end for a parser that reads it wrongly, a second request (`EVIL`) lies in wait.
"""

from collections.abc import Iterator
from dataclasses import dataclass

CHAT = b"POST /v1/chat/completions HTTP/1.1"
GOOD = b'{"model":"m"}'
EVIL_BODY = b'{"model":"m","evil":1}'
EVIL = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(EVIL_BODY), EVIL_BODY)
END = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
CHUNKS = b"d\r\n%b\r\n0\r\n\r\n" % GOOD
LIMIT = 100_000  # limits.body_bytes in these tests


@dataclass(frozen=True)
class Input:
    """What is sent, and which lists of bodies an engine may see of it; `status`: the only one of the first answer."""

    name: str
    data: bytes
    allowed: tuple[tuple[bytes, ...], ...]
    status: int | None = None


def refused(name: str, data: bytes) -> Input:
    """Return an input that is no request: no engine sees any of it, and the connection ends."""
    return Input(name, data, ((),))


def either(name: str, data: bytes, *bodies: bytes) -> Input:
    """Return an input that may be refused, or be read in this one way."""
    return Input(name, data, ((), bodies or (GOOD,)))


def taken(name: str, data: bytes, *bodies: bytes) -> Input:
    """Return an input that is a request by the book; `END` behind it closes the connection."""
    return Input(name, data + END, (bodies or (GOOD,),), 200)


def unseen(name: str, data: bytes, status: int) -> Input:
    """Return an input that is a request by the book, but none for an engine."""
    return Input(name, data + END, ((),), status)


def post(*lines: bytes, body: bytes = GOOD, first: bytes = CHAT, host: bytes = b"host: x") -> bytes:
    """Return a request of these lines."""
    return b"\r\n".join([first, *([host] if host else []), *lines, b"", b""]) + body


LENGTH = b"content-length: 13"
CHUNKED = b"transfer-encoding: chunked"


def encodings() -> Iterator[Input]:
    """Yield variants of Transfer-Encoding, most of them with a length beside."""
    for length in (b"0", b"5", b"13", b"%d" % len(CHUNKS), b"%d" % (len(CHUNKS) + len(EVIL))):
        both = b"content-length: " + length
        yield either(f"CL {length.decode()}, TE", post(both, CHUNKED, body=CHUNKS) + EVIL)
        yield either(f"TE, CL {length.decode()}", post(CHUNKED, both, body=CHUNKS) + EVIL)
    for value in (
        b"xchunked", b"chunkedx", b"chunked, identity", b"chunked, gzip", b"gzip, chunked", b"identity, chunked",
        b"identity", b"chunked, chunked", b'"chunked"', b"chunked;q=1", b"chunked chunked", b"\x0bchunked",
        b"chunked\x0b",
        b"chunked\x00", b"", b"chunk", b"cow", b"chunked\r", b"chu\tnked", b"\xa0chunked", b"ch\xfbnked",
    ):  # fmt: skip
        lines = (b"transfer-encoding: " + value, LENGTH)
        yield refused(f"TE: {value!r}, by length", post(*lines) + EVIL)
        yield refused(f"TE: {value!r}, by chunks", post(*lines[:1], body=CHUNKS) + EVIL)
    for value in (b" \tchunked", b"Chunked", b"CHUNKED"):
        yield taken(f"TE: {value!r}", post(b"transfer-encoding:" + value, body=CHUNKS))
    for value in (b"chunked,", b",chunked", b" , chunked , ", b"chunked \t"):
        yield either(f"TE: {value!r}", post(b"transfer-encoding: " + value, body=CHUNKS) + END)
    for line in (
        b"transfer-encoding : chunked", b"transfer-encoding\t: chunked", b"transfer-encoding\x00: chunked",
        b"transfer-encoding\x0b: chunked", b"transfer-encoding\r: chunked", b"transfer encoding: chunked",
        b"x: y\ntransfer-encoding: chunked", b"x: y\rtransfer-encoding: chunked", b"transfer-encoding chunked",
        b"transfer-encoding:\nchunked", b": transfer-encoding: chunked", b"\x00transfer-encoding: chunked",
    ):  # fmt: skip
        yield refused(f"{line!r}, by chunks", post(line, body=CHUNKS) + EVIL)
        yield refused(f"{line!r}, by length", post(line, LENGTH) + EVIL)
    yield refused("TE twice", post(CHUNKED, CHUNKED, body=CHUNKS) + EVIL)
    yield refused("TE twice, one of them none", post(CHUNKED, b"transfer-encoding: x", body=CHUNKS) + EVIL)
    yield refused("TE twice, identity first", post(b"transfer-encoding: identity", CHUNKED, body=CHUNKS) + EVIL)
    yield either("TE folded", post(b"transfer-encoding:\r\n chunked", body=CHUNKS) + EVIL)
    yield either("TE folded by a tab", post(b"transfer-encoding:\r\n\tchunked", body=CHUNKS) + EVIL)
    yield either("TE folded in the value before", post(b"x: y\r\n transfer-encoding: chunked", LENGTH))
    yield either("TE behind a leading space", post(LENGTH, first=CHAT + b"\r\n transfer-encoding: chunked"))
    yield taken("another name", post(b"transfer_encoding: chunked", LENGTH))
    yield either("HTTP/1.0 with TE", post(CHUNKED, body=CHUNKS, first=CHAT[:-1] + b"0") + EVIL)
    yield either("HTTP/1.0 with TE and CL", post(CHUNKED, LENGTH, body=CHUNKS, first=CHAT[:-1] + b"0") + EVIL)
    keep = (CHUNKED, b"connection: keep-alive")
    yield either("HTTP/1.0 with TE, kept alive", post(*keep, body=CHUNKS, first=CHAT[:-1] + b"0") + EVIL)


def lengths() -> Iterator[Input]:
    """Yield variants of Content-Length."""
    for value in (
        b"+13", b"-13", b"-1", b"0x0d", b"0xd", b"1 3", b"13 13", b"13a", b"a13", b"13.0", b"1e1", b"", b" ",
        b"1_3",
        b"13;x", b"13\x0b", b"13\x00", b"\x0013", b"13\r", "\u0661\u0663".encode(), "\uff11\uff13".encode(),
        b'"13"',
        b"13,", b"13, ", b",13", b"13, 14", b"14, 13", b"18446744073709551629", b"9223372036854775821", b"9" * 400,
        b"4294967309", b"-18446744073709551603", b"NaN", b"infinity", b"13 ;", b"0b1101",
    ):  # fmt: skip
        yield refused(f"CL: {value[:24]!r}", post(b"content-length: " + value) + EVIL)
    for value in (b"13, 13", b"13,13", b"0013", b"0" * 30 + b"13"):
        yield either(f"CL: {value!r}", post(b"content-length: " + value) + END)
    for value in (b"13", b"\t13", b"  13  ", b"13\t"):
        yield taken(f"CL:{value!r}", post(b"content-length:" + value))
    for line in (
        b"content-length : 13", b"content-length\t: 13", b"content length: 13", b"content-length\x00: 13",
        b"content-length",
        b"content-length 13", b"x: y\ncontent-length: 13", b"content-length\r\n: 13", b"content-length:\n13",
    ):  # fmt: skip
        yield refused(f"{line!r}", post(line) + EVIL)
    for first, second in (
        (b"13", b"0"),
        (b"0", b"13"),
        (b"13", b"14"),
        (b"13", b"013"),
        (b"13", b"+13"),
        (b"13", b"x"),
    ):
        lines = (b"content-length: " + first, b"Content-Length: " + second)
        yield refused(f"CL twice: {first!r}, {second!r}", post(*lines) + EVIL)
    yield refused("CL twice, far apart", post(LENGTH, *[b"x: y"] * 20, b"content-length: 0") + EVIL)
    yield either("CL twice the same", post(LENGTH, LENGTH) + END)
    yield either("CL folded", post(b"content-length:\r\n 13") + END)
    yield either("CL folded into two digits", post(b"content-length: 1\r\n 3") + END)
    yield taken("another name", post(b"content_length: 0", LENGTH))
    too_long = post(b"content-length: %d" % (LIMIT + 1), body=EVIL)
    yield Input("over the limit, with a request as its body", too_long, ((),), 413)
    yield Input("far over the limit", post(b"content-length: 9007199254740993", body=EVIL), ((),), 413)


def heads() -> Iterator[Input]:
    """Yield variants of other header lines and of line ends."""
    for line in (
        b"x\x00: y", b"x\x01: y", b"x\x7f: y", b"x\x80: y", b"x y: z", b"x : y", b"x(y): z", b"x\t: y", b"x",
        b": y",
        b" : y", b"@: y", b"x/y: z", b'"x": y', b"x[1]: y", b"x{: y", b"x,: y", b"x;: y", b"x=: y", b"x?: y",
        b"x\\: y",
        b"x: a\x00b", b"x: a\rb", b"x: a\nb", b"x: a\r", b"x: a\n", b"x\r: y", b"x\n: y",
    ):  # fmt: skip
        yield refused(f"{line!r}", post(line, LENGTH) + EVIL)
        yield refused(f"{line!r}, last", post(LENGTH, line) + EVIL)
    for value in (b"a\x01b", b"a\x08b", b"a\x1bb", b"a\x7fb", b"\x0b", b"\x0c"):
        yield either(f"x: {value!r}", post(b"x: " + value, LENGTH) + END)
    for value in (b"", b"a\tb", b"\xff\xfe", b"\xc3\xa4", b"a" * 500, b":::", b'"'):
        yield taken(f"x: {value[:8]!r}", post(b"x: " + value, LENGTH))
    yield either("folded", post(b"x: a\r\n b", LENGTH) + END)
    yield either("folded, with a request in it", post(b"x: a\r\n " + EVIL.replace(b"\r\n", b"\r\n "), LENGTH) + END)
    yield refused("a bare CR hides a length", post(b"x: a\rcontent-length: 0", LENGTH) + EVIL)
    yield refused("a bare CR ends the head", post(LENGTH + b"\r\r").replace(b"\r\r\r\n\r\n", b"\r\r\n") + EVIL)
    yield refused("a bare LF hides a length", post(b"x: a\ncontent-length: 0", LENGTH) + EVIL)
    yield refused("a bare LF ends the head", post(LENGTH, b"x: a\n\n" + EVIL) + END)
    yield refused("a bare LF behind the first line", post(LENGTH).replace(b"\r\n", b"\n", 1) + EVIL)
    yield refused("CR CR LF", post(LENGTH).replace(b"\r\n", b"\r\r\n", 2) + EVIL)
    yield either("LF alone everywhere", post(LENGTH, body=b"").replace(b"\r\n", b"\n") + GOOD + END)
    yield refused("two hosts", post(b"host: y", LENGTH) + EVIL)
    yield refused("the same host twice", post(b"host: x", LENGTH) + EVIL)
    # RFC 9112 section 3.2 would have 400; nothing here is decided by the host, and old clients leave it out.
    yield taken("no host", post(LENGTH, host=b""))
    for host in (b"a b", b"a/b", b"a@b", b"a\\b", b"a?b", b"a#b", b"a:b:c", b"a:x", b"[::1", b"<a>", b"a\tb"):
        yield refused(f"host: {host!r}", post(LENGTH, host=b"host: " + host) + EVIL)
    for host in (b"a", b"a,b;c=d", b"a:1", b"[::1]:80", b"127.0.0.1"):
        yield taken(f"host: {host!r}", post(LENGTH, host=b"host: " + host))


def first_lines() -> Iterator[Input]:
    """Yield variants of the request line."""
    for line in (
        b"POST\t/v1/chat/completions\tHTTP/1.1",
        b"POST /v1/chat/completions HTTP/1.1 ", b"POST /v1/chat/completions HTTP/1.1\t",
        b" POST /v1/chat/completions HTTP/1.1",
        b"POST /v1/chat/completions HTTP/1.1 HTTP/1.1", b"POST /v1/chat/completions\x0bHTTP/1.1",
        b"POST /v1/chat/completions",
        b"POST /v1/chat/completions ", b"POST HTTP/1.1", b"/v1/chat/completions HTTP/1.1",
        b"POST v1/chat/completions HTTP/1.1",
        b"POST /v1/chat/completions HTTP/0.9", b"POST /v1/chat/completions HTTP/2.0",
        b"POST /v1/chat/completions HTTP/1.2",
        b"POST /v1/chat/completions HTTP/1.10", b"POST /v1/chat/completions HTTP/01.1",
        b"POST /v1/chat/completions HTTP/1",
        b"POST /v1/chat/completions http/1.1", b"POST /v1/chat/completions HTTP/1.1\x00",
        b"POST /v1/chat/completions HTTP /1.1",
        b"POST /v1/chat/completions HTTP/-1.1", b"POST /v1/chat/completions HTTP/1,1",
        b"POST /v1/chat/completions XTTP/1.1",
        b"POST /v1/chat/completions ICE/1.0",  # RTSP/1.0 cannot be told from HTTP/1.0 by the parser, and is read as it
        b"SOURCE /v1/chat/completions ICE/1.0",
        b"P\x00ST /v1/chat/completions HTTP/1.1", b"PO(ST /v1/chat/completions HTTP/1.1",
        b"POST; /v1/chat/completions HTTP/1.1",
        b"PO\xd6ST /v1/chat/completions HTTP/1.1", b"POST: /v1/chat/completions HTTP/1.1",
        b"POST /v1/chat/completions\x00 HTTP/1.1", b"POST /v1/chat/completions\x01 HTTP/1.1",
        b"POST /v1/chat/completions\x7f HTTP/1.1",
        b"POST /v1/chat/completions x HTTP/1.1", b"POST /v1/chat/completions?a b HTTP/1.1",
        b"POST /v1/chat/completions\r HTTP/1.1",
        b"POST /v1/chat/completions?\x00 HTTP/1.1", b"POST x:80 HTTP/1.1", b"POST \\v1\\chat HTTP/1.1",
        b"PRI * HTTP/2.0", b"CONNECT x:80 HTTP/1.1", b"CONNECT /v1/chat/completions HTTP/1.1", b"HTTP/1.1 200 OK",
        b"X" * 9000 + b" /v1/chat/completions HTTP/1.1", b"POSTPOST / HTTP/1.1",
    ):  # fmt: skip
        yield Input(f"{line[:70]!r}", post(LENGTH, first=line) + EVIL, ((),))


def targets() -> Iterator[Input]:
    """Yield variants of the request target, and request lines that may be read."""
    for target in (
        b"/v1/chat/completions%0d%0ax:%20y",
        b"//v1/chat/completions",
        b"/v1/chat/completions/",
        b"/v1//chat/completions",
    ):
        yield unseen(f"{target!r}", post(LENGTH, first=b"POST " + target + b" HTTP/1.1"), 404)
    for target in (b"http://x/v1/chat/completions", b"http://other:80/v1/chat/completions?a=b"):
        yield either(f"{target!r}", post(LENGTH, first=b"POST " + target + b" HTTP/1.1") + END)
    for target in (
        b"/v1/chat%2fcompletions",
        b"/v1/%63hat/completions",
        b"/v1/./chat/completions",
        b"/x/../v1/chat/completions",
    ):
        yield either(f"{target!r}", post(LENGTH, first=b"POST " + target + b" HTTP/1.1") + END)
    for target in (b"/v1/chat/completions?a=%0d%0ax:%20y", b"/v1/chat/completions?", b"/v1/chat/completions?a=b&c"):
        yield taken(f"{target!r}", post(LENGTH, first=b"POST " + target + b" HTTP/1.1"))
    for line in (
        b"POST  /v1/chat/completions HTTP/1.1",
        b"POST /v1/chat/completions  HTTP/1.1",
        b"\rPOST /v1/chat/completions HTTP/1.1",
    ):
        yield either(f"{line!r}", post(LENGTH, first=line) + END)  # a recipient may read these so (section 3)
    for line in (b"POST * HTTP/1.1", b"post /v1/chat/completions HTTP/1.1", b"X-Y /v1/chat/completions HTTP/1.1"):
        yield either(f"{line!r}", post(LENGTH, first=line) + EVIL + END, EVIL_BODY)  # a request, but none for an engine
    yield either("a fragment", post(LENGTH, first=b"POST /v1/chat/completions#f HTTP/1.1") + END)
    yield either("a raw letter of Latin-1", post(LENGTH, first=b"POST /v1/chat/completions?\xe4 HTTP/1.1") + END)
    yield taken("empty lines before", b"\r\n\r\n" + post(LENGTH))
    yield taken("HTTP/1.0", post(LENGTH, first=CHAT[:-1] + b"0"))
    yield Input("HTTP/0.9", b"GET /v1/models\r\n" + EVIL, ((),))
    yield Input("HTTP/0.9 with LF", b"GET /v1/models\n" + EVIL, ((),))


def chunk_framing() -> Iterator[Input]:
    """Yield variants of chunks, their sizes, extensions and ends."""
    rest = GOOD + b"\r\n0\r\n\r\n"
    for size in (
        b"0xd", b"0Xd", b"xd", b"dx", b"+d", b"-d", b"d_", b"_d", b"0_d", b" d", b"\td", b"d d", b"d\t0", b"",
        b"g", b"dg",
        b"d,", b"d.0", b"0d\x00", b"\x00d", b"d\x0b", "\uff44".encode(), b"-1", b"-0", b"1000000000000000d",
        b"1000000000000000000000000d", b"fffffffffffffffd", b"8000000000000000", b"7fffffffffffffff", b"f" * 300,
        b"10000000d",
        b"d\n", b"d\r", b"d\r\r", b"d;a\nb", b"d;a\rb", b"d;\x00", b"d;a=\n", b"d;a=\x01", b'd;a="\n"', b"d\n;a",
    ):  # fmt: skip
        yield refused(f"size {size[:20]!r}", post(CHUNKED, body=size + b"\r\n" + rest) + EVIL)
    yield refused("size ended by LF", post(CHUNKED, body=b"d\n" + rest) + EVIL)
    yield refused("size ended by CR", post(CHUNKED, body=b"d\r" + rest) + EVIL)
    yield refused("extension ended by LF", post(CHUNKED, body=b"d;a\n" + rest) + EVIL)
    for size in (b"d;a", b"d;a=b", b'd;a="b;c"', b"d;a=b;c=d", b"D", b"0d", b"000d"):
        yield taken(f"size {size!r}", post(CHUNKED, body=size + b"\r\n" + rest))
    for size in (
        b"d ",
        b"d;",
        b"d ;a",
        b"d; a",
        b"d;a = b",
        b"0" * 40 + b"d",
        b'd;a="\\""',
        b"d;" + b"a" * 3000,
        b"d;=",
        b"d;a=\xff",
    ):
        yield either(f"size {size[:20]!r}", post(CHUNKED, body=size + b"\r\n" + rest) + END)


def chunk_ends() -> Iterator[Input]:
    """Yield variants of what follows a chunk's data: its end, the last chunk, trailers."""
    rest = GOOD + b"\r\n0\r\n\r\n"
    for ends in (b"", b"\n", b"\r", b"XX", b"\r\r\n", b"\n\r", b" \r\n", b"0\r\n"):
        yield refused(f"data ended by {ends!r}", post(CHUNKED, body=b"d\r\n" + GOOD + ends + b"0\r\n\r\n") + EVIL)
    yield refused("more data than the size", post(CHUNKED, body=b"c\r\n" + rest) + EVIL)
    yield refused("less data than the size", post(CHUNKED, body=b"f\r\n" + rest) + EVIL)
    for last in (b"0", b"00", b"0;a=b", b"0" * 20):
        yield either(f"last chunk {last!r}", post(CHUNKED, body=b"d\r\n" + GOOD + b"\r\n" + last + b"\r\n\r\n") + END)
    for last in (b"0\n\n", b"0\r\n\n", b"0\r\r", b"0\r\n\r\r\n", b"0\n\r\n", b"-0\r\n\r\n", b"0x0\r\n\r\n", b"0\r\nX"):
        yield refused(f"the end {last!r}", post(CHUNKED, body=b"d\r\n" + GOOD + b"\r\n" + last) + EVIL)
    yield refused("a request instead of trailers", post(CHUNKED, body=b"d\r\n" + GOOD + b"\r\n0\r\n") + EVIL)
    for line in (b"x: y", b"content-length: 0", b"content-length: 500", b"transfer-encoding: chunked",
        b"host: evil",
                 b"authorization: evil", b"x-prefiller-host-port: evil:1", b"connection: close",
                 b"expect: 100-continue"):  # fmt: skip
        data = post(CHUNKED, body=b"d\r\n" + GOOD + b"\r\n0\r\n" + line + b"\r\n\r\n")
        yield either(f"trailer {line!r}", data + END)
    for line in (
        b"x",
        b": y",
        b"x : y",
        b"x: a\nb",
        b"x: a\x00b",
        b"x\x00: y",
        b"x: a\n\n" + EVIL,
        b"x: y\r" + EVIL,
        b"x y: z",
    ):
        data = post(CHUNKED, body=b"d\r\n" + GOOD + b"\r\n0\r\n" + line + b"\r\n\r\n")
        yield refused(f"trailer {line[:10]!r}", data + EVIL)


def hidden() -> Iterator[Input]:
    """Yield second requests: some lie in a body, some come by the book."""
    text = (
        b'{"model":"m","messages":[{"role":"user","content":"\\r\\n\\r\\nPOST /v1/completions HTTP/1.1\\r\\n\\r\\n"}]}'
    )
    sized = b"content-length: %d" % len(EVIL)
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(EVIL), EVIL)
    yield taken("a request in a string", post(b"content-length: %d" % len(text), body=text), text)
    yield unseen("a request as the body", post(sized, body=EVIL), 400)
    yield unseen("a request as a chunk", post(CHUNKED, body=chunked), 400)
    for method, target, status in (
        (b"GET", b"/healthz", 200), (b"GET", b"/v1/models", 200), (b"GET", b"/metrics", 200), (b"GET", b"/nope", 404),
        (b"POST", b"/nope", 404), (b"GET", b"/v1/chat/completions", 405), (b"PUT", b"/v1/chat/completions", 405),
        (b"DELETE", b"/v1/models", 405), (b"OPTIONS", b"/v1/chat/completions", 405), (b"POST", b"/healthz", 405),
    ):  # fmt: skip
        first = b"%b %b HTTP/1.1" % (method, target)
        yield unseen(f"{first!r}, a request as its body", post(sized, first=first, body=EVIL), status)
        yield unseen(f"{first!r}, a request as its chunk", post(CHUNKED, first=first, body=chunked), status)
    for line in (
        b"expect: 100-continue",
        b"connection: upgrade\r\nupgrade: websocket",
        b"connection: upgrade\r\nupgrade: h2c",
    ):
        yield unseen(f"{line!r}, a request as the body", post(line, sized, body=EVIL), 400)
    yield either("expect: something else", post(b"expect: cake", LENGTH) + END)
    yield taken("connection: content-length", post(b"connection: content-length", LENGTH))
    yield taken("connection: host, x-request-id", post(b"connection: host, x-request-id, content-type", LENGTH))
    yield taken("two by the book", post(LENGTH) + EVIL, GOOD, EVIL_BODY)
    yield taken("two by the book, in chunks", post(CHUNKED, body=CHUNKS) + EVIL, GOOD, EVIL_BODY)
    yield Input("close, and a request behind", post(b"connection: close", LENGTH) + EVIL, ((GOOD,),), 200)
    yield Input("close in a list", post(b"connection: x, close", LENGTH) + EVIL, ((GOOD,),), 200)
    yield Input("HTTP/1.0, and a request behind", post(LENGTH, first=CHAT[:-1] + b"0") + EVIL, ((GOOD,),), 200)
    yield refused("a malformed one first", post(b"x y: z", LENGTH) + EVIL)
    yield Input("a malformed one behind", post(LENGTH) + post(b"x y: z", LENGTH) + EVIL, ((GOOD,),))


_ALL = (encodings, lengths, heads, first_lines, targets, chunk_framing, chunk_ends, hidden)
TABLES = {table.__name__: list(table()) for table in _ALL}
