"""The clients: each asks one thing after another, checks every answer, and sometimes leaves, stalls or reconnects."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from benchmarks.soak.call import STAGES, WAYS, Connection, Leave, Left
from benchmarks.soak.shapes import Shape, verdict

_LEAVES = 0.15  # share of the calls that are left
_STALLS = 0.05  # share that read slowly
_KEEPS = 0.7  # share after which the connection is kept
_THINK_S = 0.1
_CALL_S = 60.0
_SHOWN = 20


@dataclass
class Tally:
    """What came of all calls: counts by verdict and by the stage that was left, and the first wrong answers."""

    verdicts: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """All calls."""
        return self.verdicts.total() + self.left.total()

    @property
    def right_share(self) -> float:
        """The share of right answers among those that were awaited."""
        return self.verdicts["right"] / max(1, self.verdicts.total())

    def add(self, shape: Shape, what: str) -> None:
        """Count one answer."""
        self.verdicts[what.partition(":")[0]] += 1
        if what.startswith("wrong") and len(self.wrong) < _SHOWN:
            self.wrong.append(f"{shape.name}: {what}")

    def refused(self, error: OSError) -> None:
        """Count one connection that the gateway did not take."""
        self.verdicts["wrong"] += 1
        if len(self.wrong) < _SHOWN:
            self.wrong.append(f"no connection: {error}")


async def client(port: int, shapes: Sequence[Shape], chance: Random, until_s: float, tally: Tally) -> None:
    """Ask until `until_s` (loop time); what is under way then is read to its end."""
    loop = asyncio.get_running_loop()
    connection: Connection | None = None
    try:
        while loop.time() < until_s:
            await asyncio.sleep(chance.expovariate(1 / _THINK_S))
            if connection is None or not connection.usable or chance.random() > _KEEPS:
                if connection is not None:
                    connection.end()
                connection = None
                try:
                    connection = await Connection.open(port)
                except OSError as error:
                    tally.refused(error)
                    continue
            await _ask(connection, chance.choice(shapes), chance, tally)
    finally:
        if connection is not None:
            connection.end()


async def _ask(connection: Connection, shape: Shape, chance: Random, tally: Tally) -> None:
    leave = _leave(chance) if chance.random() < _LEAVES else None
    pause_s = chance.uniform(0.05, 0.3) if chance.random() < _STALLS else 0.0
    try:
        async with asyncio.timeout(_CALL_S):
            answer = await connection.call(shape.request, leave, pause_s)
    except Left:
        tally.left[leave.stage if leave is not None else ""] += 1
    except TimeoutError:
        tally.add(shape, f"wrong: no whole answer in {_CALL_S:.0f} s")
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        tally.add(shape, f"wrong: no answer, {error!r}")
    else:
        tally.add(shape, verdict(shape, answer))


def _leave(chance: Random) -> Leave:
    return Leave(
        chance.choice(STAGES),
        chance.choice(WAYS),
        chunks=chance.randrange(1, 40),
        delay_s=chance.choice((0.0, 0.0, chance.uniform(0.0, 0.2))),
    )
