"""Where the configuration comes from: file, then environment, then flags, each over the one before; and its errors.

Every value remembers its origin (file and line, variable, flag), so that all that is wrong is told at once, each on a
line of its own: origin, dotted field, what is wrong, and the nearest valid name.
"""

import difflib
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config import DEFAULT_SCORERS, Config, EndpointConfig
from gateway.errors import ConfigError

PREFIX = "TWOHOP_"
# Not configuration: the repository's own scripts and tests, and what Kubernetes sets for a Service of our name.
_FOREIGN = re.compile(
    r"TWOHOP_(TEST_.*|VLLM_VENV|(.*_)?SERVICE_(HOST|PORT(_.*)?)|(.*_)?PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_NULLS = ("", "null", "~")
_BROKEN = object()

Path_ = tuple[str | int, ...]
PluginCheck = Callable[[Config], Iterable[tuple[Path_, str]]]


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says of the configuration; `endpoints` as `URL[,role=R][,name=N]`, replacing the file's."""

    listen: str | None = None
    endpoints: Sequence[str] = ()
    log_level: str | None = None
    workers: int | None = None


@dataclass(slots=True)
class _Draft:
    """The values so far, the origin of each path, and what is wrong."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path_, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def origin(self, path: Path_) -> str:
        """Return the origin of the longest known part of `path`."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return "configuration"

    def complain(self, path: Path_, message: str, origin: str | None = None) -> None:
        """Note that the value at `path` is wrong."""
        dotted = dotted_path(path)
        self.problems.append(f"{origin or self.origin(path)}: {dotted}{': ' if dotted else ''}{message}")

    def put(self, path: Path_, value: object, origin: str) -> None:
        """Set the value at `path`, over what was there; a mapping on the way is kept."""
        section = self.data
        for step in path[:-1]:
            section = section.setdefault(str(step), {})
            if not isinstance(section, dict):
                self.complain(path, "stands below a value that is no mapping: give that one whole, as YAML", origin)
                return
        for known in [one for one in self.origins if one[: len(path)] == path]:
            del self.origins[known]
        section[str(path[-1])] = value
        self.origins[path] = origin


def process_environment() -> Mapping[str, str]:
    """Return the environment of this process; the one place that reads it."""
    return os.environ


def dotted_path(path: Path_) -> str:
    """Return `path` as people write it: `discovery.static.endpoints[0].url`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the name most like `name`, or at all of them where none is like it."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(names)}"


def load(
    path: Path | None,
    environ: Mapping[str, str],
    flags: Flags | None = None,
    check_plugins: PluginCheck | None = None,
) -> Config:
    """Return the configuration of file, environment and flags; raise ConfigError that tells all that is wrong.

    `check_plugins` returns (path, what is wrong) of each name or parameter that no plugin has.
    """
    draft = _Draft()
    if path is not None:
        _read_file(draft, path)
    _read_environment(draft, environ)
    _read_flags(draft, flags or Flags())
    config = _validate(draft)
    if config is not None:
        for where, message in check_plugins(config) if check_plugins else ():
            draft.complain(where, message)
        if not config.discovery.static.endpoints and not draft.problems:
            draft.complain(
                ("discovery", "static", "endpoints"),
                "no engine is named: add --endpoint http://HOST:PORT, or list engines here",
            )
    if draft.problems or config is None:
        raise ConfigError("\n".join(draft.problems))
    return config


def read_endpoint(given: object) -> tuple[EndpointConfig | None, list[str]]:
    """Return the endpoint of a mapping as in `discovery.static.endpoints`; or None, and all that is wrong with it."""
    draft = _Draft()
    try:
        return EndpointConfig.model_validate(given), []
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            draft.complain(detail["loc"], _wording(detail, EndpointConfig), "endpoint")
    told = "\n".join(draft.problems).encode("utf-8", "backslashreplace").decode()  # JSON may hold what is no text
    return None, [problem.removeprefix("endpoint: ") for problem in told.split("\n")]


def _read_file(draft: _Draft, path: Path) -> None:
    draft.origins[()] = str(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        draft.complain((), f"cannot be read: {error.strerror}")
        return
    value = _read_yaml(draft, text, lambda node: f"{path}:{node.start_mark.line + 1}", ())
    if isinstance(value, dict):
        draft.data = value
    elif value not in (None, _BROKEN):
        draft.complain((), "holds no mapping of keys to values")


def _read_yaml(draft: _Draft, text: bytes | str, origin: Callable[[yaml.Node], str], path: Path_) -> object:
    """Return the value of a YAML text, noting origins below `path`; `_BROKEN` where it is no YAML."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        return None if node is None else _Reader(draft, loader, origin).read(node, path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = origin(yaml.ScalarNode("", "", start_mark=mark)) if mark else draft.origin(path)
        draft.complain(path, f"is no valid YAML: {error.problem}", where)
    except (yaml.YAMLError, ValueError) as error:
        draft.complain(path, f"is no valid YAML: {' '.join(str(error).split())}")
    return _BROKEN


@dataclass(frozen=True, slots=True)
class _Reader:
    """Walks YAML nodes to plain values, and complains of duplicate keys."""

    draft: _Draft
    loader: yaml.SafeLoader
    origin: Callable[[yaml.Node], str]
    open: set[int] = field(default_factory=set)

    def read(self, node: yaml.Node, path: Path_) -> object:
        """Return the node's value; keys are taken as written."""
        self.draft.origins.setdefault(path, self.origin(node))
        if id(node) in self.open:
            raise yaml.constructor.ConstructorError(None, None, "a value holds itself", node.start_mark)
        self.open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            value: object = self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            value = [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        else:
            value = self.loader.construct_object(node)
        self.open.discard(id(node))
        return value

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, object]:
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is no text", key_node.start_mark)
            key, where = key_node.value, self.origin(key_node)
            below = (*path, key)
            if key in values:
                self.draft.complain(below, f"is there twice, first at {self.draft.origins[below]}", where)
                continue
            self.draft.origins[below] = where
            values[key] = self.read(value_node, below)
        return values


def _read_environment(draft: _Draft, environ: Mapping[str, str]) -> None:
    for name in sorted(environ):
        if not name.startswith(PREFIX) or _FOREIGN.fullmatch(name):
            continue
        path: Path_ = tuple(name[len(PREFIX) :].lower().split("__"))
        origin, text = f"environment {name}", environ[name]
        if _holds_text(path):
            value: object = None if text in _NULLS else text
        else:
            draft.origins[path] = origin
            value = _read_yaml(draft, text, partial(_same, origin), path)
        if path[:2] == ("routing", "scorers") and len(path) > 2:
            _start_from_default_scorers(draft)
        if value is not _BROKEN:
            draft.put(path, value, origin)


def _same(origin: str, _: yaml.Node) -> str:
    return origin


def _start_from_default_scorers(draft: _Draft) -> None:
    """One scorer's variable changes that one; the others keep the weights they would have had."""
    routing = draft.data.setdefault("routing", {})
    if isinstance(routing, dict):
        routing.setdefault("scorers", dict(DEFAULT_SCORERS))


def _read_flags(draft: _Draft, flags: Flags) -> None:
    if flags.listen is not None:
        draft.put(("listen",), flags.listen, "--listen")
    if flags.log_level is not None:
        draft.put(("log_level",), flags.log_level, "--log-level")
    if flags.workers is not None:
        draft.put(("workers",), flags.workers, "--workers")
    if flags.endpoints:
        at: Path_ = ("discovery", "static", "endpoints")
        draft.put(at, [_endpoint_flag(draft, text) for text in flags.endpoints], "--endpoint")


def _endpoint_flag(draft: _Draft, text: str) -> dict[str, str]:
    url, *options = text.split(",")
    endpoint = {"url": url}
    for option in options:
        key, equals, value = option.partition("=")
        if key not in ("role", "name") or not equals:
            draft.complain((), f"{text!r}: {option!r} is neither role=R nor name=N", "--endpoint")
        else:
            endpoint[key] = value
    return endpoint


def _validate(draft: _Draft) -> Config | None:
    try:
        return Config.model_validate(draft.data)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            draft.complain(detail["loc"], _wording(detail))
        return None


def _wording(detail: ErrorDetails, root: type[BaseModel] = Config) -> str:
    """Return one of pydantic's findings about a `root` in our words."""
    kind, path, limits = detail["type"], detail["loc"], detail.get("ctx", {})
    given = "what is given" if path[-1:] == ("token",) else repr(detail["input"])
    if kind == "extra_forbidden":
        return f"unknown key; {nearest(str(path[-1]), _names_at(path[:-1], root))}"
    if kind == "literal_error":
        words = re.findall(r"'([^']*)'", limits["expected"])
        return f"{given} is not one of {', '.join(words)}; {nearest(str(detail['input']), words)}"
    if kind == "missing":
        return "is missing"
    if kind == "twohop":
        return str(limits["message"])
    if kind == "model_type":
        return f"must be a mapping of keys to values, not {given}"
    return f"{detail['msg'].replace('Input should', 'must', 1)}, not {given}"


def _names_at(path: Path_, root: type[BaseModel]) -> Iterable[str]:
    """Return the keys that the section at `path` below a `root` knows."""
    kind = _kind_at(path, root)
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else ()


def _holds_text(path: Path_) -> bool:
    """Whether the value at `path` is a text (or null), so that a variable's value is taken as it is."""
    return _kind_at(path) is str


def _kind_at(path: Path_, root: type[BaseModel] = Config) -> Any:
    """Return the type that the models give the value at `path`, without null and constraints; None if unknown."""
    kind: Any = root
    for step in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            known = kind.model_fields.get(str(step))
            kind = _bare(known.annotation) if known else None
        else:
            items = [one for one in get_args(kind) if one is not Ellipsis]
            kind = _bare(items[-1]) if items else None
    return kind


def _bare(kind: Any) -> Any:
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        rest = [one for one in get_args(kind) if one is not type(None)]
        return _bare(rest[0]) if len(rest) == 1 else None
    return kind
