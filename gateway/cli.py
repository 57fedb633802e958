"""The `twohop` command: a table of subcommands, each in its own module, imported only when asked for.

A command module holds `add_arguments(parser)` and `run(args) -> int`.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "serve": "run the gateway in front of engines",
    "engine": "run one simulated vLLM engine",
    "up": "run engines and a gateway together on this machine",
    "check-config": "validate a configuration file",
}


INTERRUPTED = 130  # as a shell says it: 128 and the number of SIGINT


class _Version(argparse.Action):
    """Prints the version; looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            parser.exit(0, f"twohop {version('twohop')}\n")
        except PackageNotFoundError:
            parser.exit(0, "twohop, not installed: run from its source folder\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse `argv` (default: the process's own) and run the command; return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="twohop",
        description="A smart inference gateway for vLLM: prefix-aware routing, two-hop prefill and decode.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = arguments[0] if arguments else None
    module = None
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == asked:
            module = importlib.import_module("gateway.commands." + name.replace("-", "_"))
            module.add_arguments(command)
    args = parser.parse_args(arguments)
    if module is None:  # pragma: no cover - argparse has already refused an unknown command
        return 2
    try:
        return int(module.run(args))
    except KeyboardInterrupt:  # before the command could catch the signal itself: nothing is there to be ended yet
        return INTERRUPTED
