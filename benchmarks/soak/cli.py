"""The command: engines, gateway, clients, trouble; then quiet, and a verdict on what is left.

Exit status: 0 every line holds, 1 one fails, 2 it could not be measured here. Ctrl-C ends all that was started.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.overhead.proxies import free_port
from benchmarks.served import GatewayProcess, Line, NotServed, exit_status, gateway, raise_descriptor_limit, two_cores
from benchmarks.soak import watch
from benchmarks.soak.call import Answer, Connection
from benchmarks.soak.clients import Tally, client
from benchmarks.soak.fleet import Fleet
from benchmarks.soak.shapes import Shape, essence, other_shapes, request, shapes

MOST_MINUTES = 240.0
_TIMEOUTS = {"first_byte_s": 5.0, "idle_s": 5.0, "prefill_s": 5.0}  # engines that hang are part of the load


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/bench soak", description="Load and trouble; is anything left?")
    parser.add_argument("--minutes", type=_minutes, default=20.0, help="how long the load lasts (%(default)g)")
    parser.add_argument("--clients", type=int, default=16, help="clients that ask at the same time (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of what clients do and which engines die (%(default)s)")
    args = parser.parse_args(argv)
    try:
        raise_descriptor_limit(1024)
        with two_cores() as core, tempfile.TemporaryDirectory(prefix="soak-") as folder:
            lines = _run(args, core, Path(folder))
    except NotServed as reason:
        print(f"not measured: {reason}")
        return 2
    except watch.Gone as error:
        print(f"FAIL        {error}")
        return 1
    except KeyboardInterrupt:
        print("\nended before its time; nothing is judged")
        return 130
    print("", *lines, sep="\n")
    return exit_status(lines)


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes <= MOST_MINUTES:
        raise ValueError(text)
    return minutes


def _run(args: argparse.Namespace, core: int, folder: Path) -> list[Line]:
    fleet = Fleet(max(os.sched_getaffinity(0)), folder)  # the core of this process
    try:
        fleet.start()
        admin = {"admin": {"listen": f"127.0.0.1:{free_port()}"}}
        with gateway(fleet.configured(), core, folder, timeouts=_TIMEOUTS, **admin) as process:
            lines = asyncio.run(_soak(args, fleet, process, int(admin["admin"]["listen"].rpartition(":")[2])))
        return [*lines, watch.judge_log(folder / "gateway.log")]
    finally:
        fleet.end()


async def _soak(args: argparse.Namespace, fleet: Fleet, process: GatewayProcess, admin_port: int) -> list[Line]:
    chance, tally, samples = Random(args.seed), Tally(), list[watch.Sample]()  # noqa: S311 - a run that can be repeated
    asked = [await _learn(shape, fleet.engines[4].port) for shape in shapes(chance)]
    asked += [shape for one in other_shapes() if (shape := await _served(one, fleet, process)) is not None]
    print(
        f"{len(asked)} shapes of requests, {args.clients} clients, {args.minutes:g} minutes\n{watch.HEAD}", flush=True
    )
    start = await asyncio.to_thread(watch.look, process, 0.0)
    loop = asyncio.get_running_loop()
    length_s = args.minutes * 60
    until_s, every_s = loop.time() + length_s, min(10.0, max(2.0, length_s / 20))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(args.clients):
                group.create_task(client(process.port, asked, _more(chance), until_s, tally))
            group.create_task(fleet.disturb(_more(chance), until_s, every_s))
            drains = group.create_task(_drain(admin_port, fleet, _more(chance), until_s, every_s))
            group.create_task(watch.watch(process, until_s, samples))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # what happened first; the others were cancelled for it
    end = await watch.settled(process, start)
    print(watch.row(end))
    busy = sum([await asyncio.to_thread(engine.running) for engine in fleet.engines])
    _print_tally(tally, fleet, drains.result())
    return [
        Line("no client saw a wrong answer", "; ".join(tally.wrong) or "none", not tally.wrong),
        Line(
            f"at least {watch.RIGHT_SHARE:.0%} of the answers are right, the rest are errors",
            f"{tally.right_share:.1%} of {tally.verdicts.total()}",
            tally.right_share >= watch.RIGHT_SHARE,
        ),
        Line("no engine works for nobody", f"{busy:.0f} requests", not busy),
        *watch.judge(start, samples, end),
    ]


def _more(chance: Random) -> Random:
    """Return a source of chance of its own, so that what one does changes nothing for the others."""
    return Random(chance.random())  # noqa: S311 - a run that can be repeated


async def _learn(shape: Shape, port: int) -> Shape:
    """Return `shape` with what an engine answers to it. Raises NotServed where that is no answer."""
    answer = await _call(port, shape.request)
    if answer.status != 200:
        raise NotServed(f"an engine answered {shape.name} with {answer.status}: {answer.body[:200]!r}")
    return replace(shape, expected=essence(answer, stream=shape.stream))


async def _served(shape: Shape, fleet: Fleet, process: GatewayProcess) -> Shape | None:
    """Return `shape` with its answer where engines and gateway serve it, else None."""
    for port in (fleet.engines[4].port, process.port):
        if (await _call(port, shape.request)).status != 200:
            return None
    return await _learn(shape, fleet.engines[4].port)


async def _call(port: int, whole: bytes) -> Answer:
    connection = await Connection.open(port)
    try:
        async with asyncio.timeout(30):
            return await connection.call(whole)
    finally:
        connection.end()


async def _drain(port: int, fleet: Fleet, chance: Random, until_s: float, every_s: float) -> int | None:
    """Drain one engine after the other and let it in again; return how many, None where there is no such verb."""
    loop = asyncio.get_running_loop()
    drained = 0
    while loop.time() + every_s < until_s:
        name = chance.choice(fleet.engines).name
        for verb in ("drain", "undrain"):
            answer = await _call(port, request(f"/admin/endpoints/{name}/{verb}", {}))
            if answer.status in (404, 405):
                return None
            await asyncio.sleep(chance.uniform(0.2, 0.6) * every_s)
        drained += 1
    return drained


def _print_tally(tally: Tally, fleet: Fleet, drained: int | None) -> None:
    verdicts = ", ".join(f"{count} {what}" for what, count in tally.verdicts.most_common())
    left = ", ".join(f"{count} at {stage}" for stage, count in tally.left.most_common())
    drains = "no drain verbs" if drained is None else f"{drained} drains"
    print(f"\n{tally.calls} calls: {verdicts}\nleft: {left}\n{fleet.kills} engines taken down, {drains}", flush=True)
