"""The words of Anthropic's error shape, which `/v1/messages` speaks: which type stands for which status.

Source: Anthropic's API reference, "Errors"; what is not listed there is an `api_error`.
"""

API_ERROR = "api_error"

ERROR_TYPES: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_type(status: int) -> str:
    """Return the error type that goes with an HTTP status."""
    if 400 <= status < 500:
        return ERROR_TYPES.get(status, "invalid_request_error")
    return ERROR_TYPES.get(status, API_ERROR)
