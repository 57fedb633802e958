"""`twohop up`: engines and a gateway together on this machine, for a laptop.

Exit status: 0 after Ctrl-C or SIGTERM, since being asked to end is how it ends; 1 where anything could not start or
ended by itself; 2 for wrong arguments, addresses that are taken included.
"""

import argparse
import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from gateway.up import sim, vllm_cpu
from gateway.up.ports import ADMIN_VARIABLE, settle_address, settle_admin_address, visit_url
from gateway.up.processes import Child, Children, Program, Stopped, UpError
from gateway.up.running import ROLES, RunningEngine, answers

DEFAULT_COUNT = {"sim": 2, "vllm-cpu": 1}
KINDS = {"sim": "simulated", "vllm-cpu": "vLLM"}
MODE_VARIABLE = "TWOHOP_DISAGGREGATION__MODE"
GRACE_VARIABLE = "TWOHOP_DRAIN__GRACE_S"
GATEWAY_START_S = 60.0
STREAMS_END_S = 2.0

_one_line = threading.Lock()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.epilog = f"The admin API listens on 127.0.0.1:8001; {ADMIN_VARIABLE}=HOST:PORT moves it, null turns it off."
    parser.add_argument("--prefill", type=_whole, metavar="N", help="prefill engines (default: 2, real vLLM: 1)")
    parser.add_argument("--decode", type=_whole, metavar="N", help="decode engines (default: 2, real vLLM: 1)")
    parser.add_argument("--both", type=_whole, metavar="N", help="engines of both roles; then the others default to 0")
    parser.add_argument("--engine", choices=tuple(DEFAULT_COUNT), default="sim", help="default: %(default)s")
    parser.add_argument("--two-hop", choices=("auto", "always", "never"), default="auto", help="default: %(default)s")
    parser.add_argument("--speed", type=float, metavar="X", help="how many times faster than real time (sim alone)")
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Start everything, stay until a signal or a death, end everything."""
    try:
        engines = plan(args)
        listen = settle_address(args.listen, "the gateway", "end what listens there or give another with --listen")
        admin = settle_admin_address()
    except UpError as error:
        say(f"twohop up: {error}")
        return 2
    children = Children(say)
    gateway: Child | None = None
    with children.stopping_on(signal.SIGINT, signal.SIGTERM, signal.SIGHUP), children:
        try:
            started = start_engines(children, engines, args)
            settings = {GRACE_VARIABLE: str(STREAMS_END_S), MODE_VARIABLE: args.two_hop}
            gateway = start_gateway(children, started, listen, admin, settings)
            counts = Counter(engine.role for engine in started)
            say(invitation(counts, started[0].model, listen, admin))
            children.watch()
        except Stopped as stopped:
            say(f"twohop up: {stopped}, ending everything")
            if gateway is not None:  # it goes first, so that it ends its streams itself instead of losing its engines
                gateway.signal(signal.SIGTERM)
                gateway.join(STREAMS_END_S + 1.0)
            return 0
        except UpError as error:
            say(f"twohop up: {error}")
            return 1
    raise AssertionError("watch() ends by an exception only")


def plan(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the (name, role) of every engine asked for; raises UpError where they could serve nothing."""
    default = 0 if args.both else DEFAULT_COUNT[args.engine]
    asked = {"prefill": args.prefill, "decode": args.decode, "both": args.both or 0}
    counts = {role: default if asked[role] is None else asked[role] for role in ROLES}
    if counts["decode"] + counts["both"] == 0:
        raise UpError("no engine can decode; ask for one with --decode 1 or --both 1")
    if args.speed is not None and args.engine != "sim":
        raise UpError("--speed is for simulated engines; leave it out or use --engine sim")
    if args.speed is not None and args.speed <= 0:
        raise UpError("--speed must be over 0; 1 is real time")
    return [(f"{role}-{number}", role) for role in ROLES for number in range(counts[role])]


def start_engines(
    children: Children, engines: Sequence[tuple[str, str]], args: argparse.Namespace
) -> list[RunningEngine]:
    """Start the engines of the kind asked for and wait until all answer."""
    say(f"starting {len(engines)} {KINDS[args.engine]} engines")
    if args.engine == "sim":
        return sim.start_engines(children, engines, args.speed)
    return vllm_cpu.start_engines(children, engines)


def start_gateway(
    children: Children,
    engines: Sequence[RunningEngine],
    listen: str,
    admin: str | None,
    settings: Mapping[str, str],
) -> Child:
    """Start the gateway in front of the engines, with `settings` as variables; return it once it could serve."""
    flags = [word for engine in engines for word in ("--endpoint", engine.endpoint_flag())]
    environment = {ADMIN_VARIABLE: admin or "null", **settings}
    child = children.start("gateway", Program("gateway", ["serve", "--listen", listen, *flags], environment))
    children.wait_ready(child, partial(answers, f"{visit_url(listen)}/readyz"), GATEWAY_START_S)
    return child


def invitation(counts: Mapping[str, int], model: str, listen: str, admin: str | None) -> str:
    """Return what to do now that so many engines of each role run."""
    roles = ", ".join(f"{count} {role}" for role, count in counts.items())
    body = {
        "model": model,
        "stream": True,
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    }
    url = visit_url(listen)
    lines = [
        f"ready: engines {roles} behind {url}; try:",
        f"  curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d '{json.dumps(body)}'",
        f"admin API: {visit_url(admin)}/admin/endpoints" if admin else "admin API: off",
        "Ctrl-C ends everything.",
    ]
    return "\n".join(lines)


def say(text: str) -> None:
    """Write whole lines to standard output, whichever thread calls; a reader that has left is no error."""
    with _one_line, suppress(BrokenPipeError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of engines")
    return int(text)
