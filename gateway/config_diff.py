"""What differs between two configurations, key by key, and which of it has to wait for a restart.

Invariant: no secret (a field that is kept out of its section's own text) is in anything this returns.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from gateway.config import Config, EndpointConfig
from gateway.config_types import Section

# Read once, when sockets are opened or connected first, and processes started.
_TLS = ("ca_file", "cert_file", "key_file", "server_name", "verify")
FIXED = frozenset({"listen", "admin.listen", "workers", *(f"upstream_tls.{key}" for key in _TLS)})
_ABSENT = object()
_S = TypeVar("_S", bound=Section)
_SECRET = "(not shown)"  # noqa: S105 - stands in a secret's place


class Change(NamedTuple):
    """One key that differs: its dotted path, both values as JSON (None: not there), and whether the old one stays."""

    path: str
    old: str | None
    new: str | None
    needs_restart: bool = False

    def line(self) -> str:
        """Return it as one line of a log."""
        if self.old is None:
            said = f"added: {self.new}"
        elif self.new is None:
            said = f"removed: {self.old}"
        else:
            said = f"{self.old} → {self.new}"
        return f"{self.path}: {said}{' (needs a restart; the old value stays)' if self.needs_restart else ''}"


def changes(old: Config, new: Config) -> list[Change]:
    """Return what differs, in the order of the configuration; endpoints are compared by name."""
    stay = _stay(old, new)
    return [change._replace(needs_restart=change.path in stay) for change in _compare(old, new, "")]


def applicable(old: Config, new: Config) -> Config:
    """Return `new` with the values of `old` where a change needs a restart."""
    for path in _stay(old, new):
        new = _with(new, path.split("."), old)
    return new


def _stay(old: Config, new: Config) -> frozenset[str]:
    """Return the paths whose old value stays: a listener that stays keeps the token and the kind of TLS it has."""
    stay = FIXED if old.admin.listen == new.admin.listen else FIXED | {"admin.token"}
    if (old.tls.cert_file is None) is not (new.tls.cert_file is None):  # a listener speaks TLS from its start, or not
        stay |= {"tls.cert_file", "tls.key_file", "tls.ca_file"}
    elif (old.tls.ca_file is None) is not (new.tls.ca_file is None):
        stay |= {"tls.ca_file"}
    return stay


def _with(section: _S, path: list[str], source: _S) -> _S:
    name, *below = path
    value = getattr(source, name)
    return section.model_copy(update={name: _with(getattr(section, name), below, value) if below else value})


def _compare(old: Any, new: Any, path: str) -> Iterator[Change]:
    if old == new:
        return
    olds, news = _parts(old), _parts(new)
    if olds is None or news is None:
        yield Change(path, _shown(old), _shown(new))
        return
    for key in dict.fromkeys((*olds, *news)):
        where = f"{path}{key}" if path else key.lstrip(".")
        if _is_secret(old, key) and olds[key] != news[key]:
            yield Change(where, _SECRET, _SECRET)
        else:
            yield from _compare(olds.get(key, _ABSENT), news.get(key, _ABSENT), where)


def _parts(value: Any) -> Mapping[str, Any] | None:
    """Return what a value is made of, by how its path goes on; None where it is compared as a whole."""
    if isinstance(value, Section):
        return {f".{name}": getattr(value, name) for name in (*type(value).model_fields, *(value.model_extra or ()))}
    if isinstance(value, Mapping):
        return {f".{key}": one for key, one in value.items()}
    if isinstance(value, tuple) and all(isinstance(one, EndpointConfig) for one in value):
        return {f"[{one.name}]": one for one in value}
    return None


def _is_secret(section: Any, key: str) -> bool:
    field = type(section).model_fields.get(key[1:]) if isinstance(section, Section) else None
    return field is not None and not field.repr


def _shown(value: Any) -> str | None:
    return None if value is _ABSENT else json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a value for JSON: of a section what is not as by default, without its secrets."""
    if isinstance(value, Section):
        return dict(_told(value))
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value


def _told(section: Section) -> Iterator[tuple[str, Any]]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if value != field.default:
            yield name, _plain(value) if field.repr else _SECRET
    for name, value in (section.model_extra or {}).items():
        yield name, _plain(value)
