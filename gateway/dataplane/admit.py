"""Flow control: wait for a turn, then plan the route in the same breath in which the turn came."""

import asyncio
from collections.abc import Callable

from gateway.dataplane.records import Exchange, Plan
from gateway.flowcontrol.controller import Admission


async def admit(exchange: Exchange, model: str, admission: Admission, plan: Callable[[], Plan | None]) -> Plan:
    """Return the plan of a request that may go, its leases taken.

    `plan` returns None where there is no room after all. Raises ModelNotFound, QueueFull, NoEndpoint, ClientGone.
    """
    admission.check_model(model)
    if admission.may_go(model) and (planned := plan()) is not None:
        return planned
    try:
        return await _queue(exchange, model, admission, plan)
    finally:
        # Room for one may be room for more; and a turn that was not used goes to the next.
        admission.wake_next()


async def _queue(exchange: Exchange, model: str, admission: Admission, plan: Callable[[], Plan | None]) -> Plan:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + admission.max_wait_s
    place = None
    while True:
        place = admission.enter(model, loop, place)
        try:
            exchange.wait_for(place)
            await place.wait(max(0.0, deadline_s - loop.time()))
        except TimeoutError:
            raise admission.late(model) from None
        finally:
            exchange.awaiting = None
            admission.leave(place)
        admission.check_model(model)
        if not exchange.client.gone and (planned := plan()) is not None:
            return planned
