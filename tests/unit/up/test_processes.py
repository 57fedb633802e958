"""Child processes live and die together: every case with real, small processes."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from gateway.clock import monotonic_s
from gateway.up.processes import ChildFailed, Children, Program, Stopped, UpError

# Holds the write end of a named pipe, has a child of its own that holds it too, and takes SIGTERM as told.
HOLDER = """
import signal, subprocess, sys
pipe = open(sys.argv[1], "w")
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
waiting = "import signal; print('child waits', flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", waiting], pass_fds=[pipe.fileno()], stdout=subprocess.PIPE)
child.stdout.readline()
print("ready at", child.pid, flush=True)
if sys.argv[2] != "leaves":
    signal.pause()
"""

STARTER = """
import sys
sys.path.insert(0, sys.argv[3])
from gateway.up.processes import Children, Program
children = Children(lambda line: print(line, flush=True))
child = children.start("held", Program(sys.argv[1], [sys.argv[2], "stubborn"]))
children.wait_ready(child, lambda: child.find("(ready)"), 30)
children.watch()
"""


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def children(lines: list[str]) -> Children:
    return Children(lines.append, grace_s=2.0)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "held-open")
    return tmp_path / "held-open"


@pytest.fixture
def holder(tmp_path: Path) -> str:
    return script(tmp_path, "holder", HOLDER)


def script(folder: Path, name: str, source: str) -> str:
    path = folder / f"{name}.py"
    path.write_text(source)
    return str(path)


def test_output_is_relayed_under_the_childs_name_and_a_module_runs_as_main(
    lines: list[str], children: Children
) -> None:
    with children:
        child = children.start("hello", Program("this", []))
        children.wait_done(child, 30)
    assert "hello | Beautiful is better than ugly." in lines


def test_a_quiet_child_shows_nothing(lines: list[str], children: Children) -> None:
    with children:
        children.wait_done(children.start("hello", Program("this", []), quiet=True), 30)
    assert lines == []


def test_a_child_gets_its_arguments_and_variables(tmp_path: Path, lines: list[str], children: Children) -> None:
    source = "import os, sys; print(sys.argv[1:], os.environ['COLOUR'], __name__)"
    with children:
        program = Program(script(tmp_path, "show", source), ["a b", "c"], {"COLOUR": "red"})
        children.wait_done(children.start("show", program), 30)
    assert lines[1:] == ["show | ['a b', 'c'] red __main__"]


@pytest.mark.parametrize("manner", ["gentle", "stubborn"])
def test_the_whole_group_ends(fifo: Path, holder: str, children: Children, manner: str) -> None:
    with children:
        child = children.start("held", Program(holder, [str(fifo), manner]))
        with fifo.open() as held:
            children.wait_ready(child, partial(child.find, "(ready)"), 30)
            children.end()
            assert held.read() == ""
    assert child.status == (-signal.SIGTERM if manner == "gentle" else -signal.SIGKILL)


def test_nothing_is_left_of_a_group_whose_leader_has_left(fifo: Path, holder: str, children: Children) -> None:
    with children:
        child = children.start("held", Program(holder, [str(fifo), "leaves"]))
        with fifo.open() as held:
            assert held.read() == ""
    assert child.status == 0


@pytest.mark.slow
def test_nothing_outlives_a_starter_that_is_killed(tmp_path: Path, fifo: Path, holder: str) -> None:
    starter = script(tmp_path, "starter", STARTER)
    root = str(Path(__file__).parents[3])
    command = [sys.executable, starter, holder, str(fifo), root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            with fifo.open() as held:
                first = [process.stdout.readline() for _ in range(2)]
                process.kill()
                assert held.read() == ""
        finally:
            process.kill()
    assert "held | ready at" in first[1]


def test_a_dead_child_is_told_with_its_last_lines(tmp_path: Path, children: Children) -> None:
    program = Program(script(tmp_path, "failing", "print('the reason'); raise SystemExit(3)"), [])
    with children, pytest.raises(ChildFailed, match=r"(?s)failing ended with exit status 3.*the reason"):
        children.wait_ready(children.start("failing", program), lambda: None, 30)


def test_the_death_of_any_child_ends_the_watch(holder: str, children: Children) -> None:
    with children:
        first, second = (children.start(name, Program(holder, [os.devnull, "gentle"])) for name in ("one", "two"))
        for child in (first, second):
            children.wait_ready(child, partial(child.find, "(ready)"), 30)
        first.signal(signal.SIGKILL)
        with pytest.raises(ChildFailed, match="one was ended by SIGKILL"):
            children.watch()
        assert not second.exited.is_set()
    assert second.exited.is_set()


def test_a_child_that_does_not_get_ready_is_an_error(holder: str, children: Children) -> None:
    with children, pytest.raises(ChildFailed, match=r"slow was not ready after 0 s"):
        children.wait_ready(children.start("slow", Program(holder, [os.devnull, "gentle"])), lambda: None, 0.2)


def test_a_step_that_fails_is_an_error(tmp_path: Path, children: Children) -> None:
    program = Program(script(tmp_path, "step", "import sys; sys.exit('no disk')"), [])
    with children, pytest.raises(ChildFailed, match=r"(?s)exit status 1.*no disk"):
        children.wait_done(children.start("step", program), 30)


def test_a_python_that_is_not_there_is_an_error(children: Children) -> None:
    with children, pytest.raises(UpError, match="engine cannot be started: /nowhere/python: No such file"):
        children.start("engine", Program("this", [], python="/nowhere/python"))


def test_a_signal_ends_the_watch_and_the_old_handler_returns(children: Children) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with children.stopping_on(signal.SIGUSR1), children:
        os.kill(os.getpid(), signal.SIGUSR1)
        with pytest.raises(Stopped, match="stopped by SIGUSR1"):
            children.watch()
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_second_signal_cuts_the_grace_short(fifo: Path, holder: str, lines: list[str]) -> None:
    children = Children(lines.append, grace_s=600.0)
    start_s = monotonic_s()
    with children.stopping_on(signal.SIGUSR1), children:
        child = children.start("held", Program(holder, [str(fifo), "stubborn"]))
        with fifo.open() as held:
            children.wait_ready(child, lambda: child.find("(ready)"), 30)
            os.kill(os.getpid(), signal.SIGUSR1)
            children.end()
            assert held.read() == ""
    assert monotonic_s() - start_s < 60
    assert child.status == -signal.SIGKILL
