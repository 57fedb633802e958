"""scripts/run tells how to mend a machine on which it cannot make the environment."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
TOOLS = ("sh", "dirname", "cksum", "cat", "mkdir", "rm")
TOO_OLD = '[ "$1" = --version ] && echo Python 3.9.2; exit 1'
NO_ENSUREPIP = """case "$*" in
*venv*) mkdir -p .venv/bin; echo "No module named ensurepip"; exit 1 ;;
*--version*) echo Python 3.12.1 ;;
esac"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with nothing but its scripts, and a folder of tools for the PATH."""
    folder = tmp_path / "a project"
    (folder / "tools").mkdir(parents=True)
    (folder / "scripts").mkdir()
    (folder / "pyproject.toml").touch()
    for name in ("run", "lib.sh"):
        shutil.copy(SCRIPTS / name, folder / "scripts")
    for tool in TOOLS:
        (folder / "tools" / tool).symlink_to(shutil.which(tool) or tool)
    return folder


def run_with(project: Path, python3: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/run with a python3 that does this."""
    (project / "tools" / "python3").write_text(f"#!/bin/sh\n{python3}\n")
    (project / "tools" / "python3").chmod(0o755)
    path = {"PATH": str(project / "tools")}
    return subprocess.run([project / "scripts" / "run"], env=path, capture_output=True, text=True, check=False)


def test_an_old_python_is_told_with_the_fix(project: Path) -> None:
    ended = run_with(project, TOO_OLD)
    assert ended.returncode == 1
    assert "Python 3.11 or newer is needed and none is on the PATH (python3 is: Python 3.9.2)" in ended.stderr
    assert "apt install python3 python3-venv" in ended.stderr


def test_a_python_without_ensurepip_is_told_with_the_fix_and_leaves_nothing(project: Path) -> None:
    ended = run_with(project, NO_ENSUREPIP)
    assert ended.returncode == 1
    assert "cannot make a virtual environment" in ended.stderr
    assert "apt install python3-venv" in ended.stderr
    assert not (project / ".venv").exists()
