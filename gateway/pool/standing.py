"""Follows each endpoint's standing: asks one that is silent under requests for a token, and ends ejections in time.

Invariant: an endpoint that was ejected for silence is tried by a client's request only after it has given a token.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.clock import monotonic_s
from gateway.pool import ejection
from gateway.pool.ejection import Event, Standing
from gateway.pool.endpoint import Endpoint
from gateway.pool.progress import TICKS, Silence, gave_a_token, questions
from gateway.pool.store import Pool

logger = logging.getLogger(__name__)

PATIENCE_SHARE: Final = 0.5  # of `progress_s` an engine has for its one token

Post = Callable[[str, bytes, float], Awaitable[int]]
"""Posts a JSON body to a path of one engine, with seconds for the whole answer; returns its status, 0 for none."""


class StandingWatch:
    """Follows endpoints of `pool`; `stirred(name)` tells whether a byte came from one since it was last asked.

    `progress_s` seconds of silence under requests make an engine be asked for a token, which it has half of that time
    to give; 0 asks none.
    """

    def __init__(self, pool: Pool, progress_s: float, stirred: Callable[[str], bool]) -> None:
        self._progress_s, self._stirred = progress_s, stirred
        self._news: dict[str, asyncio.Event] = {}
        pool.on_standing.append(self._changed)

    async def follow(self, endpoint: Endpoint, post: Post) -> None:
        """Follow `endpoint` until cancelled."""
        news = self._news[endpoint.name] = asyncio.Event()
        try:
            await self._follow(endpoint, post, news)
        finally:
            if self._news.get(endpoint.name) is news:
                del self._news[endpoint.name]

    def configure(self, progress_s: float) -> None:
        """Have other patience from now on."""
        self._progress_s = progress_s
        for news in self._news.values():
            news.set()

    async def _follow(self, endpoint: Endpoint, post: Post, news: asyncio.Event) -> None:
        silence = Silence()
        while True:
            news.clear()
            standing = endpoint.standing
            tick_s = self._progress_s / TICKS or None
            if standing.state is ejection.State.OUT:
                silence = Silence()
                await _elapse(news, standing.until_s - monotonic_s())
                if endpoint.standing is standing:
                    await self._try_again(endpoint, standing, post)
            elif await _elapse(news, tick_s) and silence.tick(endpoint.in_flight, self._stirred(endpoint.name)):
                await self._ask(endpoint, post)

    async def _try_again(self, endpoint: Endpoint, standing: Standing, post: Post) -> None:
        stuck = standing.silent and await self._is_stuck(endpoint, post)
        if endpoint.standing is standing:
            event = Event.STUCK if stuck else Event.DUE
            endpoint.outcome(event, monotonic_s(), "asked for one token once more, it gave none")

    async def _ask(self, endpoint: Endpoint, post: Post) -> None:
        standing = endpoint.standing
        stuck = await self._is_stuck(endpoint, post)
        # Whoever else got a byte meanwhile shows that the engine is slow, not stuck.
        if stuck and not self._stirred(endpoint.name) and endpoint.standing is standing:
            silent_s = self._progress_s * (1.0 + PATIENCE_SHARE)
            endpoint.outcome(Event.STUCK, monotonic_s(), f"silent for {silent_s:g} s, and asked for one token in vain")

    async def _is_stuck(self, endpoint: Endpoint, post: Post) -> bool:
        """Whether the engine was asked for a token and gave none; one that cannot be asked is not."""
        timeout_s = self._progress_s * PATIENCE_SHARE or 1.0
        for path, body in questions(endpoint.models):
            gave = gave_a_token(await post(path, body, timeout_s))
            if gave is not None:
                return not gave
        return False

    def _changed(self, endpoint: Endpoint) -> None:
        news = self._news.get(endpoint.name)
        if news is not None:
            news.set()
        standing = endpoint.standing
        if standing.state is ejection.State.OUT:
            out_s = standing.until_s - monotonic_s()
            logger.warning("endpoint %s is out for %.1f s: %s", endpoint.name, out_s, endpoint.why_not_ready)
        elif standing.state is ejection.State.TRIAL:
            logger.info("endpoint %s is tried again", endpoint.name)
        else:
            logger.info("endpoint %s is back", endpoint.name)


async def _elapse(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait for `timeout_s`, for ever if None; return False at once where `event` is set before."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return True
    return False
