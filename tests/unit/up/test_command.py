"""`twohop up` turns its flags into engines, refuses what cannot work, and says what to try."""

import argparse
import json
import shlex
import socket

import pytest

from gateway.cli import main
from gateway.commands import up
from gateway.up.processes import UpError


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    return parser.parse_args(flags)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ("", ["prefill-0", "prefill-1", "decode-0", "decode-1"]),
        ("--engine vllm-cpu", ["prefill-0", "decode-0"]),
        ("--prefill 1", ["prefill-0", "decode-0", "decode-1"]),
        ("--both 2", ["both-0", "both-1"]),
        ("--both 1 --prefill 1", ["prefill-0", "both-0"]),
        ("--both 0 --prefill 1 --decode 1", ["prefill-0", "decode-0"]),
        ("--prefill 0 --decode 1", ["decode-0"]),
    ],
)
def test_flags_name_the_engines(flags: str, names: list[str]) -> None:
    engines = up.plan(parsed(*flags.split()))
    assert [name for name, _ in engines] == names
    assert all(name.startswith(role) for name, role in engines)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--prefill 2 --decode 0", "no engine can decode; ask for one with --decode 1"),
        ("--engine vllm-cpu --speed 2", "--speed is for simulated engines"),
        ("--speed 0", "--speed must be over 0"),
    ],
)
def test_what_cannot_work_is_refused(flags: str, message: str) -> None:
    with pytest.raises(UpError, match=message):
        up.plan(parsed(*flags.split()))


@pytest.mark.parametrize("count", ["-1", "two", "1.5"])
def test_a_count_is_a_whole_number(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--both", count)
    assert "is no whole number of engines" in capsys.readouterr().err


def test_a_taken_port_is_told_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status = main(["up", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"])
    assert status == 2
    assert "end what listens there or give another with --listen" in capsys.readouterr().out


def test_a_taken_admin_port_is_told_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("TWOHOP_ADMIN__LISTEN", f"127.0.0.1:{taken.getsockname()[1]}")
        assert main(["up", "--listen", "127.0.0.1:0"]) == 2
    assert "set TWOHOP_ADMIN__LISTEN to another HOST:PORT, or to null" in capsys.readouterr().out


def test_the_invitation_holds_a_command_line_that_a_shell_understands() -> None:
    text = up.invitation({"prefill": 2, "decode": 1}, "tiny", "0.0.0.0:80", "127.0.0.1:8001")
    command = shlex.split(text.splitlines()[1])
    assert command[:3] == ["curl", "-N", "http://127.0.0.1:80/v1/chat/completions"]
    assert json.loads(command[-1])["model"] == "tiny"
    assert "2 prefill, 1 decode" in text
    assert "http://127.0.0.1:8001/admin/endpoints" in text
    assert "admin API: off" in up.invitation({"both": 1}, "tiny", "127.0.0.1:80", None)
