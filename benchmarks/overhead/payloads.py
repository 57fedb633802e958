"""The bytes that client and fake engine agree on, so that every answer can be compared whole.

All prompts are made from one fixed stream of pseudo-random text: every run and every proxy sees the same bytes.
"""

import hashlib
from functools import cache

MODEL = "bench-model"
EVENT_COUNT_LIMIT = 10_000  # an event carries its number in four digits, which keeps all events equally long

PLAIN_ANSWER = (
    b'{"id":"chatcmpl-5f0c2a7e9b814c3d","object":"chat.completion","created":1764547200,"model":"bench-model",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"The answer of the fake engine is the same for '
    b'every request, so that it can be compared byte for byte.","refusal":null,"annotations":null,"audio":null,'
    b'"function_call":null,"tool_calls":[],"reasoning_content":null},"logprobs":null,"finish_reason":"stop",'
    b'"stop_reason":null}],"service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":256,'
    b'"total_tokens":284,"completion_tokens":28,"prompt_tokens_details":null},"prompt_logprobs":null,'
    b'"kv_transfer_params":null}'
)
DONE_EVENT = b"data: [DONE]\n\n"
USAGE_EVENT = (
    b'data: {"id":"chatcmpl-5f0c2a7e9b814c3d","object":"chat.completion.chunk","created":1764547200,'
    b'"model":"bench-model","choices":[],"usage":{"prompt_tokens":256,"total_tokens":284,"completion_tokens":28}}\n\n'
)

_ALPHABET = b"etaoinshrdlucmfwypvbgkqjxz,."
_LETTERS = bytes(ord(" ") if value % 6 == 0 else _ALPHABET[value % len(_ALPHABET)] for value in range(256))
_POOL_BYTES = 1 << 20


@cache
def stream_events(count: int) -> list[bytes]:
    """Return `count` server-sent events of one token each, all of the same length."""
    if not 0 < count <= EVENT_COUNT_LIMIT:
        raise ValueError(f"a stream has 1 to {EVENT_COUNT_LIMIT} events, not {count}")
    return [
        b'data: {"id":"chatcmpl-5f0c2a7e9b814c3d","object":"chat.completion.chunk","created":1764547200,'
        b'"model":"bench-model","choices":[{"index":0,"delta":{"content":" w%04d"},"logprobs":null,'
        b'"finish_reason":null,"token_ids":null}]}\n\n' % number
        for number in range(count)
    ]


@cache
def stream_body(count: int) -> bytes:
    """Return all bytes of a stream of `count` events, the closing one included."""
    return b"".join(stream_events(count)) + DONE_EVENT


def chunk_frame(data: bytes) -> bytes:
    """Return `data` as one chunk of HTTP's chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@cache
def _text_pool() -> bytes:
    letters = hashlib.shake_256(b"twohop overhead benchmark").digest(_POOL_BYTES).translate(_LETTERS)
    return b"\\n".join(letters[start : start + 80] for start in range(0, len(letters), 80))


def _text(offset: int, length: int) -> bytes:
    pool = _text_pool()
    start = offset % (len(pool) - length)
    piece = pool[start : start + length]
    return piece[:-1] + b"." if piece.endswith(b"\\") else piece  # half an escape would break the JSON


def chat_body(number: int, families: int, prompt_bytes: int, *, stream: bool = False) -> bytes:
    """Return the JSON body of chat request `number`.

    Of its `prompt_bytes` of text the first half (the system message) is shared by every request of the same family
    (`number` modulo `families`) and the second half (the user message) is this request's alone.
    """
    family, half = number % families, prompt_bytes // 2
    shared = b"family %04d " % family
    shared += _text(family * 104_729, half - len(shared))
    own = b"request %08d " % number
    own += _text(number * 7_919, half - len(own))
    return (
        b'{"model":"bench-model","messages":[{"role":"system","content":"%b"},{"role":"user","content":"%b"}],'
        b'"temperature":0.0,"max_tokens":64%b}' % (shared, own, b',"stream":true' if stream else b"")
    )


def chat_request(body: bytes) -> bytes:
    """Return the whole HTTP request that carries `body`."""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json\r\n"
        b"user-agent: overhead-bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
