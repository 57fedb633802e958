"""Whether an endpoint makes progress: how long it has been silent under requests, and how it is asked for one token."""

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.pool.spec import Model

TICKS: Final = 4


class Silence:
    """Counts ticks, a quarter of `health.progress_s` apart, in which an endpoint had requests and sent no byte."""

    __slots__ = ("_ticks",)

    def __init__(self) -> None:
        self._ticks = 0

    def tick(self, in_flight: int, stirred: bool) -> bool:
        """Return whether the silence has lasted: true at the fifth silent tick in a row, and then it counts anew.

        `stirred`: a byte came since the last tick. Five ticks end four whole quarters, whenever the request came.
        """
        self._ticks = self._ticks + 1 if in_flight and not stirred else 0
        if self._ticks <= TICKS:
            return False
        self._ticks = 0
        return True


def questions(models: Sequence[Model]) -> tuple[tuple[str, bytes], ...]:
    """Return path and body of the requests for one token, the second for engines that know no text completions.

    An adapter is asked for only where there is nothing else. Without a model there is nothing to ask.
    """
    plain = [model.id for model in models if not model.entry.get("parent")] or [model.id for model in models]
    if not plain:
        return ()
    shared = {"model": plain[0], "max_tokens": 1, "stream": False}
    chat = [{"role": "user", "content": "1"}]
    return (
        ("/v1/completions", msgspec.json.encode({**shared, "prompt": "1"})),
        ("/v1/chat/completions", msgspec.json.encode({**shared, "messages": chat})),
    )


def gave_a_token(status: int) -> bool | None:
    """Return whether the answer to such a question shows progress; None for 4xx: it was another kind of question.

    0 stands for no answer in time.
    """
    if 400 <= status < 500:
        return None
    return 200 <= status < 300
