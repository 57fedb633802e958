"""How long a newcomer waits: from the start of `scripts/run` in a new clone to the end of a streamed chat completion.

The wheels are fetched before the clock starts, into a folder that pip is pointed at, so the network does not count; the
virtual environment, the installation, the engines and the gateway do. `python -m benchmarks.first_answer`.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_S = 90.0
_READY = re.compile(r"behind (http://\S+);")
_BODY = {"model": "simulated", "stream": True, "max_tokens": 16, "messages": [{"role": "user", "content": "Hello?"}]}


def main() -> int:
    """Measure once, print the seconds, return 0 if they are within the limit."""
    parser = argparse.ArgumentParser(prog="scripts/bench first-answer", description=__doc__)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheels, clone = Path(folder, "wheels"), Path(folder, "clone")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)  # noqa: S607 - git from the PATH
        fetch = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--dest",
            str(wheels),
            str(clone),
            "setuptools>=65",
        ]
        subprocess.run(fetch, check=True)
        environment = {**os.environ, "PIP_FIND_LINKS": str(wheels), "PIP_NO_INDEX": "1", "PIP_NO_CACHE_DIR": "1"}
        seconds = _first_answer(clone, environment)
    print(f"{seconds:.1f} s from the start of scripts/run to the end of a streamed answer (limit {LIMIT_S:.0f} s)")
    return 0 if seconds <= LIMIT_S else 1


def _first_answer(clone: Path, environment: dict[str, str]) -> float:
    begun_s = time.monotonic()
    command = [str(clone / "scripts/run"), "--listen", "127.0.0.1:0"]
    environment["TWOHOP_ADMIN__LISTEN"] = "null"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as run:
        try:
            return _ask(_address(run)) - begun_s
        finally:
            run.send_signal(signal.SIGINT)


def _address(run: "subprocess.Popen[str]") -> str:
    said = []
    for line in run.stdout or ():
        said.append(line)
        found = _READY.search(line)
        if found is not None:
            return found[1]
    raise RuntimeError("scripts/run ended before it was ready:\n" + "".join(said))


def _ask(url: str) -> float:
    """Return the time at which the answer was complete."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(_BODY).encode(), headers)  # noqa: S310 - our own
    with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:  # noqa: S310 - our own
        body = reply.read()
    if not body.endswith(b"data: [DONE]\n\n"):
        raise RuntimeError(f"no whole stream came back: {body[-200:]!r}")
    return time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
