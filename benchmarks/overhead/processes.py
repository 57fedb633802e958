"""A process group pinned to one core: start it, read its CPU time and memory, end all of it."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_CPUCLOCK_SCHED = 2  # Linux: the clock id of another process's CPU time is (~pid << 3) | CPUCLOCK_SCHED
_END_WAIT_S = 2.0


class PinnedGroup:
    """A command in a process group of its own, bound to one core with all threads and children that it starts.

    CPU time is the kernel's own account in nanoseconds: user and system, all threads, ended ones included.
    """

    def __init__(self, command: Sequence[str], core: int, log: Path, *, cwd: Path | None = None) -> None:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})  # a child inherits it, so that a runtime that counts cores counts one
        try:
            with log.open("wb") as out:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, start_new_session=True
                )
        finally:
            os.sched_setaffinity(0, before)
        self.pid = self._process.pid
        self.log = log
        self._core = core

    @property
    def running(self) -> bool:
        """Tell whether the command itself still runs."""
        return self._process.poll() is None

    def last_words(self, lines: int = 8) -> str:
        """Return the end of what the group has printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def cpu_s(self) -> float:
        """Return the CPU seconds of the whole group since its start."""
        return sum(time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED) for pid in group_members(self.pid))

    def foreign_s(self) -> float:
        """Return the CPU seconds that others have used on the group's core; differences tell, in steps of 0.01 s."""
        return core_busy_s(self._core) - self.cpu_s()

    def rss_mb(self) -> float:
        """Return the resident memory of the whole group in MB (10^6 bytes)."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in group_members(self.pid))
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def end(self) -> None:
        """End the group, children included: politely, then by force. Returns when all of it is gone."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, sign)
            until_s = time.monotonic() + _END_WAIT_S
            while self.running or group_members(self.pid):
                if time.monotonic() > until_s:
                    break
                time.sleep(0.02)
            else:
                return
        raise RuntimeError(f"process group {self.pid} is still there")


def core_busy_s(core: int) -> float:
    """Return the seconds that `core` has not been idle since boot, time stolen by the machine's host included."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
            return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    raise ValueError(f"/proc/stat knows no core {core}")


def group_members(group: int) -> list[int]:
    """Return the ids of the living processes of process group `group`."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
            continue
        state, _, pgrp = stat.rpartition(")")[2].split()[:3]  # the name before may hold spaces and brackets
        if int(pgrp) == group and state != "Z":
            members.append(int(entry.name))
    return members
