"""What the configuration's models are made of: checked kinds of values, and the section that they stand in."""

import ipaddress
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError


def refuse(message: str) -> NoReturn:
    """Refuse the value that is being checked; `message` says what is wrong with it."""
    raise PydanticCustomError("twohop", "{message}", {"message": message})


def _not_available(value: object) -> None:
    if value is not None:
        refuse("is not available in this version: leave it out")


def off_is_a_word(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


def split_address(text: str) -> tuple[str, int]:
    """Return host (without brackets) and port of `host:port` or `[ipv6]:port`; raise ValueError where it is neither."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(text)
    if bracketed:
        ipaddress.IPv6Address(host)
    elif any(char in host for char in ":[]/@ "):
        raise ValueError(text)
    return host, int(port)


def _address(value: str) -> str:
    try:
        split_address(value)
    except ValueError:
        refuse(f"{value!r} is not host:port (an IPv6 host stands in brackets)")
    return value


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


Unavailable = Annotated[None, BeforeValidator(_not_available)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
SecondsOrOff = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
Switch = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(min_length=1)]
Address = Annotated[str, AfterValidator(_address)]


class Section(BaseModel):
    """A part of the configuration: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _empty_section(cls, data: Any) -> Any:
        """A section whose keys are all commented out reads as null: the defaults hold."""
        return {} if data is None else data
