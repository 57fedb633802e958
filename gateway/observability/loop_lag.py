"""How late the event loop is: the one figure that shows something blocking it."""

import asyncio
from collections.abc import Callable


async def measure_loop_lag(observe: Callable[[float], None], tick_s: float = 0.5) -> None:
    """Every `tick_s`, hand `observe` the seconds by which the loop woke this task too late; runs until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + tick_s
        await asyncio.sleep(tick_s)
        observe(max(0.0, loop.time() - due_s))
