"""Start simulated engines: this package's own `engine` command, in seconds and with nothing to install."""

from collections.abc import Sequence

from gateway.up.processes import Child, Children, Program
from gateway.up.running import RunningEngine

MODEL = "simulated"
COMMAND = ("engine", "--listen", "127.0.0.1:0")
READY_LINE = r"listening on (http://\S+)"
START_S = 60.0


def start_engines(children: Children, engines: Sequence[tuple[str, str]], speed: float | None) -> list[RunningEngine]:
    """Start one engine per (name, role), wait until all listen, and return them; raises as `Children.wait_ready`."""
    faster = [] if speed is None else ["--speed", str(speed)]
    started = [
        children.start(name, Program("gateway", [*COMMAND, "--role", role, "--model", MODEL, *faster]))
        for name, role in engines
    ]
    return [
        RunningEngine(name=name, role=role, url=_listening(children, child), model=MODEL, child=child)
        for (name, role), child in zip(engines, started, strict=True)
    ]


def _listening(children: Children, child: Child) -> str:
    return children.wait_ready(child, lambda: child.find(READY_LINE), START_S)
