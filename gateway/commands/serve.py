"""`twohop serve`: the gateway in front of engines."""

import argparse
import gc
import sys
from functools import partial
from pathlib import Path

from gateway.config import Config
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
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes that serve, one for each core that the gateway may use (default 1); see docs/howto/workers.md",
    )
    parser.add_argument("--log-level", choices=LEVELS, help="least severity that is logged (default info)")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return 0, or 2 where the configuration cannot be used."""
    try:
        config = read(args)
        set_up_logs(config.log_level)
        if config.workers > 1:
            from gateway.workers.supervisor import supervise

            return supervise(config, args)
        from gateway.app import run_until_signal  # half a second of imports, after what can be refused at once

        freeze()
        run_until_signal(config, partial(read, args))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def read(args: argparse.Namespace) -> Config:
    """Return the configuration of file, environment and the flags in `args`; raise ConfigError."""
    flags = Flags(args.listen, tuple(args.endpoint), args.log_level, args.workers)
    return load(Path(args.config) if args.config else None, process_environment(), flags, plugin_problems)


def freeze() -> None:
    """Keep the collector from walking over what the imports made again and again: it lives as long as the process."""
    gc.collect()
    gc.freeze()
