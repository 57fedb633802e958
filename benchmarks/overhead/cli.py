"""The command: which proxies, how many runs, what to print, how to end.

Exit status: 0 every required line holds, 1 one fails, 2 one could not be measured (a peer is not installed, say).
"""

import argparse
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.overhead import report
from benchmarks.overhead.measure import FULL, QUICK, Broken, Plan, Sample, measure
from benchmarks.overhead.proxies import DEFAULT_NAMES, ROOT, NotInstalled, Proxy, find


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    args = _arguments(argv)
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        print("not measured: this needs two cores, one for the proxy and one for the rest")
        return 2
    plan = replace(QUICK if args.quick else FULL, endpoints=args.endpoints, streams=args.streams)
    try:
        proxies, absent = _installed(args.proxies, args.peers)
    except ValueError as unknown:
        print(f"not measured: {unknown}")
        return 2
    broken: dict[str, str] = {}
    versions = {proxy.name: proxy.version for proxy in proxies}
    os.sched_setaffinity(0, {usable[1]})  # this process, the client, and the engine that it starts
    try:
        samples = _runs(proxies, plan, args.runs or (1 if args.quick else 5), usable[0], broken)
    finally:
        os.sched_setaffinity(0, usable)

    judged = report.verdicts(samples)
    status = report.exit_status(judged, broken)
    unmeasured = absent | broken
    why = "\n".join(f"NOT MEASURED  {name}: {reason}" for name, reason in unmeasured.items())
    table = report.table(samples, versions)
    parts = [_conditions(plan, args), table, report.disturbed(samples), report.ratios(samples), why]
    print("\n\n".join(part for part in [*parts, report.verdict_lines(judged)] if part))
    if args.json:
        args.json.write_text(
            json.dumps(_document(plan, samples, versions, unmeasured, judged, status), indent=1) + "\n"
        )
    return status


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.overhead", description="CPU cost of proxies, in one run.")
    parser.add_argument("--quick", action="store_true", help="one short run; figures are rough")
    parser.add_argument("--proxies", type=lambda text: text.split(","), default=list(DEFAULT_NAMES))
    parser.add_argument("--endpoints", type=int, default=FULL.endpoints)
    parser.add_argument("--streams", type=int, default=FULL.streams)
    parser.add_argument("--runs", type=int, help="runs per proxy (default 5, quick 1)")
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv-bench", help="virtual environment of the peers")
    parser.add_argument("--json", type=Path, help="write all samples there")
    return parser.parse_args(argv)


def _installed(names: Sequence[str], peers: Path) -> tuple[list[Proxy], dict[str, str]]:
    """Return the proxies that can be measured, and for the others the reason why not."""
    proxies, absent = [], {}
    for name in names:
        try:
            proxies.append(find(name, peers))
        except NotInstalled as reason:
            absent[name] = str(reason)
    return proxies, absent


def _runs(
    proxies: Sequence[Proxy], plan: Plan, runs: int, core: int, broken: dict[str, str]
) -> dict[str, list[Sample]]:
    """Measure every proxy once per run, each run beginning with another one; what breaks is out from then on."""
    samples: dict[str, list[Sample]] = {proxy.name: [] for proxy in proxies}
    for run in range(runs):
        first = run % max(1, len(proxies))
        for proxy in [*proxies[first:], *proxies[:first]]:
            if proxy.name in broken:
                continue
            try:
                sample = measure(proxy, plan, core)
            except Broken as reason:
                broken[proxy.name] = f"broke in run {run + 1}: {reason}"
                samples[proxy.name] = []
                print(f"run {run + 1}/{runs} {proxy.name}: broke", flush=True)
                continue
            samples[proxy.name].append(sample)
            costs = f"{sample.plain_us:.1f} / {sample.chunk_us:.1f} / {sample.long_us:.1f} µs"
            print(f"run {run + 1}/{runs} {proxy.name}: {costs}", flush=True)
    return samples


def _conditions(plan: Plan, args: argparse.Namespace) -> str:
    return (
        f"\nCPU µs of the proxy per unit, idle CPU taken off, median (least-most); {plan.endpoints} endpoints, "
        f"{plan.streams} streams of one chunk per {plan.interval_s * 1e3:.0f} ms, {'quick, ' if args.quick else ''}"
        f"Python {platform.python_version()}"
    )


def _document(
    plan: Plan,
    samples: dict[str, list[Sample]],
    versions: dict[str, str],
    unmeasured: dict[str, str],
    judged: Sequence[report.Verdict],
    status: int,
) -> dict[str, object]:
    return {
        "plan": asdict(plan),
        "python": platform.python_version(),
        "machine": platform.platform(),
        "versions": versions,
        "samples": {name: [asdict(sample) for sample in runs] for name, runs in samples.items()},
        "not_measured": unmeasured,
        "required": [{**asdict(verdict.required), "ratio": verdict.ratio, "held": verdict.held} for verdict in judged],
        "exit_status": status,
    }
