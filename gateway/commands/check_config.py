"""`twohop check-config`: say whether a configuration file can be used, before anything starts on it."""

import argparse
import sys
from pathlib import Path

from gateway.config_plugins import plugin_problems
from gateway.config_source import load, process_environment
from gateway.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the configuration file")


def run(args: argparse.Namespace) -> int:
    """Load the file as `serve` would, environment included; print `ok: …` and return 0, or print the errors: 2."""
    try:
        config = load(args.file, process_environment(), check_plugins=plugin_problems)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    endpoints = config.discovery.static.endpoints
    roles = [endpoint.role for endpoint in endpoints]
    counted = ", ".join(f"{roles.count(role)} {role}" for role in ("both", "prefill", "decode") if role in roles)
    sys.stdout.write(f"ok: {len(endpoints)} endpoint{'' if len(endpoints) == 1 else 's'} ({counted}), ")
    sys.stdout.write(f"listening on {config.listen}\n")
    return 0
