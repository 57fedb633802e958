"""What SIGHUP means: a reload, or that the terminal was closed."""

import os
from collections.abc import Callable


def on_hang_up(reload: Callable[[], None], stop: Callable[[], None]) -> Callable[[], None]:
    """Return a handler of SIGHUP: `stop` where it says that the terminal of this process was closed, else `reload`."""
    terminal = next((one for one in range(3) if os.isatty(one)), None)

    def hang_up() -> None:
        if terminal is None or os.isatty(terminal):
            reload()
        else:
            stop()

    return hang_up
