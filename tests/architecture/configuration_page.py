"""Makes docs/reference/configuration.md from the models in gateway/config.py."""

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import yaml
from annotated_types import Ge, Gt
from pydantic.fields import FieldInfo

from gateway.config import Config, EndpointConfig
from gateway.config_types import Section

OPENING = """\
YAML, given with `twohop serve --config FILE`. Unknown keys and keys given twice are errors; `twohop check-config FILE`
tells all of them at once, then those of plugin names. Every key is also an environment variable: `TWOHOP_` and the
path in capitals joined by `__`, such as `TWOHOP_ROUTING__RECEIPT_HEADERS=true`; its value is YAML, but a text is taken
as it is. The environment goes over the file, and flags go over both. A variable for one scorer leaves the other
scorers as they are.
"""


def configuration_page(made: str = "") -> str:
    """Return the page; `made` goes below its title."""
    parts = ["# Configuration\n", *([made] if made else []), OPENING]
    for title, section, prefix in sections():
        parts.append(f"## {title}\n\n{section.__doc__}\n")
        parts.append("\n".join(["| key | default | meaning |", "|---|---|---|", *rows(section, prefix)]) + "\n")
    return "\n".join(parts)


def sections() -> Iterator[tuple[str, type[Section], str]]:
    """Yield title, model and path prefix of every section, in the order of the file."""
    yield "Top level", Config, ""
    for name, field in Config.model_fields.items():
        if section := section_of(field):
            yield f"`{name}`", section, f"{name}."
            if name == "discovery":
                yield "One of `discovery.static.endpoints`", EndpointConfig, ""


def rows(section: type[Section], prefix: str) -> Iterator[str]:
    """Yield a table row for each key; a section inside a section is written out, one at the top has its own table."""
    for name, field in section.model_fields.items():
        if inner := section_of(field):
            if prefix:
                yield from rows(inner, f"{prefix}{name}.")
        else:
            default = "" if field.is_required() else f"`{shown(field.default)}`"
            yield f"| `{prefix}{name}` | {default} | {field.description}{bounds(field)} |"


def section_of(field: FieldInfo) -> type[Section] | None:
    """Return the model of a field that is a section of its own."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def bounds(field: FieldInfo) -> str:
    """Return what the value must be, as the end of a sentence."""
    if get_origin(field.annotation) is Literal:
        return f" ({', '.join(get_args(field.annotation))})"
    limits = [f"above {one.gt}" for one in field.metadata if isinstance(one, Gt)]
    limits += [f"at least {one.ge}" for one in field.metadata if isinstance(one, Ge)]
    return f" ({', '.join(limits)})" if limits else ""


def shown(value: Any) -> str:
    """Return a default as YAML on one line."""
    if isinstance(value, dict):
        value = {name: getattr(one, "weight", one) for name, one in value.items()}
    if isinstance(value, str):
        return value or "host:port"
    text = yaml.safe_dump(json.loads(json.dumps(value)), default_flow_style=True, width=200, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
