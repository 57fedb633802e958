"""The supervisor of `twohop serve --workers N`: holds the sockets, starts the workers, replaces one that ends.

Invariant: no worker outlives the supervisor by more than the grace of a stop, however it ends: the link of each to the
broker ends with it. Signals reach workers through the supervisor alone, since each leads a process group of its own.
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
from pathlib import Path

from gateway.clock import monotonic_s
from gateway.commands.serve import freeze, read
from gateway.config import Config
from gateway.config_diff import applicable
from gateway.config_source import process_environment
from gateway.errors import ConfigError
from gateway.listening import Sockets, another, log_addresses, reserve
from gateway.terminal import on_hang_up
from gateway.workers.broker import Broker, Seat
from gateway.workers.process import Start

logger = logging.getLogger("twohop")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
STEADY_S = 10.0
"""A worker that served this long is replaced at once; the pause before the next one doubles where it did not."""

KILL_AFTER_S = 5.0
"""Seconds beyond the grace of a stop until a worker that is still there is killed."""

STUCK_S = 30.0
"""A worker that has told nothing for so long (one that lives tells its loop lag twice a second) is killed."""

SOURCE = str(Path(__file__).parents[2])


class Process:
    """One worker process, its seat at the broker, and which configuration it has."""

    def __init__(self, process: asyncio.subprocess.Process, seat: Seat, generation: int) -> None:
        self.process, self.seat, self.generation = process, seat, generation
        self.started_s = monotonic_s()
        self._killer: asyncio.TimerHandle | None = None

    def signal(self, number: int) -> None:
        """Send a signal, if the process is still there."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def must_end(self, within_s: float) -> None:
        """Kill it unless it ends by itself in `within_s`."""
        if self._killer is None:
            self._killer = asyncio.get_running_loop().call_later(within_s, self.signal, signal.SIGKILL)

    async def wait(self) -> int:
        """Return the exit status once it has ended."""
        status = await self.process.wait()
        if self._killer is not None:
            self._killer.cancel()
        return status


