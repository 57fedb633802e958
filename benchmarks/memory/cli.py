"""The command: open streams, then distinct prompts before few and before many endpoints; figures, and lines to hold.

Exit status: 0 every line holds, 1 one fails or an answer was wrong, 2 it could not be measured here.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.memory import distinct, streams
from benchmarks.overhead.load import WrongAnswer
from benchmarks.served import Line, NotServed, exit_status, raise_descriptor_limit, two_cores


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done."""

    streams: int
    distinct: distinct.Plan
    endpoints: tuple[int, ...]  # the last so many that the bound of all is reached before that of each


FULL = Plan(streams=2000, distinct=distinct.Plan(), endpoints=(2, 20))
QUICK = Plan(streams=50, distinct=distinct.Plan(unique=400, branching=200, step=100, index_mb=1), endpoints=(8,))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/bench memory", description="Memory of the gateway, measured as RSS.")
    parser.add_argument("--quick", action="store_true", help="a few seconds: small counts, an index of 1 MB")
    parser.add_argument("--only", choices=("streams", "distinct"), help="one part alone")
    args = parser.parse_args(argv)
    plan = QUICK if args.quick else FULL
    lines: list[Line] = []
    try:
        raise_descriptor_limit(2 * plan.streams + 200)
        with two_cores() as core, tempfile.TemporaryDirectory(prefix="memory-") as folder:
            if args.only != "distinct":
                lines += streams.measure(plan.streams, core, Path(folder))
            if args.only != "streams":
                for endpoints in plan.endpoints:
                    lines += distinct.measure(plan.distinct, endpoints, core, Path(folder))
    except NotServed as reason:
        print(f"not measured: {reason}")
        return 2
    except WrongAnswer as error:
        print(f"FAIL        the gateway answered wrongly: {error}")
        return 1
    print("", *lines, sep="\n")
    return exit_status(lines)
