"""Run a module or a file as the main program of a process group that cannot outlive the process that started it.

`python -P tether.py MODULE|FILE.py [ARGUMENT]…`, by path and with the standard library alone, since it also runs under
the Python of another virtual environment. The starter holds the write end of this process's standard input and never
writes; the kernel closes it however the starter ends, SIGKILL included.
Invariant: the process is the leader of its own group, so ending the group ends nobody else.
"""

import os
import runpy
import signal
import sys
import threading

GRACE_S = 5.0


def end_with_starter() -> None:
    """Block until standard input ends, then end the whole process group: SIGTERM, and after `GRACE_S` SIGKILL."""
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Watch the starter from a thread and run what the arguments name as `__main__`."""
    if os.getpgrp() != os.getpid():
        sys.exit("tether: not the leader of a process group; start it with process_group=0")
    threading.Thread(target=end_with_starter, name="tether", daemon=True).start()
    del sys.argv[0]
    target = sys.argv[0]
    if target.endswith(".py"):
        runpy.run_path(target, run_name="__main__")
    else:
        runpy.run_module(target, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
