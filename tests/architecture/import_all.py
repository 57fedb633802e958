"""Run as a script with module names: imports them all and prints, as JSON, what that did beyond defining things."""

import importlib
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

ACTIONS = {
    "socket.__new__", "socket.bind", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.fork", "os.exec",
    "os.posix_spawn", "os.putenv", "os.unsetenv", "os.mkdir", "os.remove", "os.rename", "os.kill", "urllib.Request",
}  # fmt: skip
WRITING = set("wax+")


def main(names: list[str]) -> None:
    """Import `names`; print {"what happened": detail} on one line."""
    done: dict[str, str] = {}

    def note(event: str, args: tuple[object, ...]) -> None:
        if event in ACTIONS:
            done[event] = repr(args)
        elif event == "open" and isinstance(args[1], str) and WRITING & set(args[1]):
            done["open for writing"] = repr(args[0])

    before = state()
    sys.addaudithook(note)
    for name in names:
        importlib.import_module(name)
    seen = dict(done)
    seen.update(
        {
            key: f"{old} became {new}"
            for (key, old), new in zip(before.items(), state().values(), strict=True)
            if old != new
        }
    )
    sys.stdout.write(json.dumps(seen))


def state() -> dict[str, str]:
    """Return what an import must leave as it was, as texts to compare."""
    return {
        "environment": repr(sorted(os.environ.items())),
        "threads": repr([thread.name for thread in threading.enumerate()]),
        "signal handlers": repr(
            [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
        ),
        "log handlers": repr(logging.getLogger().handlers),
        "working directory": str(Path.cwd()),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
