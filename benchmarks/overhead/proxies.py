"""The proxies that can be measured: how each is found and with which command it starts.

A name is `product` or `product:policy`. Peers run with their own defaults. The only options given are the addresses,
the policy, a free port for their metrics (both claim the same one), and warnings as the log level: smg by default
writes two lines per request, and that is not what is compared.
"""

import importlib.util
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_NAMES = ("twohop", "naive", "vllm-router:round_robin", "vllm-router:cache_aware", "smg:cache_aware")


class NotInstalled(Exception):
    """The proxy cannot be measured here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one proxy of one run lives: its port, the engine's base URLs, a folder for its files."""

    port: int
    endpoints: list[str]
    folder: Path


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that is installed, and the command that starts it at a place."""

    name: str
    version: str
    command: Callable[[Place], list[str]]


@dataclass(frozen=True, slots=True)
class _Peer:
    package: str
    version: str
    launch: tuple[str, ...]
    log_level: str  # what it calls the level of warnings


_PEERS = {
    "vllm-router": _Peer("vllm-router", "0.1.17", ("vllm-router",), "warning"),
    "smg": _Peer("sglang-router", "0.3.2", ("smg", "launch"), "warn"),
}


def free_port() -> int:
    """Return a port that is free on 127.0.0.1 at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find(name: str, peers: Path) -> Proxy:
    """Return the proxy called `name`, looking for peers in the virtual environment `peers`.

    Raises `NotInstalled` where it is missing or has another version, `ValueError` for a name that nobody knows.
    """
    product, _, policy = name.partition(":")
    if name == "twohop":
        if importlib.util.find_spec("gateway.commands.serve") is None:
            raise NotInstalled("this tree has no `twohop serve`")
        return Proxy(name, "this tree", twohop_command)
    if name == "naive":
        return Proxy(name, "this tree", _naive)
    if product in _PEERS and policy:
        return _peer(name, _PEERS[product], policy, peers)
    raise ValueError(
        f"no proxy is called {name!r}; there are {', '.join(DEFAULT_NAMES)} and other policies of the peers"
    )


def twohop_command(place: Place) -> list[str]:
    """Return the command for the gateway of this tree, its defaults kept and its admin API off."""
    config = place.folder / "twohop.yaml"
    config.write_text(
        json.dumps(  # JSON is YAML
            {
                "listen": f"127.0.0.1:{place.port}",
                "admin": {"listen": None},
                "discovery": {"static": {"endpoints": [{"url": url} for url in place.endpoints]}},
            }
        )
    )
    return [sys.executable, "-m", "gateway", "serve", "--config", str(config)]


def _naive(place: Place) -> list[str]:
    flags = [part for url in place.endpoints for part in ("--endpoint", url)]
    return [sys.executable, "-m", "benchmarks.overhead.naive", "--port", str(place.port), *flags]


def _peer(name: str, peer: _Peer, policy: str, peers: Path) -> Proxy:
    stem = peer.package.replace("-", "_")
    found = [path.name.split("-")[1] for path in peers.glob(f"lib/python*/site-packages/{stem}-*.dist-info")]
    if peer.version not in [version.removesuffix(".dist") for version in found]:
        has = f"has {', '.join(found)}" if found else "does not have it"
        raise NotInstalled(f"needs {peer.package}=={peer.version}; {peers} {has}")

    def command(place: Place) -> list[str]:
        program, *rest = peer.launch
        return [
            str(peers / "bin" / program),
            *rest,
            *("--host", "127.0.0.1", "--port", str(place.port)),
            *("--worker-urls", *place.endpoints),
            *("--policy", policy),
            *("--log-level", peer.log_level),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
        ]

    return Proxy(name, peer.version, command)
