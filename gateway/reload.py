"""Configuration reload: read again when asked, tell what differs, apply it; what cannot be used is refused.

Invariant: whatever the new file holds, the gateway goes on, by the new configuration whole or by the old one whole.
"""

import asyncio
import logging
from collections.abc import Callable

from gateway.config import Config
from gateway.config_diff import applicable, changes
from gateway.errors import ConfigError
from gateway.observability.logs import set_level

logger = logging.getLogger(__name__)

Reread = Callable[[], Config]


class Reload:
    """Reloads for one gateway.

    `reread` reads the same sources as at the start and raises ConfigError; `current` is the configuration that holds;
    `apply(old, new)` makes `new` hold for what comes next, without a wait, and changes nothing where it raises; the two
    may be equal, while the files that they name hold something else now.
    """

    def __init__(
        self, reread: Reread | None, current: Callable[[], Config], apply: Callable[[Config, Config], None]
    ) -> None:
        self._reread, self._current, self._apply = reread, current, apply
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Have the configuration read again; asking again before that has begun asks for nothing more."""
        self._asked.set()

    async def run(self) -> None:
        """Reload whenever asked, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self.once()

    async def once(self) -> None:
        """Reload now."""
        if self._reread is None:
            logger.info("reload: this gateway has no sources to read its configuration from again")
            return
        try:
            self.take(await asyncio.to_thread(self._reread))
        except ConfigError as error:
            _refuse(error)
        except Exception:  # a fault of ours must not end a gateway that serves
            logger.exception("reload failed: the configuration is as it was")

    def take(self, told: Config) -> None:
        """Apply a configuration that was read for a running gateway, and tell what differs."""
        old = self._current()
        new, found = applicable(old, told), changes(old, told)
        self._apply(old, new)
        for change in found:
            logger.log(logging.WARNING if change.needs_restart else logging.INFO, "reload: %s", change.line())
        logger.info("reload: %s", f"{len(found)} changed" if found else "nothing has changed")
        if new.log_level != old.log_level:  # last, so that its own change can be read
            set_level(new.log_level)


def _refuse(error: ConfigError) -> None:
    for line in (*str(error).splitlines(), "the configuration is as it was"):
        logger.error("reload refused: %s", line)
