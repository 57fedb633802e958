"""`twohop engine`: one simulated vLLM engine, for trials and tests without a model or an accelerator."""

import argparse
import asyncio
import os
import signal
import sys

import uvloop

from gateway.config_types import split_address
from gateway.simulator.faults import FAULTS, Faults
from gateway.simulator.profiles import PROFILES
from gateway.simulator.server import Options, SimServer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    fault_help = "; ".join(f"{name}: {what}" for name, what in FAULTS.items())
    add = parser.add_argument
    add("--listen", default="127.0.0.1:9001", metavar="HOST:PORT", help="port 0 takes a free one (%(default)s)")
    add("--model", action="append", metavar="NAME", help="a model name to serve; repeats (sim)")
    add("--role", default="both", choices=("both", "prefill", "decode"), help="what it is for; told in its metrics")
    add("--profile", default="default", choices=sorted(PROFILES), help="speed and size (%(default)s)")
    add("--speed", type=float, default=1.0, metavar="X", help="times as fast as the profile (%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="which requests a fault with a share strikes (%(default)s)")
    add("--lease-s", type=float, default=30.0, metavar="S", help="how long a prefill keeps KV blocks (%(default)s)")
    add("--heartbeat-s", type=float, default=5.0, metavar="S", help="how often a decode renews a lease (%(default)s)")
    add("--nixl-port", type=int, default=0, metavar="PORT", help="side channel for KV handoffs (any free port)")
    add("--kv-load-failure", default="fail", choices=("fail", "recompute"), help="when KV cannot be read (%(default)s)")
    add("--mean-output-tokens", type=int, default=128, metavar="N", help="length of a free answer (%(default)s)")
    for flag in ("block-size", "num-blocks", "max-model-len", "max-num-seqs", "max-num-batched-tokens"):
        add(f"--{flag}", type=int, metavar="N", help="instead of the profile's")
    add("--bandwidth", type=float, metavar="BYTES_PER_S", help="of KV transfers, instead of the profile's")
    add("--fault", action="append", default=[], metavar="NAME[=VALUE][:SHARE]", help=f"repeats; {fault_help}")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return 0, or 2 if the flags do not fit together."""
    options = Options(
        models=tuple(args.model or ("sim",)), role=args.role, profile=args.profile, speed=args.speed, seed=args.seed,
        faults=tuple(args.fault), lease_s=args.lease_s, heartbeat_s=args.heartbeat_s,
        nixl_port=args.nixl_port, load_failure=args.kv_load_failure,
        mean_output_tokens=args.mean_output_tokens, block_size=args.block_size, num_blocks=args.num_blocks,
        max_model_len=args.max_model_len, max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens, bandwidth=args.bandwidth,
    )  # fmt: skip
    try:
        host, port = split_address(args.listen)
    except ValueError:
        sys.stderr.write(f"--listen: {args.listen!r} is not host:port, such as 127.0.0.1:9001\n")
        return 2
    try:
        Faults(options.faults)
        options.engine()
        uvloop.run(_serve(options, host, port))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        sys.stderr.write(f"cannot listen on {args.listen}: {reason}; choose another with --listen\n")
        return 2
    except ValueError as error:
        sys.stderr.write(f"twohop engine: {error}\n")
        return 2
    return 0


async def _serve(options: Options, host: str, port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = SimServer(options)
    await server.start(host, port)
    sys.stdout.write(f"listening on {server.url}\n")
    sys.stdout.flush()
    await stop.wait()
    await server.stop()
