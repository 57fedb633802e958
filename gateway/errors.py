"""Every error a request can meet, blame first.

GatewayError
├── CallerError            the request is at fault
│   ├── InvalidRequest         400 invalid_request
│   ├── InvalidApiKey          401 invalid_api_key
│   ├── ModelForbidden         403 model_forbidden
│   ├── ModelNotFound          404 model_not_found
│   ├── EndpointUnknown        404 endpoint_not_found  admin API
│   ├── EndpointExists         409 endpoint_exists     admin API
│   └── BodyTooLarge           413 body_too_large
├── CapacityError          nobody is at fault, there is no room now
│   ├── QueueFull              429 queue_full          Retry-After
│   ├── NoEndpoint             503 no_endpoint         Retry-After
│   └── ShuttingDown           503 shutting_down       Retry-After
├── EngineError            an engine is at fault
│   ├── UpstreamFailed         502 upstream_failed
│   │   └── EngineStuck            the same; it makes no progress, and nothing of its answer has come
│   └── UpstreamTimeout        504 upstream_timeout
├── ClientGone             499, counted and logged, never answered, never held against an endpoint
└── ConfigError            the configuration is at fault; raised at start, and at a reload, which is then refused

An engine's own 4xx is no error here: it passes through unchanged.
"""

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from gateway.wire import anthropic

Style = Literal["openai", "anthropic"]
"""How an error looks: OpenAI's shape, or one that Anthropic's clients read as well."""

_NAMES_SHOWN = 20
_NAME_CHARS = 100


def cut(name: str) -> str:
    """Return a name that a client has chosen, short enough to be shown and kept."""
    return name if len(name) <= _NAME_CHARS else name[:_NAME_CHARS] + "…"


def error_body(status: int, message: str, kind: str, param: str | None, code: str, style: Style) -> bytes:
    """Return an error's JSON: OpenAI's shape, whose `type` is `kind`, or its superset with Anthropic's type."""
    if style == "anthropic":
        kind = anthropic.error_type(status)
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"type": "error", "error": error} if style == "anthropic" else {"error": error})


class GatewayError(Exception):
    """Any error of ours; the class carries status, OpenAI error type and code, the instance the message."""

    status = 500
    type = "internal_error"
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def retry_after(self) -> str | None:
        """The value of the answer's `retry-after`, whole seconds; None where there is no such header."""
        return None if self.retry_after_s is None else str(math.ceil(self.retry_after_s))

    def body(self, style: Style = "openai") -> bytes:
        """Return the answer's JSON."""
        return error_body(self.status, self.message, self.type, self.param, self.code, style)

    def event(self, style: Style = "openai") -> bytes:
        """Return the server-sent event that ends a stream which had begun."""
        return (b"event: error\ndata: " if style == "anthropic" else b"data: ") + self.body(style) + b"\n\n"


class CallerError(GatewayError):
    """The request is at fault; sending it again unchanged will not help."""

    status, type, code = 400, "invalid_request_error", "invalid_request"


class InvalidRequest(CallerError):
    """The body is not JSON, or lacks a field, or a field has the wrong type."""


class InvalidApiKey(CallerError):
    """The API key is missing or unknown."""

    status, type, code = 401, "authentication_error", "invalid_api_key"


class ModelForbidden(CallerError):
    """The API key may not use this model."""

    status, type, code = 403, "permission_error", "model_forbidden"


class ModelNotFound(CallerError):
    """No endpoint serves this model, now or before."""

    status, type, code = 404, "not_found_error", "model_not_found"

    def __init__(self, model: str, served: Iterable[str]) -> None:
        names = sorted(served)
        shown = ", ".join(names[:_NAMES_SHOWN]) or "nothing at this moment"
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        super().__init__(f"no endpoint serves the model {cut(model)!r}; served: {shown}{more}", param="model")


class EndpointUnknown(CallerError):
    """An admin verb names an endpoint that is not there."""

    status, type, code = 404, "not_found_error", "endpoint_not_found"


class EndpointExists(CallerError):
    """The name of a new endpoint is taken."""

    status, type, code = 409, "invalid_request_error", "endpoint_exists"


class BodyTooLarge(CallerError):
    """The body is over `limits.body_bytes`."""

    status, type, code = 413, "invalid_request_error", "body_too_large"


class CapacityError(GatewayError):
    """There is no room now; the same request may pass later."""

    status, type, code = 503, "server_error", "no_endpoint"


class QueueFull(CapacityError):
    """The queue is full, or the wait for a turn was too long."""

    status, type, code = 429, "rate_limit_error", "queue_full"


class NoEndpoint(CapacityError):
    """No endpoint became ready in time."""


class ShuttingDown(CapacityError):
    """This gateway is stopping."""

    status, type, code = 503, "server_error", "shutting_down"


class EngineError(GatewayError):
    """An engine failed to answer; another may do better before the first byte has gone to the client."""

    status, type, code = 502, "server_error", "upstream_failed"


class UpstreamFailed(EngineError):
    """An engine refused the connection, broke it, or answered what is no answer."""


class EngineStuck(UpstreamFailed):
    """An engine was found to make no progress while a request waited for the first byte of its answer."""


class UpstreamTimeout(EngineError):
    """An engine did not answer in time."""

    status, type, code = 504, "server_error", "upstream_timeout"


class ClientGone(Exception):
    """The client closed its connection; nothing is left to answer."""


class ConfigError(Exception):
    """The configuration cannot be used; the message names file, line, field and the nearest valid name."""
