"""The repository's own Python as text and syntax trees, for the tests of this folder."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "scorers", "benchmarks")
# One plugin a file: the file's name is the name in the configuration.
PLUGIN_FOLDERS = ("scorers/affinity", "scorers/load", "scorers/filters", "scorers/pickers")
# Code that decides: no await, no I/O, no clock, no chance, no logging.
DECIDING = (
    "scorers/",
    "gateway/prefix/",
    "gateway/wire/",
    "gateway/connectors/",
    "gateway/config_diff.py",
    "gateway/pool/health.py",
    "gateway/pool/ejection.py",
    "gateway/pool/progress.py",
    "gateway/pool/overrides.py",
    "gateway/pool/scrape.py",
    "gateway/flowcontrol/retry_budget.py",
    "gateway/observability/snapshot.py",
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file: `path` relative to the repository with slashes, its text and its tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The dotted name it is imported by."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def functions(self) -> list[Function]:
        """Every function and method, inner ones too."""
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]


@cache
def modules(*folders: str) -> tuple[Module, ...]:
    """Return the modules under `folders` (default: the packages) in order of their paths."""
    paths = sorted(path for folder in folders or PACKAGES for path in (ROOT / folder).rglob("*.py"))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return tuple(Module(path, text, ast.parse(text)) for path, text in texts.items())
