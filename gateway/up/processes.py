"""Child processes that live and die together: start, relay their output, wait until ready, end them all.

Every child runs behind `tether.py` as the leader of a process group of its own, so that a Ctrl-C on the terminal
reaches only this process, the children's own children end with them, and none outlives this process, even where it is
killed by SIGKILL.
Invariant: once a child's leader is gone, nothing is left of its group.
"""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self, TypeVar

from gateway.clock import monotonic_s

T = TypeVar("T")

TETHER = Path(__file__).with_name("tether.py")
KEPT_LINES = 200
SHOWN_LINES = 30
POLL_S = 0.1
WATCH_S = 0.5
PROGRESS_S = 10.0


class UpError(Exception):
    """The set-up on this machine cannot be started; the message says how to fix it."""


class ChildFailed(UpError):
    """A child process ended, or was not ready in time; the message holds the last lines that it wrote."""

    def __init__(self, child: "Child", what: str) -> None:
        last = "\n".join(f"    {line}" for line in list(child.tail)[-SHOWN_LINES:]) or "    (it wrote nothing)"
        super().__init__(f"{child.name} {what}; its last lines:\n{last}")
        self.child = child


class Stopped(Exception):
    """Somebody asked this process to end; `signal_number` is how."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


@dataclass(frozen=True, slots=True)
class Program:
    """What a child runs: a module's name or a path ending in .py, with variables added to this process's own."""

    target: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable


class Child:
    """One child process and its process group; `pid` is the id of both."""

    def __init__(self, name: str, program: Program, echo: Callable[[str], None]) -> None:
        self.name = name
        self.tail: deque[str] = deque(maxlen=KEPT_LINES)
        self.exited = threading.Event()
        self._echo = echo
        self._process = subprocess.Popen(  # noqa: S603 - a list of our own making, no shell
            [program.python, "-P", str(TETHER), program.target, *program.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1", **program.environment},
            process_group=0,
        )
        self.pid = self._process.pid
        self._threads = [
            threading.Thread(target=target, name=f"{name}-{target.__name__}", daemon=True)
            for target in (self._relay, self._reap)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def status(self) -> int | None:
        """Exit status as `subprocess` gives it (negative: ended by that signal), None while it runs."""
        return self._process.returncode if self.exited.is_set() else None

    def find(self, pattern: str) -> str | None:
        """Return the first group of `pattern` in the last lines written, None where no line matches."""
        matches = (re.search(pattern, line) for line in tuple(self.tail))
        return next((match.group(1) for match in matches if match), None)

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group, if anything of it is left."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def join(self, timeout_s: float) -> bool:
        """Wait until the process has ended and its output has been relayed; return whether that happened in time."""
        deadline_s = monotonic_s() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - monotonic_s()))
        return not any(thread.is_alive() for thread in self._threads)

    def _relay(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - tells the type checker what PIPE above means
        with self._process.stdout as lines:
            for line in lines:
                text = line.rstrip("\r\n")
                self.tail.append(text)
                self._echo(f"{self.name} | {text}")

    def _reap(self) -> None:
        self._process.wait()
        with suppress(ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
            os.killpg(self.pid, signal.SIGKILL)
        self._threads[0].join(1.0)  # the last words, for the error message
        if self._process.stdin is not None:
            self._process.stdin.close()
        self.exited.set()


class Children:
    """All child processes of one set-up; leaving the `with` block ends them all.

    Args:
        echo: takes each line of output, with the child's name in front, and each progress line.
        grace_s: seconds from SIGTERM to SIGKILL at the end, for all together.
    """

    def __init__(self, echo: Callable[[str], None], grace_s: float = 15.0) -> None:
        self._echo = echo
        self._grace_s = grace_s
        self._children: list[Child] = []
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @contextmanager
    def stopping_on(self, *signals: int) -> Iterator[None]:
        """Turn these signals into `Stopped`, raised by the wait in progress; only from the main thread."""
        before = {number: signal.signal(number, self._note) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def start(self, name: str, program: Program, *, quiet: bool = False) -> Child:
        """Start a child; `quiet` keeps its output for error messages alone."""
        try:
            child = Child(name, program, _say_nothing if quiet else self._echo)
        except OSError as error:
            raise UpError(f"{name} cannot be started: {program.python}: {error.strerror}") from error
        self._children.append(child)
        if not quiet:
            self.say(f"started {name} (pid {child.pid})")
        return child

    def say(self, line: str) -> None:
        """Show a line of progress."""
        self._echo(line)

    def wait_ready(self, child: Child, ready: Callable[[], T | None], timeout_s: float) -> T:
        """Ask `ready` again and again until it answers something else than None, and return that.

        Raises:
            ChildFailed: some child ended meanwhile, or the time is over.
            Stopped: a signal came.
        """
        start_s = monotonic_s()
        next_line_s = start_s + PROGRESS_S
        while (answer := ready()) is None:
            self._pause(POLL_S)
            now_s = monotonic_s()
            if now_s - start_s > timeout_s:
                raise ChildFailed(child, f"was not ready after {timeout_s:.0f} s")
            if now_s >= next_line_s:
                self._echo(f"waiting: {child.name} ({now_s - start_s:.0f} s)")
                next_line_s += PROGRESS_S
        return answer

    def wait_done(self, child: Child, timeout_s: float) -> None:
        """Wait for a child that is meant to end, with exit status 0, and forget it; raises as `wait_ready` does."""
        self._children.remove(child)
        try:
            self.wait_ready(child, lambda: child.exited.is_set() or None, timeout_s)
            if child.status != 0:
                raise ChildFailed(child, _ended(child))
        finally:
            child.signal(signal.SIGKILL)

    def watch(self) -> None:
        """Wait for ever; return only by an exception, as `wait_ready` does."""
        while True:
            self._pause(WATCH_S)

    def end(self) -> None:
        """End every process group: SIGTERM, after the grace or at another signal SIGKILL; return when all are gone."""
        children, self._children = self._children, []
        for child in children:
            child.signal(signal.SIGTERM)
        deadline_s = monotonic_s() + self._grace_s
        while any(not child.exited.is_set() for child in children) and monotonic_s() < deadline_s:
            with suppress(queue.Empty):
                self._signals.get(timeout=POLL_S)
                break
        for child in children:
            child.signal(signal.SIGKILL)
        for child in children:
            child.join(5.0)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.put(number)

    def _pause(self, timeout_s: float) -> None:
        with suppress(queue.Empty):
            raise Stopped(self._signals.get(timeout=timeout_s))
        for child in self._children:
            if child.exited.is_set():
                raise ChildFailed(child, _ended(child))


def _say_nothing(_line: str) -> None:
    """Take the lines of a quiet child."""


def _ended(child: Child) -> str:
    status = child.status or 0
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
