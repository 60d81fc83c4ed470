"""Producers write while their gateway and its leaders get into trouble: seeded schedules.

Some write through the gateway, some to the leader, and some go from one to the other at any time.
The producers do what librdkafka does with the answers. Whatever gets lost, what one of them takes for
delivered is in the log, in its order, and once as long as the producer has not begun another epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import CorruptRecordBatch, ErrorCode
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.records.decode import decode_records
from tidelog_core.records.header import iter_headers
from tidelog_node.diskless.chain.chain_partition import ChainPartition
from tidelog_node.diskless.gateway import trusted_gateways

from tests.node.diskless.gateway_world import Node, World
from tests.support import virtual_time
from tests.support.batches import batch_of
from tests.support.inline_executor import InlineExecutor
from tests.support.wal_scene import Faults

IN_FLIGHT_MAX = 5
MESSAGES = 8
PRODUCERS = 15  # that begin one after the other: no log knows them then
BEGIN_SECONDS_MAX = 0.5
WAY_SECONDS = 0.01  # of a request or an answer between a producer and its leader
DIRECT = "l"  # as in a cluster without gateways
SKIPPED = (ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id)
AGAIN = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.request_timed_out,
    ErrorCode.corrupt_message,
    ErrorCode.kafka_storage_error,
)


class Producer:
    """Sends numbered messages, one a batch, and repeats them as librdkafka does."""

    def __init__(self, world: World, producer_id: int, ways: str, chance: Random) -> None:
        """``ways`` has the nodes that it may write to, by their initial letters."""
        self.world = world
        self._ways = ways
        self._chance = chance
        self.producer_id = producer_id
        self.delivered: set[int] = set()
        self.epoch = 0
        self.implicit_count = 0  # deliveries without an answer of their own
        self._base = 0  # the message with sequence 0 in this epoch
        self._next_sequence = 0  # behind the last one in this epoch that was acknowledged
        self._queue = list(range(MESSAGES))
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._is_draining = False
        self._last_of: dict[Node, asyncio.Event] = {}  # set once the last request has its answer
        self._stir = asyncio.Event()

    async def run(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while self._queue or self._in_flight:
            if self._is_draining and not self._in_flight:
                self._is_draining = False
                self.epoch += 1
                self._base = self._queue[0] if self._queue else 0
                self._next_sequence = 0
            while self._queue and not self._is_draining and len(self._in_flight) < IN_FLIGHT_MAX:
                message = self._queue.pop(0)
                sending = asyncio.create_task(self._send(message))
                sending.add_done_callback(lambda _: self._stir.set())
                self._in_flight[message] = sending
                await asyncio.sleep(0.002)
            for sending in self._in_flight.values():
                if sending.done():
                    sending.result()  # It has failed, and waits for nothing any more.
            self._stir.clear()
            if self._in_flight:
                await self._stir.wait()

    async def _send(self, message: int) -> None:
        sequence = message - self._base
        data = bytearray(
            batch_of(
                b"%d-%d" % (self.producer_id, message),
                producer=(self.producer_id, self.epoch, sequence),
            )
        )
        if self._ways == DIRECT:
            await asyncio.sleep(WAY_SECONDS)
        node = self._node()
        before, self._last_of[node] = self._last_of.get(node), asyncio.Event()
        turn = self._last_of[node]
        try:
            answer = await node.send(data)
            if before is not None:  # A connection has its answers in the order of the requests.
                await before.wait()
        finally:
            turn.set()
        if self._ways == DIRECT:
            await asyncio.sleep(WAY_SECONDS)
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.none:
            self.delivered.add(message)
            self._next_sequence = max(self._next_sequence, sequence + 1)
            # Those that wait to be sent again: a log takes no batch without those before.
            implied = [other for other in self._queue if other < message]
            self.implicit_count += len(implied)
            self.delivered.update(implied)
            self._queue = [other for other in self._queue if other > message]
        elif code in SKIPPED and message < max(self.delivered, default=-1):
            # A repetition of what a later answer has implied. The log knows five batches only.
            self.implicit_count += 1
            self.delivered.add(message)
        else:
            assert code in (*SKIPPED, *AGAIN), code
            if code in SKIPPED:
                # Nothing else may be the reason, so the producer would give up for good. Other gaps
                # it has made itself: messages behind a lost one were delivered before the epoch.
                assert sequence != self._next_sequence, self._told(message, code)
                self._is_draining = True
            self._queue = sorted([*self._queue, message])
        del self._in_flight[message]
        self._stir.set()

    def _node(self) -> Node:
        is_direct = self._chance.choice(self._ways) == "l"
        return self.world.leader if is_direct else self.world.gateway

    def _told(self, message: int, code: ErrorCode) -> str:
        log = [
            (header.producer_epoch, header.base_sequence, header.base_offset)
            for _, header in iter_headers(self.world.log_content())
            if header.producer_id == self.producer_id
        ]
        entry = self.world.leader.replica.log.producers.state.entry(self.producer_id)
        return (
            f"{code.name} for message {message} of producer {self.producer_id}, epoch {self.epoch},"
            f" base {self._base}; delivered {sorted(self.delivered)}, in flight"
            f" {sorted(self._in_flight)}, queued {self._queue}; the log has {log}, knows {entry}"
        )


async def lose_answers(world: World, chance: Random) -> None:
    world.is_answer_lost = True
    await asyncio.sleep(chance.random() * 0.05)
    world.is_answer_lost = False


async def lose_requests(world: World, chance: Random) -> None:
    world.is_hanging = True
    await asyncio.sleep(chance.random() * 0.05)
    world.break_connection()


async def cut_off(world: World, chance: Random) -> None:
    world.is_leader_reachable = False
    await asyncio.sleep(chance.random() * 0.05)
    world.is_leader_reachable = True


async def kill_leader(world: World, chance: Random) -> None:
    """What it was told may be answered by nobody."""
    world.is_hanging = chance.random() < 0.5
    await asyncio.sleep(chance.random() * 0.02)
    await world.kill_leader(f"process {chance.random()}")
    if chance.random() < 0.5:
        world.break_connection()
    world.is_hanging = False


async def stop_leading(world: World, chance: Random) -> None:
    replica = world.leader.replica
    world.leader.chain.leave(replica)
    world.leader.replicas.end_lead(replica)
    await asyncio.sleep(chance.random() * 0.02)
    await world.kill_leader(f"process {chance.random()}")


async def seal_gateway(world: World, chance: Random) -> None:
    world.gateway.chain.abandon(f"sealed {chance.random()}")


async def hang_a_read(world: World, chance: Random) -> None:
    """Not two in a row: the second one would be sent in place of the first, and time out."""
    leader = world.leader
    if leader.hung_count >= leader.hang_count:
        leader.hang_next_read()


async def damage_for_a_while(world: World, chance: Random) -> None:
    """Have one of the gateway's newest objects have other bytes, or be gone, for a while."""
    chain = world.gateway.chain
    if not chain.committed_end:
        return
    sequence = max(0, chain.committed_end - 1 - chance.randrange(3))
    key = wal_key(world.gateway.view.image.cluster_id, chain.name, sequence)
    whole = await world.objects.get(key)
    if chance.random() < 0.5:
        await world.objects.delete([key])
    else:
        await world.objects.replace(key, whole[:112] + bytes(len(whole) - 112))
    await asyncio.sleep(chance.random() * 0.2)
    await world.objects.replace(key, whole)


