"""The reference pages that are made from tables in the code; `scripts/docs` writes them, a test compares them."""

import argparse
import importlib
import sys
from collections.abc import Callable

from gateway.cli import COMMANDS
from gateway.observability.metrics import SPECS
from tests.architecture.configuration_page import configuration_page
from tests.architecture.source import ROOT

MADE = "<!-- Made by scripts/docs from the code; edit the code. -->\n"


def cli_page() -> str:
    """Return docs/reference/cli.md: every command with every argument."""
    parts = [f"# Command line\n\n{MADE}"]
    for command, summary in COMMANDS.items():
        module = importlib.import_module("gateway.commands." + command.replace("-", "_"))
        parser = argparse.ArgumentParser(prog=f"twohop {command}", add_help=False)
        module.add_arguments(parser)
        parts.append(f"## twohop {command}\n\n{summary[0].upper()}{summary[1:]}.\n")
        rows = [argument_row(action) for action in parser._actions]  # noqa: SLF001 - argparse shows them no other way
        parts.append("\n".join(["| argument | default | meaning |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def argument_row(action: argparse.Action) -> str:
    """Return one argument as a row of a table."""
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"
    if action.option_strings and action.nargs != 0:
        value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
        names += f" `{value}`"
    told = isinstance(action.default, str | float | int) and not isinstance(action.default, bool)
    default = f"`{action.default}`" if told and action.default != argparse.SUPPRESS else ""
    meaning = (action.help or "") % {**vars(action), "prog": "twohop"} if action.help else ""
    return f"| {_cell(names)} | {_cell(default)} | {_cell(meaning)} |"


def metrics_page() -> str:
    """Return docs/reference/metrics.md: every metric with its type, labels and meaning."""
    rows = [
        f"| `{spec.name}` | {spec.kind} | {', '.join(f'`{label}`' for label in spec.labels)} | {spec.meaning} |"
        for spec in SPECS
    ]
    opening = "`GET /metrics` on the inference port, Prometheus text. Times are seconds.\n"
    table = ["| metric | type | labels | meaning |", "|---|---|---|---|", *rows]
    return f"# Metrics\n\n{MADE}\n{opening}\n" + "\n".join(table) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/cli.md": cli_page,
    "docs/reference/configuration.md": configuration_page,
    "docs/reference/metrics.md": metrics_page,
}


def main() -> None:
    """Write every page, or those named on the command line."""
    for path in sys.argv[1:] or PAGES:
        (ROOT / path).write_text(PAGES[path](), encoding="utf-8")


if __name__ == "__main__":
    main()
