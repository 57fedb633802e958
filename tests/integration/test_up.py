"""`twohop up`, whole: simulated engines and the gateway start, answer, and end together."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

pytestmark = pytest.mark.slow  # each case starts engines and a gateway as processes

COMMAND = [sys.executable, "-m", "gateway", "up", "--prefill", "1", "--decode", "1", "--listen", "127.0.0.1:0"]
ADMIN = "TWOHOP_ADMIN__LISTEN"


@contextmanager
def running() -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run the command until it says that it is ready; yield its process and what it said so far."""
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = []
        try:
            for line in process.stdout:
                said.append(line)
                if line.startswith("Ctrl-C ends"):
                    break
            assert process.poll() is None, "".join(said)
            yield process, said
        finally:
            process.kill()


def url_in(said: list[str]) -> str:
    """Return the gateway's URL."""
    found = re.search(r"^ready: .* behind (\S+);", "".join(said), re.MULTILINE)
    assert found, said
    return found.group(1)


@pytest.fixture(autouse=True)
def any_admin_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADMIN, "127.0.0.1:0")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_streams_an_answer_and_ends_when_asked_to(number: signal.Signals) -> None:
    with running() as (process, said):
        body = {
            "model": "simulated",
            "stream": True,
            "max_tokens": 5,
            "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        }
        answer = httpx.post(f"{url_in(said)}/v1/chat/completions", json=body, timeout=30)
        assert answer.status_code == 200
        assert answer.text.rstrip().endswith("data: [DONE]")
        process.send_signal(number)
        assert process.stdout is not None
        rest = process.stdout.read()
        assert process.wait(30) == 0
        assert f"stopped by {number.name}, ending everything" in rest


@pytest.mark.parametrize("name", ["prefill-0", "decode-0", "gateway"])
def test_the_death_of_any_of_them_ends_all(name: str) -> None:
    with running() as (process, said):
        url = url_in(said)
        os.kill(pid_of(name, said), signal.SIGKILL)
        assert process.stdout is not None
        rest = process.stdout.read()
        assert process.wait(30) == 1
        assert f"{name} was ended by SIGKILL" in rest
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/readyz", timeout=5)


def pid_of(name: str, said: list[str]) -> int:
    """Return the process id that the command told for one of its processes."""
    found = re.search(rf"^started {name} \(pid (\d+)\)", "".join(said), re.MULTILINE)
    assert found, said
    return int(found.group(1))
