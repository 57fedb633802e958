"""`twohop serve`: the gateway in front of engines."""

import argparse
import gc
import sys
from functools import partial
from pathlib import Path

from gateway.config_plugins import plugin_problems
from gateway.config_source import Flags, load, process_environment
from gateway.errors import ConfigError
from gateway.observability.logs import LEVELS, set_up_logs

EPILOG = """examples:
  twohop serve --endpoint http://h1:8000 --endpoint http://h2:8000
  twohop serve --endpoint http://p:8000,role=prefill --endpoint http://d:8000,role=decode
  twohop serve --config gateway.yaml

Every key of the file can also be set in the environment: TWOHOP_ + its path in capitals, joined by two underscores
(TWOHOP_ROUTING__RECEIPT_HEADERS=true). Flags override the environment, which overrides the file.

SIGHUP has all of them read again; SIGTERM and SIGINT stop the gateway once its requests are done."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML configuration; see docs/reference/configuration.md"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="address of the inference API (default 127.0.0.1:8000)")
    parser.add_argument(
        "--endpoint",
        action="append",
        default=[],
        metavar="URL[,role=R][,name=N]",
        help="an engine; repeat it for each. R: both (default), prefill or decode",
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes; this version runs 1")
    parser.add_argument("--log-level", choices=LEVELS, help="least severity that is logged (default info)")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return 0, or 2 where the configuration cannot be used."""
    if args.workers != 1:
        sys.stderr.write("--workers: this version runs one process; start more gateways on other ports\n")
        return 2
    try:
        flags = Flags(listen=args.listen, endpoints=tuple(args.endpoint), log_level=args.log_level)
        reread = partial(load, args.config, process_environment(), flags, plugin_problems)
        config = reread()
        set_up_logs(config.log_level)
        from gateway.app import run_until_signal  # half a second of imports, after what can be refused at once

        # What the imports made lives as long as the process: keep the collector from walking over it again and again.
        gc.collect()
        gc.freeze()
        run_until_signal(config, reread)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0
