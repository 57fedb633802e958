"""A mailbox whose reader has left takes what still comes, and says nothing."""

import asyncio

from gateway.simulator.driver import Mailbox
from gateway.simulator.job import Job
from gateway.simulator.tokens import Sampler


async def test_a_token_for_a_reader_that_was_cancelled_is_no_error():
    job = Job(id="j", prompt=[1], max_tokens=9, sampler=Sampler("m", [1], None, 9))
    mailbox = Mailbox(1, eager=True)
    reader = asyncio.ensure_future(mailbox.take())
    await asyncio.sleep(0)
    reader.cancel()
    mailbox.put(job, 7)  # in the same turn: the reader has not left yet
    assert (await asyncio.gather(reader, return_exceptions=True))[0].__class__ is asyncio.CancelledError
    assert await mailbox.take() == {job: [7]}
