"""What a client may take of the gateway, and the errors of one that takes more."""

from typing import NamedTuple

from gateway.errors import BodyTooLarge, InvalidRequest

BODY_BYTES_PER_S = 1024.0  # a client that sends its body more slowly than this holds a request for nothing


class Bounds(NamedTuple):
    """Bytes of a head and a body; seconds for a head, between two looks at a body's progress, and without a request."""

    head_bytes: int = 65536
    body_bytes: int = 33_554_432
    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 75.0

    def too_large(self) -> BodyTooLarge:
        """Return the error of a body that is too long."""
        return BodyTooLarge(f"the body is over {self.body_bytes} bytes (limits.body_bytes)")

    def head_too_large(self) -> InvalidRequest:
        """Return the error of a head, or of trailers, that are too long."""
        return InvalidRequest(f"the request head is over {self.head_bytes} bytes (limits.header_bytes)")

    def head_late(self) -> InvalidRequest:
        """Return the error of a head that is not whole in time."""
        return InvalidRequest(f"the request head did not come within {self.head_s:g} s (timeouts.header_s)")

    def body_late(self) -> InvalidRequest:
        """Return the error of a body that comes too slowly."""
        rate = f"{BODY_BYTES_PER_S:g} bytes a second"
        return InvalidRequest(f"less than {rate} of the request body came in {self.body_s:g} s (timeouts.body_s)")
