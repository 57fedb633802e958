"""Faults that a simulated engine can be told to have, as a table of names and a small grammar.

A fault is `NAME[=VALUE][:SHARE]`: SHARE (0 to 1, default 1) of the requests it could touch have it, drawn by a rule
from the engine's seed, so that a run can be repeated.
"""

from collections.abc import Iterable, Mapping

from gateway.simulator.tokens import seed_of

FAULTS: Mapping[str, str] = {
    "error": "answer inference requests with this status (=503)",
    "prefill-error": "answer prefill legs (do_remote_decode) with this status (=500)",
    "decode-error": "answer decode legs (do_remote_prefill) with this status (=500)",
    "hang": "take inference requests and never answer",
    "slow-start": "wait so many seconds before an answer begins (=1)",
    "reset": "cut the connection before an answer begins",
    "reset-mid-stream": "cut the connection after so many chunks (=3)",
    "truncate": "end a stream early, without its last chunks, after so many chunks (=3)",
    "broken-json": "answer with half of a JSON body",
    "prefill-no-params": "answer prefill legs without kv_transfer_params",
    "pull-refused": "refuse to let other engines read KV blocks",
    "metrics-error": "answer /metrics with this status (=500)",
    "metrics-slow": "answer /metrics after so many seconds (=1)",
    "metrics-missing": "leave this family out of /metrics (=vllm:num_requests_waiting)",
    "health-error": "answer /health with this status (=503)",
}


class Faults:
    """The faults of one engine; they may be changed while it runs."""

    def __init__(self, specs: Iterable[str] = (), seed: int = 0) -> None:
        self._seed = seed
        self._asked = 0
        self._faults: dict[str, tuple[str, float]] = {}
        for spec in specs:
            self.add(spec)

    def add(self, spec: str) -> None:
        """Take one more fault. Raises ValueError on an unknown name, or a value or share that is no number."""
        rest, colon, share = spec.rpartition(":")
        if not colon or rest == "metrics-missing=vllm":
            rest, share = spec, "1"
        name, _, value = rest.partition("=")
        if name not in FAULTS:
            raise ValueError(f"unknown fault {name!r}; known are {', '.join(FAULTS)}")
        value = value or FAULTS[name].partition("(=")[2].rstrip(")")
        if name != "metrics-missing" and value:
            float(value)
        if not 0 <= float(share) <= 1:
            raise ValueError(f"the share of {name} must be from 0 to 1, got {share}")
        self._faults[name] = (value, float(share))

    def clear(self, name: str) -> None:
        """Drop the fault `name` if there is one."""
        self._faults.pop(name, None)

    def value(self, name: str) -> str | None:
        """Return the value of fault `name` if it strikes now, else None."""
        fault = self._faults.get(name)
        if fault is None:
            return None
        self._asked += 1
        value, share = fault
        if share < 1 and seed_of(self._seed, name, self._asked) % 1_000_000 >= share * 1_000_000:
            return None
        return value

    def number(self, name: str) -> float | None:
        """Return the value of fault `name` as a number if it strikes now, else None."""
        value = self.value(name)
        return None if value is None else float(value or 0)