async def cannot_store(world: World, chance: Random) -> None:
    """Have the gateway take nothing for a while, as without its way to the bucket."""
    membership: Any = world.gateway.context.membership
    membership.can_store = False
    await asyncio.sleep(chance.random() * 0.1)
    membership.can_store = True


TROUBLE: tuple[Callable[[World, Random], Awaitable[None]], ...] = (
    lose_answers,
    lose_requests,
    cut_off,
    kill_leader,
    kill_leader,
    stop_leading,
    seal_gateway,
    hang_a_read,
    damage_for_a_while,
    damage_for_a_while,
    cannot_store,
)


async def run_schedule(
    folder: Path, seed: int, ways: str = "g", *, overlaps: bool = False
) -> list[Producer]:
    """Run one schedule; return its producers."""
    with pytest.MonkeyPatch.context() as patch:
        print(f"seed {seed}, ways {ways}, overlaps {overlaps}")
        patch.setattr(trusted_gateways, "OBJECTS_MIN", seed % 3)
        return await _run_schedule(folder, seed, ways, overlaps=overlaps)


async def _run_schedule(folder: Path, seed: int, ways: str, *, overlaps: bool) -> list[Producer]:
    chance = Random(seed)
    world = World(
        folder,
        objects=MemoryObjectStore(),
        executor=InlineExecutor(),
        chance=Random(seed),
        overlaps=overlaps,
    )
    await world.start()
    if ways == DIRECT:
        world.leader.produce.gateway = None
    try:
        world.store.faults = Faults(
            refused=0.05, lost=0.1, vanished=0.05, slow_s=0.005, slow_read_s=0.005
        )
        producers = [
            Producer(world, producer_id, ways, Random(seed + producer_id))
            for producer_id in range(PRODUCERS)
        ]
        tasks = [
            asyncio.create_task(producer.run(chance.random() * BEGIN_SECONDS_MAX))
            for producer in producers
        ]
        while not all(task.done() for task in tasks) and chance.random() < 0.9:
            await asyncio.sleep(chance.random() * 0.06)
            await chance.choice(TROUBLE)(world, chance)
        world.break_connection()
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        check(world, producers)
        return producers
    finally:
        await world.stop()


