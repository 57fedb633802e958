"""Loop lag: what blocks the loop is seen."""

import asyncio

from gateway.observability.loop_lag import measure_loop_lag


async def test_a_blocked_loop_shows_as_lag_and_a_free_one_goes_on_ticking():
    loop = asyncio.get_running_loop()
    seen: asyncio.Queue[float] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(measure_loop_lag(seen.put_nowait, tick_s=0.001))
        await asyncio.sleep(0)
        blocked_until_s = loop.time() + 0.03
        while loop.time() < blocked_until_s:
            pass
        lags = [await seen.get() for _ in range(3)]
        task.cancel()
    assert lags[0] >= 0.02
    assert min(lags) >= 0
