"""What every test run shares: the `--vllm` switch, coverage of the modules that decide, Hypothesis without luck."""

from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest
from hypothesis import settings

from tests.vllm.engines import vllm_log, vllm_pair

__all__ = ["vllm_log", "vllm_pair"]  # one pair of real engines for the whole run, whatever folder asks for it

TESTS = Path(__file__).parent
VLLM_TIMEOUT_S = 900.0
# Under `coverage run`, imports and these tests are traced, and no others: tracing makes them twice as slow, and a
# deciding module is covered by its own tests or not at all.
MEASURED = coverage.Coverage.current()
MEASURING = tuple(
    TESTS / "unit" / room
    for room in ("scorers", "prefix", "wire", "connectors", "pool", "flowcontrol", "observability")
)

# The same examples in every run: a red run is the change's doing. No deadline: a shared core says nothing about a law.
settings.register_profile("twohop", deadline=None, derandomize=True)
settings.register_profile("fast", settings.get_profile("twohop"), max_examples=20)  # `scripts/test --fast`
settings.load_profile("twohop")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--vllm`."""
    parser.addoption("--vllm", action="store_true", help="run the cases that need real vLLM engines")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests/vllm to `--vllm`, and the coverage check to a whole run under coverage."""
    if collection_path == TESTS / "vllm" and not config.getoption("--vllm"):
        return True
    if collection_path == TESTS / "architecture" / "test_coverage.py" and not measures_everything(config):
        return True
    return None


def measures_everything(config: pytest.Config) -> bool:
    """Tell whether this run goes through all tests, under coverage."""
    narrowed = config.option.file_or_dir or config.option.keyword or getattr(config.option, "lf", False)
    return MEASURED is not None and not narrowed


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep cases marked `vllm` for `--vllm`, give them time, and put the coverage check last."""
    for item in items:
        if TESTS / "vllm" in item.path.parents:
            item.add_marker(pytest.mark.vllm)
        real = item.get_closest_marker("vllm") or config.getoption("--vllm")
        if real and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(VLLM_TIMEOUT_S))
    if not config.getoption("--vllm"):
        left_out = [item for item in items if item.get_closest_marker("vllm")]
        items[:] = [item for item in items if not item.get_closest_marker("vllm")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: item.path.name == "test_coverage.py")


def pytest_collection_finish() -> None:
    """Stop tracing: every module that tests import at their top is loaded."""
    if MEASURED is not None:
        MEASURED.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Trace one test, if it is one that covers deciding modules."""
    if MEASURED is None or not any(folder in item.path.parents for folder in MEASURING):
        return (yield)
    MEASURED.start()
    try:
        return (yield)
    finally:
        MEASURED.stop()


@pytest.fixture
def measured() -> coverage.Coverage:
    """Return the coverage measured so far."""
    assert MEASURED is not None
    return MEASURED
