"""A reload leaves the parts of a gateway as a start with the new configuration would: no key is forgotten."""

import asyncio
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from gateway.app import Parts, build, reconfigured
from gateway.config import Config
from gateway.config_types import Section
from gateway.pool.spec import EndpointSpec

ROUTING = {
    "scorers": {"queue_depth": {"weight": 5.0, "full_at": 16}},
    "filters": ["healthy"],
    "receipt_headers": True,
    "index_mb": 32,
}
SPEC = EndpointSpec("a", "http://h:1", "h", 1)


def another(section: Section) -> dict[str, Any]:
    """Return a section in which every number, switch and choice is another one."""
    found: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            found[name] = another(value)
        elif get_origin(field.annotation) is Literal:
            found[name] = next(choice for choice in get_args(field.annotation) if choice != value)
        elif isinstance(value, bool):
            found[name] = not value
        elif isinstance(value, int | float):
            found[name] = value / 2 if isinstance(value, float) and value else value + 1
    return found


def figures(part: Any, path: str = "", seen: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Yield path and value of every plain value that hangs on `part`."""
    if isinstance(part, str | bytes | int | float | Enum | type(None)):
        yield path, part
    elif id(part) in seen or path.count(".") > 8:
        return
    elif isinstance(part, dict):
        for key, value in part.items():
            yield from figures(value, f"{path}.{key}", seen | {id(part)})
    elif isinstance(part, list | tuple | set | frozenset):
        yield f"{path}.len", len(part)
        for number, value in enumerate(part):
            yield from figures(value, f"{path}.{number}", seen | {id(part)})
    elif type(part).__module__.startswith(("gateway.", "scorers.")) and not isinstance(part, Config):
        slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in dict.fromkeys([*slots, *getattr(part, "__dict__", ())]):
            if hasattr(part, name):
                yield from figures(getattr(part, name), f"{path}.{name}", seen | {id(part)})


async def test_after_a_reload_every_part_is_as_after_a_start():
    def start(config: Config) -> Parts:
        parts = build(config, asyncio.get_running_loop(), lambda: False)
        parts.pool.add(SPEC)
        return parts

    changed = another(Config()) | {"routing": ROUTING}
    del changed["upstream_tls"]  # its files are read at the first connection, and need a restart
    old, new = Config(), Config.model_validate(changed)
    begun, fresh, again = start(old), dict(figures(start(new))), dict(figures(start(new)))
    reloaded = dict(figures(reconfigured(begun, new)))
    moving = {path for path in fresh if fresh[path] != again[path]}  # the time of the start, and such
    assert {path: reloaded.get(path) for path in fresh if path not in moving} == {
        path: value for path, value in fresh.items() if path not in moving
    }
    assert dict(figures(start(old))) != fresh
    assert len(fresh) > 100
