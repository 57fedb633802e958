"""Finds plugins by file name and builds a profile from configured values.

Invariant: what a plugin may be called and given is read from its file, never from a list here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from math import isfinite
from pkgutil import iter_modules
from typing import Any, get_type_hints

from scorers.profile import NamedFilter, Profile, WeightedScorer

FOLDERS: Mapping[str, tuple[str, ...]] = {
    "scorers": ("scorers.affinity", "scorers.load"),
    "filters": ("scorers.filters",),
    "picker": ("scorers.pickers",),
}


class SettingError(ValueError):
    """A configured value that no plugin takes.

    `path` leads to it below `routing`, such as ("scorers", "queue_depth", "full_at"); `nearest` is the valid name
    closest to a wrong one, None when the name is right or nothing is close.
    """

    def __init__(self, path: tuple[str, ...], problem: str, nearest: str | None = None) -> None:
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        super().__init__(f"{'.'.join(path)}: {problem}{hint}")
        self.path = path
        self.nearest = nearest


def plugin_names(setting: str) -> tuple[str, ...]:
    """Return the valid names for `setting`, one of `scorers`, `filters`, `picker`, in alphabetical order."""
    return tuple(sorted(_modules(setting)))


def build_profile(scorers: Mapping[str, object], filters: Sequence[str], picker: str) -> Profile:
    """Return the profile that the settings of `routing` describe.

    `scorers` maps a name to its weight, or to a mapping with `weight` and the scorer's parameters. Raises
    SettingError (a ValueError) for an unknown name or parameter and for a value of the wrong type or out of range.
    """
    return Profile(
        filters=tuple(NamedFilter(name, _plugin("filters", name, {})) for name in filters),
        scorers=tuple(_weighted(name, value) for name, value in scorers.items()),
        picker=_plugin("picker", picker, {}),
    )


def _weighted(name: str, value: object) -> WeightedScorer:
    parameters = dict(value) if isinstance(value, Mapping) else {"weight": value}
    path = ("scorers", name, "weight") if isinstance(value, Mapping) else ("scorers", name)
    weight = parameters.pop("weight", None)
    scorer = _plugin("scorers", name, parameters)
    if not isinstance(weight, int | float) or not _fits(weight, float) or weight < 0:
        raise SettingError(path, f"weight must be a number of 0 or more, not {weight!r}")
    return WeightedScorer(name, float(weight), scorer)


def _plugin(setting: str, name: str, parameters: Mapping[str, object]) -> Any:
    """Make the plugin; Any because the folder alone says which protocol it satisfies."""
    modules = _modules(setting)
    if name not in modules:
        where = ("picker",) if setting == "picker" else (setting, str(name))
        raise SettingError(where, f"{name!r} is unknown, there is {_listed(modules)}", _nearest(name, modules))
    plugin = getattr(import_module(modules[name]), name.title().replace("_", ""))
    hints = get_type_hints(plugin)
    known = [field.name for field in fields(plugin)]
    for key, value in parameters.items():
        path = (setting, name, str(key))
        if key not in known:
            raise SettingError(path, f"unknown parameter, there is {_listed(['weight', *known])}", _nearest(key, known))
        if not _fits(value, hints[key]):
            raise SettingError(path, f"must be {hints[key].__name__}, not {value!r}")
    try:
        return plugin(**parameters)
    except ValueError as error:
        raise SettingError((setting, name), str(error)) from error


def _modules(setting: str) -> dict[str, str]:
    """Map each plugin name to its module, in the order of the folders."""
    return {
        found.name: f"{folder}.{found.name}"
        for folder in FOLDERS[setting]
        for found in iter_modules(import_module(folder).__path__)
    }


def _fits(value: object, wanted: type) -> bool:
    """Say whether a configured value is of a parameter's type: an int passes for a float, a bool for neither."""
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return type(value) is wanted


def _nearest(name: object, known: Mapping[str, str] | Sequence[str]) -> str | None:
    return next(iter(get_close_matches(str(name), known, 1)), None)


def _listed(names: Mapping[str, str] | Sequence[str]) -> str:
    return ", ".join(sorted(names))
