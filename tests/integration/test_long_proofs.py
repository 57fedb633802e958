"""The long proofs run, on a small scale, against a real gateway process; at full size by `scripts/bench`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def bench(name: str, *flags: str) -> str:
    """Run a benchmark that must succeed and return what it prints."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
    return done.stdout


def test_memory_stays_within_its_bounds():
    told = bench("memory", "--quick")
    assert "pass        50 open idle streams take at most 250 MB" in told
    assert "pass        8 endpoints: from then on RSS grows by at most 10 %" in told


def test_latency_is_measured_both_ways():
    told = bench("latency", "--quick", "--runs", "1")
    assert "the gateway adds at most 2 ms to the p99 of 20 streams (median of 1): " in told


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nothing_is_left_of_load_and_trouble():
    told = bench("soak", "--minutes", "0.17")
    assert "pass        no client saw a wrong answer: none" in told
    assert "pass        no lease is left when the load has stopped: 0" in told
    assert "pass        no traceback in the gateway's log: none" in told