class Supervisor:
    """Keeps `config.workers` processes serving on `sockets`, as `reserve` makes them.

    `args` are the arguments of `twohop serve`, by which the configuration is read again.
    """

    def __init__(self, config: Config, sockets: Sockets, args: argparse.Namespace, stuck_s: float = STUCK_S) -> None:
        self._config, self._sockets, self._args, self._stuck_s = config, sockets, args, stuck_s
        self._broker = Broker()
        self._processes: dict[int, Process] = {}
        self._generation = 0
        self._stopping = asyncio.Event()
        self._serving = asyncio.Event()
        self._hopeless: int | None = None

    async def run(self) -> int:
        """Serve until stopped; return 0, or the exit status of a worker that ended before any served."""
        try:
            async with asyncio.TaskGroup() as group:
                keepers = [group.create_task(self._keep(number + 1)) for number in range(self._config.workers)]
                beside = [group.create_task(self._announce()), group.create_task(self._look_for_stuck_ones())]
                for keeper in keepers:
                    await keeper
                for task in beside:
                    task.cancel()
        finally:
            self._broker.close()
            for process in self._processes.values():
                process.signal(signal.SIGKILL)
        logger.info("stopped")
        return self._hopeless or 0

    def stop(self) -> None:
        """Have every worker stop: requests in flight have the grace, or none after a second call."""
        if not self._stopping.is_set():
            logger.info("stopping: %d workers", len(self._processes))
        self._stopping.set()
        for listener in self._sockets:
            if listener is not None:
                listener.close()
        for process in self._processes.values():
            self._end(process)

    def reload(self) -> None:
        """Have every worker read the configuration again; one that cannot be used is refused here, for all."""
        try:
            self._config = applicable(self._config, read(self._args))
        except ConfigError as error:
            logger.error("reload refused: %s", " | ".join(str(error).splitlines()))  # noqa: TRY400 - no fault of ours
            return
        self._generation += 1
        for process in self._processes.values():
            self._bring_up_to_date(process)

    def _bring_up_to_date(self, process: Process) -> None:
        """Pass SIGHUP on, once the worker can take it: one that still starts does so with the old configuration."""
        if process.seat.joined and process.generation < self._generation:
            process.generation = self._generation
            process.signal(signal.SIGHUP)

    async def _announce(self) -> None:
        await self._serving.wait()
        address, admin = (None if one is None else one.getsockname()[:2] for one in self._sockets)
        log_addresses(address, admin)

    async def _look_for_stuck_ones(self) -> None:
        while True:
            await asyncio.sleep(self._stuck_s / 8)
            for number, process in self._processes.items():
                silent_s = monotonic_s() - process.seat.heard_s
                if process.seat.joined and silent_s > self._stuck_s:
                    logger.error("worker %d has told nothing for %.0f s, and is killed", number, silent_s)
                    process.signal(signal.SIGKILL)

    async def _keep(self, number: int) -> None:
        """Run worker `number`, and another in its place when it ends, until stopped."""
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                process = await self._start(number)
            except OSError:
                logger.exception("worker %d cannot be started", number)
                await self._pause(LONGEST_PAUSE_S)
                continue
            status = await process.wait()
            del self._processes[number]
            if self._stopping.is_set():
                return
            if not self._serving.is_set() and not any(one.seat.joined for one in self._processes.values()):
                logger.error("worker %d ended with %s before it served", number, in_words(status))
                self._hopeless = status if status > 0 else 1
                self.stop()
                return
            served_s = monotonic_s() - process.started_s
            pause_s = FIRST_PAUSE_S if served_s >= STEADY_S else min(2 * pause_s, LONGEST_PAUSE_S)
            logger.error(
                "worker %d (pid %d) ended with %s after %.1f s: its streams are lost, another starts in %g s",
                *(number, process.process.pid, in_words(status), served_s, pause_s),
            )
            await self._pause(pause_s)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _start(self, number: int) -> Process:
        reserved, admin = self._sockets
        ours, theirs = socket.socketpair()
        try:
            with theirs, another(reserved) as listener:
                child = await self._spawn(theirs, listener, admin)
        except BaseException:
            ours.close()
            raise
        seat = Seat(number, self._broker, lambda: self._joined(process), lambda: self._lost(process))
        process = self._processes[number] = Process(child, seat, self._generation)
        ours.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: seat.link, sock=ours)
        config = self._args.config
        flags = {**vars(self._args), "config": None if config is None else str(config.absolute())}
        seat.link.send(Start(number, self._config.model_dump_json().encode(), flags))
        if self._stopping.is_set():
            self._end(process)
        return process

    async def _spawn(self, *handed: socket.socket | None) -> asyncio.subprocess.Process:
        """Start the program of a worker with its link, its listener and the admin API's, which may be None."""
        numbers = [0 if one is None else one.fileno() for one in handed]
        environment = process_environment()
        paths = [SOURCE, environment.get("PYTHONPATH", "")]
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "gateway.workers.process", *map(str, numbers)),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=[one for one in numbers if one],
            process_group=0,
            env={**environment, "PYTHONPATH": ":".join(filter(None, paths))},
        )

    def _end(self, process: Process) -> None:
        process.signal(signal.SIGTERM)
        self._lost(process)

    def _lost(self, process: Process) -> None:
        """A worker that has no link stops by itself, and one that is asked to; what hangs is killed."""
        drain = self._config.drain
        process.must_end(drain.delay_s + drain.grace_s + KILL_AFTER_S)

    def _joined(self, process: Process) -> None:
        logger.info("worker %d (pid %d) serves", process.seat.number, process.process.pid)
        self._bring_up_to_date(process)
        joined = sum(one.seat.joined for one in self._processes.values())
        if joined == self._config.workers:
            self._serving.set()


def supervise(config: Config, args: argparse.Namespace) -> int:
    """Serve with `config.workers` processes until SIGINT or SIGTERM; return the exit status; raise ConfigError.

    `args` are the arguments of `twohop serve`, of which the configuration came.
    """
    sockets = reserve(config)
    freeze()

    async def serve() -> int:
        supervisor = Supervisor(config, sockets, args)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, supervisor.stop)
        loop.add_signal_handler(signal.SIGHUP, on_hang_up(supervisor.reload, supervisor.stop))
        return await supervisor.run()

    with contextlib.ExitStack() as stack:
        for listener in filter(None, sockets):
            stack.enter_context(listener)
        return asyncio.run(serve())


def in_words(status: int) -> str:
    """Return an exit status as `subprocess` gives it in words."""
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"
