"""An engine's Prometheus text to the few figures that routing needs, by line prefix; pure.

Invariant: a sample is taken whole or refused whole: truncated text, NaN, negative or unreadable figures of a family
that is read, and text without any such family, raise `BadSample`; a family that is absent is unknown (None).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gateway.engines.vllm import (
    ADAPTER_LABELS,
    ADAPTER_SLOTS_LABEL,
    ADAPTERS,
    BLOCK_SIZE_LABEL,
    CACHE_CONFIG,
    FAMILIES,
    NAMESPACE,
    NUM_BLOCKS_LABEL,
    Family,
)


class BadSample(Exception):
    """The text is no sample to believe; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Load:
    """One engine's figures, summed over its data-parallel ranks; None where the engine does not tell.

    `waiting` and `running` are requests, `kv_usage` the mean share of KV blocks in use (0 to 1), `prefix_queries` and
    `prefix_hits` tokens since the process began, `block_tokens` tokens a block, `num_blocks` blocks a rank,
    `process_started_s` seconds since the epoch. `adapters` are the names of the LoRA adapters that requests run with or
    wait for, `adapter_slots` how many may run at a time.
    """

    waiting: float | None = None
    running: float | None = None
    kv_usage: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    block_tokens: int | None = None
    num_blocks: int | None = None
    process_started_s: float | None = None
    adapters: tuple[str, ...] | None = None
    adapter_slots: int | None = None

    def restarted_since(self, before: "Load") -> bool:
        """Whether another process told `before`: it began at another time, or its counters were higher."""
        if None not in (self.process_started_s, before.process_started_s):
            return self.process_started_s != before.process_started_s
        return _fell(before.prefix_queries, self.prefix_queries) or _fell(before.prefix_hits, self.prefix_hits)

    def describe(self) -> dict[str, Any]:
        """Return the figures by name, JSON types."""
        return asdict(self)


def _fell(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and now < before


_NAMES = (*FAMILIES, CACHE_CONFIG, ADAPTERS)
_OWN = "|".join(re.escape(name.removeprefix(NAMESPACE)) for name in _NAMES if name.startswith(NAMESPACE))
_OTHER = "|".join(re.escape(name) for name in _NAMES if not name.startswith(NAMESPACE))
_LABELLED = frozenset({CACHE_CONFIG, ADAPTERS})
# A literal newline in front and the namespace once make this seven times as fast as `^` with whole names.
_INTERESTING = re.compile(rf"\n({NAMESPACE}(?:{_OWN})|{_OTHER})(?=[{{ \t])([^\n]*)".encode())
# A number can be read in one way alone, so that a long line of digits costs no more than its length.
_VALUE = re.compile(rb"\s*([+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+|(?i:nan|inf(?:inity)?)))(?:\s+-?\d+)?\s*")
LINE_BYTES = 65536
_LABEL = re.compile(rb'(?:\{|,)\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


def parse(text: bytes) -> Load:
    """Return the figures in `text`, a whole Prometheus exposition; raise `BadSample` where it cannot be believed."""
    if not text.endswith(b"\n"):
        raise BadSample("the text ends in the middle of a line" if text else "the text is empty")
    values: dict[Family, list[float]] = {}
    config: Mapping[str, int | None] = {}
    adapters: tuple[float, bytes] | None = None
    for match in _INTERESTING.finditer(b"\n" + text):
        name, rest = match[1].decode(), match[2]
        if name in _LABELLED and len(rest) > LINE_BYTES:  # the loop stands still while labels are searched for
            raise BadSample(f"a line of {name} is over {LINE_BYTES} bytes")
        if name == CACHE_CONFIG:
            config = config or _cache_config(rest)
        elif name == ADAPTERS:
            told_s = _value(name, rest)
            if adapters is None or told_s >= adapters[0]:
                adapters = (told_s, rest)
        else:
            values.setdefault(FAMILIES[name], []).append(_value(name, rest))
    if not any(family.figure != "process_started_s" for family in values):
        raise BadSample("no figure of an engine is in the text")
    names, slots = _adapters(adapters[1]) if adapters is not None else (None, None)
    return Load(
        **_join(values),
        block_tokens=config.get(BLOCK_SIZE_LABEL),
        num_blocks=config.get(NUM_BLOCKS_LABEL),
        adapters=names,
        adapter_slots=slots,
    )


def _value(name: str, rest: bytes) -> float:
    """Return the value in `rest`, what stands behind a family's name: labels, value and perhaps a timestamp."""
    _, _, tail = rest.rpartition(b"}")
    match = _VALUE.fullmatch(tail)
    if match is None:
        raise BadSample(f"{name} has no readable value")
    value = float(match[1])
    if not math.isfinite(value) or value < 0:
        raise BadSample(f"{name} is {value}")
    return value


def _join(values: Mapping[Family, list[float]]) -> dict[str, float | None]:
    """Join the series of each family, and keep the newest family of each figure."""
    figures: dict[str, float | None] = {}
    for family in sorted(values, key=lambda one: one.age, reverse=True):
        series = values[family]
        if family.how == "max":
            figures[family.figure] = max(series)
        else:
            figures[family.figure] = sum(series) / (len(series) if family.how == "mean" else 1)
    kv_usage = figures.get("kv_usage")
    if kv_usage is not None and kv_usage > 1:
        raise BadSample(f"the KV usage is {kv_usage}")
    return figures


def _cache_config(rest: bytes) -> dict[str, int | None]:
    """Return block size and number of blocks from the labels; None for what is no number (yet)."""
    labels = {name.decode(): value for name, value in _LABEL.findall(rest)}
    return {name: _count(labels.get(name, b"")) for name in (BLOCK_SIZE_LABEL, NUM_BLOCKS_LABEL)}


def _adapters(rest: bytes) -> tuple[tuple[str, ...], int | None]:
    """Return the names of the adapters that run or wait, and how many may run, from the labels of the newest series."""
    labels = {name.decode(): value for name, value in _LABEL.findall(rest)}
    listed = b",".join([labels.get(label, b"") for label in ADAPTER_LABELS]).decode("utf-8", "replace")
    names = dict.fromkeys(name.strip() for name in _ESCAPED.sub(_unescaped, listed).split(","))
    return tuple(name for name in names if name), _count(labels.get(ADAPTER_SLOTS_LABEL, b""))


_ESCAPED = re.compile(r"\\(.)")


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _count(text: bytes) -> int | None:
    """Return a positive number of at most 18 digits; int() refuses thousands of them."""
    return int(text) or None if text.isdigit() and len(text) <= 18 else None
