"""Importing does nothing: no thread, socket, process, file, environment change, log handler or output."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import COMMANDS
from tests.architecture.source import ROOT, modules

# Run by path, never imported.
SCRIPTS = {
    "gateway.up.vllm_launch": "runs in vLLM's own environment; changes NIXL when loaded, which `spawn` does again",
}
SCRIPT = Path(__file__).with_name("import_all.py")


def import_all(*names: str, folder: Path = ROOT) -> dict[str, str]:
    """Import `names` in a fresh interpreter, in `folder`; return what happened beside."""
    command = [sys.executable, "-B", "-W", "error", str(SCRIPT), *names]
    environment = {"PYTHONPATH": str(folder), "PATH": ""}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    seen: dict[str, str] = json.loads(ended.stdout)  # anything that an import printed breaks the JSON
    return seen


def test_importing_every_module_does_nothing():
    names = [module.name for module in modules() if module.name not in SCRIPTS]
    assert import_all(*names) == {}


@pytest.mark.parametrize(
    ("line", "seen_as"),
    [
        ("import socket; socket.socket().close()", "socket.__new__"),
        ("import os; os.environ['X'] = 'y'", "environment"),
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "threads"),
        ("open('left_behind', 'w').close()", "open for writing"),
        ("import logging; logging.basicConfig()", "log handlers"),
        ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", "signal handlers"),
    ],
)
def test_an_import_that_does_something_is_seen(tmp_path: Path, line: str, seen_as: str):
    (tmp_path / "busy.py").write_text(line)
    assert seen_as in import_all("busy", folder=tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_module(command: str):
    module = importlib.import_module("gateway.commands." + command.replace("-", "_"))
    assert callable(module.add_arguments)
    assert callable(module.run)


def test_every_command_module_is_a_command():
    files = {module.name.rpartition(".")[2] for module in modules("gateway/commands")} - {"commands"}
    assert files == {command.replace("-", "_") for command in COMMANDS}
