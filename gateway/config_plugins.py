"""Checks the names and parameters of plugins in a configuration against the plugins that exist."""

from collections.abc import Iterable

from gateway import connectors
from gateway.config import Config, RoutingConfig
from gateway.config_source import Path_, nearest
from scorers.registry import SettingError, build_profile


def plugin_problems(config: Config) -> Iterable[tuple[Path_, str]]:
    """Return (path, what is wrong) of every scorer, filter, picker and connector that cannot be used."""
    for below, message in _routing_problems(config.routing):
        yield ("routing", *below), message
    name, known = config.disaggregation.connector, connectors.names()
    if name not in known:
        yield ("disaggregation", "connector"), f"{name!r} is unknown; {nearest(name, known)}"


def _routing_problems(routing: RoutingConfig) -> Iterable[tuple[tuple[str, ...], str]]:
    found: dict[tuple[str, ...], str] = {}

    def attempt(scorers: dict[str, object], filters: tuple[str, ...], picker: str) -> None:
        try:
            build_profile(scorers, filters, picker)
        except SettingError as error:
            found[error.path] = str(error).removeprefix(".".join(error.path) + ": ")

    for name, scorer in routing.scorers.items():
        attempt({name: {"weight": scorer.weight, **scorer.parameters}}, (), routing.picker)
    for name in routing.filters:
        attempt({}, (name,), routing.picker)
    attempt({}, (), routing.picker)
    return found.items()
