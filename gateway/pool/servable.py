"""Which models an endpoint can serve: those that it lists, and adapters that it would load when one is asked for."""

import re
from collections.abc import Container, Iterable
from fnmatch import translate


class Loadable:
    """The names in `listed`, and every name that matches one of `patterns` (globs, with regard to case)."""

    __slots__ = ("_listed", "_match")

    def __init__(self, listed: frozenset[str], patterns: Iterable[str]) -> None:
        self._listed = listed
        self._match = re.compile("|".join(map(translate, patterns))).match

    def __contains__(self, model: object) -> bool:
        return model in self._listed or self._match(str(model)) is not None


def servable(listed: frozenset[str], patterns: tuple[str, ...]) -> Container[str]:
    """Return what an endpoint can serve; without patterns that is the set itself, and costs no more."""
    return Loadable(listed, patterns) if patterns else listed
