"""A driver that is paused within a commit, while another one takes over and goes on.

the first driver                        the second one
its tasks write batch 0
decides batch 0
commits the tasks' transactions
-- paused --                            finds batch 0 decided, becomes the decider
                                        writes batch 1 and commits it
                                        its tasks write batch 2, by the transactional ids of batch 0
-- goes on --
aborts unused transactions: not those
                                        commits batch 2
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tidelog_spark.sink.commit import commit_batch
from tidelog_spark.sink.decision import WrittenTask
from tidelog_spark.sink.errors import BatchSuperseded

from tests.spark.sink.driven_query import Query
from tests.spark.sink.sinks import open_transactions
from tests.support.flaky_proxy import FlakyProxy
from tests.support.transactional import (
    BROKERS,
    ProxiedBroker,
    kafka,
    tidelog,
    without_self_adding,
)
from tests.support.waiting import eventually_async
from tools.places import ToolAbsent

END_TXN, TXN_OFFSET_COMMIT, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 26, 28, 65, 66
TIMEOUT = {"kafka.transaction.timeout.ms": "60000"}
OF_DECIDER = b"-commit"  # the end of its transactional id

# The requests whose answers come when the other driver has gone on.
PAUSES: dict[str, Callable[[int, bytes], bool]] = {
    "before it lists": lambda api, frame: api == END_TXN and OF_DECIDER not in frame,
    "when it has listed": lambda api, _: api == LIST_TRANSACTIONS,
    "when it was the decider": lambda api, frame: (
        api == DESCRIBE_TRANSACTIONS and OF_DECIDER in frame
    ),
}


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxiedBroker]:
    folder: Path = tmp_path_factory.mktemp("late-driver")
    if request.param == "tidelog":
        with tidelog(folder) as brokers:
            yield brokers.proxied
        return
    try:
        with kafka(folder) as brokers:
            if request.param == "kafka":
                yield brokers.proxied
                return
            with without_self_adding(brokers):
                yield brokers.proxied
    except ToolAbsent as absent:
        pytest.skip(str(absent))


@pytest.mark.parametrize(
    "broker",
    [BROKERS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in BROKERS[1:])],
    indirect=True,
)
@pytest.mark.parametrize("pause", PAUSES)
def test_a_paused_driver_aborts_nothing_of_the_one_that_took_over(
    broker: ProxiedBroker, pause: str
) -> None:
    asyncio.run(pause_and_go_on(broker, PAUSES[pause]))


@pytest.mark.parametrize("broker", [BROKERS[0]], indirect=True)
def test_a_driver_that_is_overtaken_within_its_decision_names_the_other(
    broker: ProxiedBroker,
) -> None:
    asyncio.run(overtake(broker))


async def overtake(broker: ProxiedBroker) -> None:
    async with Pausing(broker, lambda api, _: api == TXN_OFFSET_COMMIT) as pausing:
        query = await asyncio.to_thread(Query, broker.address, **TIMEOUT)
        first = await asyncio.to_thread(query.tasks, 0, range(10))
        other = query.in_run("run-2")
        second = await asyncio.to_thread(other.tasks, 0, range(10))
        pausing.is_armed = True
        deciding = asyncio.create_task(
            commit_batch(query.options, query.run, 0, first, task_count=3)
        )
        await eventually_async(lambda: pausing.proxy.held_count > 0, "the first one is paused")
        await asyncio.to_thread(other.commit, 0, second)
        pausing.proxy.let_go()
        with pytest.raises(BatchSuperseded, match=r"another run of the query, run run-2 on "):
            await deciding
        await asyncio.to_thread(query.abort, 0, first)
        assert await asyncio.to_thread(query.values) == list(range(10))
        assert await asyncio.to_thread(open_transactions, broker.address) == []


class Pausing:
    """A proxy before a broker that holds the answers to one request, once it is armed."""

    def __init__(self, broker: ProxiedBroker, pauses: Callable[[int, bytes], bool]) -> None:
        self._pauses = pauses
        self.is_armed = False
        self.proxy = FlakyProxy(broker.port, port=broker.proxy_port, on_request=self._on_request)

    async def __aenter__(self) -> Pausing:
        await self.proxy.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.proxy.__aexit__(*error)

    def _on_request(self, frame: bytes) -> None:
        api_key = int.from_bytes(frame[:2], "big")
        if self.is_armed and self._pauses(api_key, frame):
            self.is_armed = False
            self.proxy.hold(api_key)


async def pause_and_go_on(broker: ProxiedBroker, pauses: Callable[[int, bytes], bool]) -> None:
    async with Pausing(broker, pauses) as pausing, asyncio.TaskGroup() as group:
        query = await asyncio.to_thread(Query, broker.address, **TIMEOUT)
        first = await asyncio.to_thread(query.tasks, 0, range(10))
        # Another attempt, which died: its transactional id is used again in batch 2.
        dead = await asyncio.to_thread(query.task, 0, range(0, 10, 3), attempt=1)
        pausing.is_armed = True
        paused = group.create_task(commit_batch(query.options, query.run, 0, first, task_count=3))
        await eventually_async(lambda: pausing.proxy.held_count > 0, "the first driver is paused")
        assert await asyncio.to_thread(query.tasks, 0, range(10)) == []
        await asyncio.to_thread(query.commit, 0, [])
        second = await asyncio.to_thread(attempts, query, 1, range(10, 20))
        await asyncio.to_thread(query.commit, 1, second)
        third = await asyncio.to_thread(attempts, query, 2, range(20, 30))
        ids = [one.prepared.transactional_id for one in third]
        assert dead is not None
        assert dead.prepared.transactional_id in ids
        pausing.proxy.let_go()
        await paused
        await asyncio.to_thread(query.commit, 2, third)
        assert await asyncio.to_thread(query.values) == list(range(30))
        assert await asyncio.to_thread(open_transactions, broker.address) == []


def attempts(query: Query, batch: int, numbers: range) -> list[WrittenTask]:
    """Run the second attempts of all tasks of a batch."""
    done = [query.task(batch, numbers[task::3], task=task, attempt=1) for task in range(3)]
    return [written for written in done if written is not None]
