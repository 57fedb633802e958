"""Errors in both shapes: one status, one message, the type that each kind of client knows."""

import json

import pytest

from gateway.errors import (
    BodyTooLarge,
    GatewayError,
    InvalidRequest,
    NoEndpoint,
    QueueFull,
    UpstreamFailed,
    UpstreamTimeout,
)
from gateway.wire.anthropic import error_type

KINDS = [
    (InvalidRequest, "invalid_request_error"),
    (BodyTooLarge, "request_too_large"),
    (QueueFull, "rate_limit_error"),
    (NoEndpoint, "overloaded_error"),
    (UpstreamFailed, "api_error"),
    (UpstreamTimeout, "timeout_error"),
    (GatewayError, "api_error"),
]


@pytest.mark.parametrize(("kind", "told"), KINDS)
def test_messages_errors_are_a_superset_with_anthropics_types(kind, told):
    error = kind("why", param="p")
    plain, both = json.loads(error.body()), json.loads(error.body("anthropic"))
    assert set(plain) == {"error"}
    assert both["type"] == "error"
    assert both["error"] == {**plain["error"], "type": told}


def test_an_event_carries_the_body():
    error = UpstreamFailed("why")
    assert error.event() == b"data: " + error.body() + b"\n\n"
    assert error.event("anthropic") == b"event: error\ndata: " + error.body("anthropic") + b"\n\n"


def test_a_status_that_is_not_listed_is_the_callers_or_ours():
    assert [error_type(status) for status in (405, 418, 500, 502)] == ["invalid_request_error"] * 2 + ["api_error"] * 2