def check(world: World, producers: list[Producer]) -> None:
    """Hold what the producers take for delivered against the log."""
    content = world.log_content()
    values = [
        record.value
        for position, _ in iter_headers(content)
        for record in decode_records(content, position)
    ]
    for producer in producers:
        prefix = b"%d-" % producer.producer_id
        found = [int(v.split(b"-")[1]) for v in values if v is not None and v.startswith(prefix)]
        assert producer.delivered == set(range(MESSAGES))
        assert set(found) == producer.delivered, "what is delivered is in the log"
        firsts = list(dict.fromkeys(found))
        assert firsts == sorted(firsts)
        assert producer.epoch or len(found) == len(firsts), "nothing is doubled in an epoch"


@pytest.mark.parametrize(("ways", "seed"), [("g", 1), ("g", 2), ("l", 10), ("l", 11), ("gl", 8)])
def test_what_a_producer_takes_for_delivered_is_in_the_log(
    tmp_path: Path, ways: str, seed: int
) -> None:
    virtual_time.run(run_schedule(tmp_path, seed, ways))


@pytest.mark.parametrize(("ways", "seed"), [("g", 1), ("g", 3), ("gl", 118)])
def test_it_is_in_the_log_if_references_are_stored_before_it_is_read(
    tmp_path: Path, ways: str, seed: int
) -> None:
    virtual_time.run(run_schedule(tmp_path, seed, ways, overlaps=True))


def run_some(folder: Path, *seeds: int) -> None:
    for seed in seeds:
        virtual_time.run(run_schedule(folder / str(seed), seed, overlaps=True))


def test_without_its_stop_the_high_watermark_passes_batches_without_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes the schedules above pass: the checker sees it if it is left out."""

    def forget(partition: ChainPartition, end_offset: int) -> int:
        return end_offset

    monkeypatch.setattr(ChainPartition, "note_committed", forget)
    with pytest.raises((AssertionError, CorruptRecordBatch)):
        run_some(tmp_path, 24, 25)


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["g", "l", "gl"])
@pytest.mark.parametrize("seed", range(10, 40))
def test_many_schedules(tmp_path: Path, seed: int, ways: str) -> None:
    virtual_time.run(run_schedule(tmp_path, seed, ways))


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["g", "gl"])
@pytest.mark.parametrize("seed", range(10, 60))
def test_many_overlapped_schedules(tmp_path: Path, seed: int, ways: str) -> None:
    virtual_time.run(run_schedule(tmp_path, seed, ways, overlaps=True))
