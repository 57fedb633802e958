"""Runs the cases at full size: one line for each, exit status 1 where one fails.

python -m benchmarks.field_reports [--cases A02,A26] [--small]
"""

import argparse
import asyncio
import importlib
import pkgutil
import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence

import benchmarks.field_reports
from benchmarks.field_reports.case import FULL, SMALL, CaseFailed, Figures, Scenario, Size


def cases() -> dict[str, tuple[Scenario, ...]]:
    """Return the scenarios of every case by its id, in order: a module `aNN` is the case ANN."""
    names = sorted(found.name for found in pkgutil.iter_modules(benchmarks.field_reports.__path__))
    modules = {name.upper(): name for name in names if re.fullmatch(r"a\d\d", name)}
    return {
        case: importlib.import_module(f"benchmarks.field_reports.{name}").SCENARIOS for case, name in modules.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, and return the exit status."""
    known = cases()
    parser = argparse.ArgumentParser(prog="scripts/bench field-reports", description="Field reports at full size.")
    parser.add_argument("--cases", default=",".join(known), help=f"some of {','.join(known)} (default: all)")
    parser.add_argument("--small", action="store_true", help="the size of the tests")
    args = parser.parse_args(argv)
    wanted = args.cases.upper().split(",")
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    size = SMALL if args.small else FULL
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the gateway under test is ended too
    passed = [_run(case, known[case], size) for case in wanted]
    print(f"{sum(passed)} of {len(passed)} passed")
    return 0 if all(passed) else 1


def _run(case: str, scenarios: Sequence[Scenario], size: Size) -> bool:
    """Run one case and print its line; a scenario that fails does not keep the others from running."""
    figures: Figures = {}
    failures: list[str] = []
    began_s = time.monotonic()
    for scenario in scenarios:
        name = getattr(scenario, "__name__", "scenario")
        try:
            told = asyncio.run(scenario(size))
        except CaseFailed as failed:
            failures.append(f"{name}: {failed}")
        except Exception:  # noqa: BLE001 - whatever breaks one case, the others are to be run
            failures.append(f"{name}: {traceback.format_exc()}")
        else:
            figures |= {f"{name}.{key}": value for key, value in told.items()}
    shown = "  ".join(f"{key}={_short(value)}" for key, value in figures.items())
    print(f"{case}  {'FAILED' if failures else 'passed'}  {time.monotonic() - began_s:6.1f} s  {shown}", flush=True)
    for failure in failures:
        print(f"      {failure}", flush=True)
    return not failures


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
