"""Answers one inference request of a simulated engine: jobs in, body or chunks out, faults on the way.

Invariant: whatever ends the request, each of its jobs has ended when `answer` returns.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.clock import wall_s
from gateway.simulator.asked import Asked
from gateway.simulator.choice import Choice
from gateway.simulator.driver import Driver, Mailbox
from gateway.simulator.exchange import EVENTS, ConnectionCut, Exchange
from gateway.simulator.faults import Faults
from gateway.simulator.job import Job
from gateway.simulator.nixl import Remote, remote_of
from gateway.simulator.openai_shapes import DONE, Answer, Cache, encode, error_body, event
from gateway.simulator.refusal import Refusal
from gateway.simulator.tokens import Sampler

FAILED = Refusal(500, "Internal server error", "InternalServerError")


class Inference:
    """Serves inference requests on `driver`; `mean_output_tokens` is how long free answers are on average."""

    def __init__(self, driver: Driver, faults: Faults, mean_output_tokens: int) -> None:
        self._driver = driver
        self._faults = faults
        self._mean = mean_output_tokens
        self._serial = 0

    async def answer(self, asked: Asked, request_id: str, exchange: Exchange) -> None:
        """Answer through `exchange`. Raises Refusal before anything is sent, ConnectionCut where a fault wants it."""
        await self._strike(asked)
        answer_id = ("chatcmpl-" if asked.chat else "cmpl-") + request_id
        jobs = self._jobs(asked, answer_id)
        choices = {job: Choice(index, job, asked) for index, job in enumerate(jobs)}
        box = Mailbox(len(jobs), eager=asked.stream or bool(asked.stop))
        shape = Answer(asked, answer_id, int(wall_s()), sum(map(len, asked.prompts)))
        try:
            self._submit(jobs, box)
            if asked.stream:
                await self._stream(shape, choices, box, exchange)
            else:
                await self._whole(shape, choices, box, exchange)
        finally:
            for job in jobs:
                self._driver.abort(job)

    def _submit(self, jobs: Mapping[Job, Remote | None], box: Mailbox) -> None:
        try:
            self._driver.submit(jobs, box)
        except ValueError as error:
            raise Refusal(400, str(error)) from error

    def _jobs(self, asked: Asked, answer_id: str) -> dict[Job, Remote | None]:
        jobs: dict[Job, Remote | None] = {}
        remote = remote_of(asked.kv, self._driver.engine.profile.block_size)
        for prompt in asked.prompts:
            for key in asked.keys:
                self._serial += 1
                job = Job(
                    id=f"{answer_id}-{self._serial:08x}",
                    prompt=prompt,
                    max_tokens=asked.max_tokens,
                    sampler=Sampler(asked.model, prompt, key, self._mean),
                    min_tokens=asked.min_tokens,
                    ignore_eos=asked.ignore_eos,
                    stop_tokens=asked.stop_tokens,
                    forced=asked.forced,
                    salt=asked.salt,
                    pin=asked.kv is not None and asked.kv.get("do_remote_decode") is True,
                )
                jobs[job] = remote
                remote = None  # what one choice has pulled, the others find in the cache
        return jobs

    async def _strike(self, asked: Asked) -> None:
        faults, kv = self._faults, asked.kv or {}
        status = faults.number("error")
        if status is None and kv.get("do_remote_decode"):
            status = faults.number("prefill-error")
        if status is None and kv.get("do_remote_prefill"):
            status = faults.number("decode-error")
        if status is not None:
            raise Refusal(int(status), "a fault was asked for", "InternalServerError")
        if faults.value("reset") is not None:
            raise ConnectionCut
        if faults.value("hang") is not None:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(faults.number("slow-start") or 0)

    async def _whole(self, shape: Answer, choices: Mapping[Job, Choice], box: Mailbox, exchange: Exchange) -> None:
        while box.open:
            self._feed(await box.take(), choices, box)
        if any(choice.finish_reason == "error" for choice in choices.values()):
            raise FAILED
        body = encode(shape.body(list(choices.values()), self._cached(choices), self._handoff(choices)))
        if self._faults.value("broken-json") is not None:
            body = body[: len(body) // 2]
        await exchange.reply(200, body)

    async def _stream(self, shape: Answer, choices: Mapping[Job, Choice], box: Mailbox, exchange: Exchange) -> None:
        asked = shape.asked
        new = await box.take()
        await exchange.begin(200, EVENTS)
        if asked.chat:
            await exchange.chunk(b"".join(map(shape.opening, choices.values())))
        cut, short = self._faults.number("reset-mid-stream"), self._faults.number("truncate")
        sent = 0
        while True:
            self._feed(new, choices, box)
            if any(choice.finish_reason == "error" for choice in choices.values()):
                await exchange.chunk(event(error_body(FAILED)) + DONE, more=False)
                return
            data = b"".join(shape.chunk(choices[job]) for job in new)
            if data:
                await exchange.chunk(data)
            sent += 1
            if cut is not None and sent >= cut:
                raise ConnectionCut
            if short is not None and sent >= short:
                await exchange.chunk(b"", more=False)
                return
            if not box.open:
                break
            new = await box.take()
        tail = shape.usage_chunk(choices.values(), self._cached(choices)) if asked.include_usage else b""
        await exchange.chunk(tail + DONE, more=False)

    def _feed(self, new: Mapping[Job, Sequence[int]], choices: Mapping[Job, Choice], box: Mailbox) -> None:
        for job, tokens in new.items():
            choice = choices[job]
            if choice.finish_reason is None and choice.feed(tokens):
                box.open -= 1
                self._driver.abort(job, told="stop")

    def _cached(self, choices: Mapping[Job, Choice]) -> Cache:
        first, choice = next(iter(choices.items()))
        told = self._told(choices)
        created = first.created_cache_tokens(self._driver.engine.profile.block_size) if choice.asked.chat else None
        return Cache(first.cached_tokens if told is None else told, created)

    def _told(self, choices: Mapping[Job, Choice]) -> int | None:
        kv = next(iter(choices.values())).asked.kv
        told = kv.get("remote_prefill_cached_tokens") if kv is not None and kv.get("do_remote_prefill") else None
        return told if isinstance(told, int) else None

    def _handoff(self, choices: Mapping[Job, Choice]) -> dict[str, Any] | None:
        handoff = None
        for job in choices:
            pin = self._driver.engine.pins.get(job.id)
            if pin is None:
                continue
            side = self._driver.side
            if self._faults.value("prefill-no-params") is not None:
                side.release(job.id)
                continue
            handoff = {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": [list(pin.blocks)],
                "remote_engine_id": side.engine_id,
                "remote_request_id": job.id,
                "remote_host": side.host,
                "remote_port": side.port,
                "tp_size": 1,
                "dcp_size": 1,
                "pp_size": 1,
                "remote_num_tokens": pin.tokens,
                "remote_blocks_expiry_time": None,
                "transfer_mode": "pull",
                "remote_prefill_cached_tokens": job.cached_tokens,
            }
        return handoff
