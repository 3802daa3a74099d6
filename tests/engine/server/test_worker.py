"""The engine thread by itself: who left is not served, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from engine.request import Request
from engine.server.problem import HttpError
from engine.server.worker import EngineWorker, Job, State, Told
from engine.testing import request_for, tiny_model
from tests.engine.server.live import tiny_engine
from tests.waiting import WAIT_S, wait_for


def long() -> Request:
    return request_for(tiny_model(), "hi", max_tokens=5000, ignore_eos=True)


def short() -> Request:
    return request_for(tiny_model(), "hi", max_tokens=5, ignore_eos=True)


@pytest.fixture
def worker() -> Iterator[EngineWorker]:
    worker = EngineWorker(tiny_engine, max_waiting=8, stuck_after_s=60)
    worker.start()
    wait_for(lambda: worker.state is State.SERVING)
    yield worker
    assert worker.stop(WAIT_S)


def test_rows_whose_client_left_before_they_were_queued_are_not_decoded(
    worker: EngineWorker,
) -> None:
    async def leave_first() -> None:
        job = Job(worker, timeout_s=60)
        job.close()
        worker.submit(job, [long(), long()], 2)

    asyncio.run(leave_first())
    wait_for(lambda: worker.totals.rows["cancelled"] == 4)
    assert worker.num_rows == 0
    assert worker.opened is not None
    wait_for(lambda: not worker.engine.has_work)
    assert worker.engine.stats().active == 0


def test_a_closed_job_is_kept_by_nobody_until_its_time_would_be_up(worker: EngineWorker) -> None:
    async def close() -> bool:
        job = Job(worker, timeout_s=600)
        seen = weakref.ref(job)
        job.close()
        del job
        gc.collect()
        return seen() is None

    assert asyncio.run(close())


def test_a_refused_job_leaves_no_row(worker: EngineWorker) -> None:
    bad = request_for(tiny_model(), "x" * 9000)

    async def submit() -> None:
        job = Job(worker, timeout_s=60)
        with pytest.raises(ValueError, match="context"):
            worker.submit(job, [long(), bad], 1)

    asyncio.run(submit())
    assert worker.num_rows == 0
    wait_for(lambda: not worker.engine.has_work)
    assert worker.engine.stats().active == 0


def test_stopping_tells_whoever_waits(worker: EngineWorker) -> None:
    async def wait() -> None:
        job = Job(worker, timeout_s=60)
        worker.submit(job, [long()], 1)
        steps = job.steps()
        await anext(steps)
        assert await asyncio.to_thread(worker.stop, WAIT_S)
        with pytest.raises(HttpError, match="stopped") as told:
            await asyncio.wait_for(_read_on(steps), WAIT_S)
        assert told.value.status == 503
        with pytest.raises(HttpError, match="stopped"):
            worker.submit(Job(worker, timeout_s=60), [short()], 1)

    asyncio.run(wait())


async def _read_on(steps: AsyncIterator[Sequence[Told]]) -> None:
    async for _ in steps:
        pass


def test_steps_tell_every_token_once_and_the_record_last(worker: EngineWorker) -> None:
    async def read() -> list[tuple[int, int | None, bool]]:
        job = Job(worker, timeout_s=60)
        worker.submit(job, [short(), short()], 2)
        told: list[tuple[int, int | None, bool]] = []
        async for items in job.steps():
            told += [(i.row, i.event.token_id, i.completion is not None) for i in items]
            if sum(is_last for *_, is_last in told) == 4:
                return told
        return told

    told = asyncio.run(read())
    (alone,) = tiny_engine().generate([short()])
    for row in range(4):
        events = [(token, is_last) for index, token, is_last in told if index == row]
        assert [token for token, _ in events] == list(alone.token_ids)
        assert [is_last for _, is_last in events] == [False] * 4 + [True]
    assert worker.num_rows == 0
