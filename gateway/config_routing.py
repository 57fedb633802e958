"""Checks the names and parameters under `routing` against the plugins that exist."""

from collections.abc import Iterable

from gateway.config import RoutingConfig
from scorers.registry import SettingError, build_profile


def routing_problems(routing: RoutingConfig) -> Iterable[tuple[tuple[str, ...], str]]:
    """Return (path below `routing`, what is wrong) of every scorer, filter and picker that cannot be used."""
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
