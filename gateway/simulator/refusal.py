"""An answer of a simulated engine other than 200, as vLLM words it: type, parameter, status."""


class Refusal(Exception):
    """An answer other than 200: HTTP status, message, vLLM's error type, the parameter at fault."""

    def __init__(self, status: int, message: str, type_: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type_
        self.param = param


def malformed(message: str, param: str | None = None) -> Refusal:
    """Return the refusal of a body whose shape is wrong (not JSON, a missing field, a wrong type)."""
    return Refusal(400, message, "Bad Request", param)
