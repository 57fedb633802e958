"""What worker processes and their broker say to each other: msgpack in frames with a length in front, on one socket.

Invariant: neither side ever waits for the other, and what one has not read yet is bounded.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec

from gateway.observability.snapshot import Snapshot

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 16 << 20
MAX_UNREAD_BYTES = 32 << 20


class Frame(msgspec.Struct, tag=True, array_like=True):
    """One message. `number` is the asker's own of its question; bytes are msgpack that the broker only passes on."""


class Joined(Frame, tag="joined"):
    """A worker serves from here on; the broker answers with the orders that hold, then `Welcome`."""


class Welcome(Frame, tag="welcome"):
    """Every order that holds has been told."""


class Told(Frame, tag="told"):
    """A worker's changes since its last one; what is None has not changed. `in_flight` and `counted` are whole."""

    in_flight: dict[str, int] | None = None
    prompts: bytes | None = None
    counted: Snapshot | None = None


class Heard(Frame, tag="heard"):
    """What other workers told: the sum of their leases, or one worker's `Prompts`."""

    in_flight: dict[str, int] | None = None
    prompts: bytes | None = None


class Ask(Frame, tag="ask"):
    """A worker's question to all workers, itself included."""

    number: int
    question: str
    argument: Any
    timeout_s: float


class Asked(Frame, tag="asked"):
    """A question, passed on; `ticket` is the broker's."""

    ticket: int
    question: str
    argument: Any


class Answer(Frame, tag="answer"):
    """A worker's answer; None where it has none."""

    ticket: int
    answer: bytes | None


class Answers(Frame, tag="answers"):
    """All answers to a worker's question by worker, and which workers gave none in time."""

    number: int
    answers: dict[int, bytes]
    missing: list[int]


class Scrape(Frame, tag="scrape"):
    """A worker wants what all have counted."""

    number: int


class Totals(Frame, tag="totals"):
    """What all have counted, and which workers' last known figures stand for their present ones."""

    number: int
    counted: Snapshot
    missing: list[int]


class Order(Frame, tag="order"):
    """To the broker: have all obey. From it: obey; `number` is the sender's, 0 for the others and for a replay."""

    number: int
    key: str
    order: dict[str, Any]
    turn: int = 0


class Obeyed(Frame, tag="obeyed"):
    """The sender of an order has obeyed it, so it holds for those that join later."""

    key: str
    order: dict[str, Any]
    turn: int


Prompts = list[tuple[str, list[int]]]
ToBroker = Joined | Told | Ask | Answer | Scrape | Order | Obeyed
FromBroker = Welcome | Heard | Asked | Answers | Totals | Order

encode = msgspec.msgpack.encode


class Link(asyncio.Protocol):
    """One side of the socket: `on_frame` gets each frame's bytes, `on_lost` is called once, when it is over."""

    def __init__(self, on_frame: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        self._on_frame, self._on_lost = on_frame, on_lost
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket's transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand on every frame that is whole."""
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        while size - start >= LENGTH_BYTES:
            length = int.from_bytes(buffer[start : start + LENGTH_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                self.abort()
                return
            end = start + LENGTH_BYTES + length
            if end > size:
                break
            self._on_frame(bytes(buffer[start + LENGTH_BYTES : end]))
            start = end
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as asyncio calls it
        """Tell that it is over, whatever ended it."""
        self._transport = None
        self._on_lost()

    @property
    def open(self) -> bool:
        """Whether frames can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unread_bytes(self) -> int:
        """Bytes that the other side has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, frame: Frame) -> bool:
        """Send a frame and return True; False where it is too long, or the link is over.

        A side that has `MAX_UNREAD_BYTES` to read and does not loses the link.
        """
        return self.send_encoded(encode(frame))

    def send_encoded(self, payload: bytes) -> bool:
        """Send a frame that is encoded already, as `send` does."""
        if self._transport is None or not self.open or len(payload) > MAX_FRAME_BYTES:
            return False
        if self.unread_bytes > MAX_UNREAD_BYTES:
            self.abort()
            return False
        self._transport.write(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)
        return True

    def close(self) -> None:
        """End it once all is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it now."""
        if self._transport is not None:
            self._transport.abort()
