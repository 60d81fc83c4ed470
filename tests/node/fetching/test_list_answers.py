"""A fetch served from a kept list is answered, byte for byte, as one that is read in full."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.node.fetching.ring_client import RingClient, answer_bytes
from tests.node.fetching.session_world import FetchWorld, Happenings, Key, fetch_world

NAMES = ["one", "two", "three"]
RING_PARTITIONS = 33


class Run:
    """One schedule. The clients take turns with what happens to the partitions."""

    def __init__(self, world: FetchWorld, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.happenings = Happenings(world, self.rng, NAMES)
        self.clients = [
            RingClient(world, version, isolation=self.rng.randint(0, 1))
            for version in (4, self.rng.choice([5, 7, 9]), 11, 12, 13, 17, 17)
        ]
        self.waiting: dict[RingClient, tuple[Any, memoryview]] = {}
        self.steps: list[str] = []
        self.recalled_count = 0

    async def go(self, step_count: int) -> None:
        await self.world.create_topic("ring", replicas=(1,), partitions=RING_PARTITIONS)
        for name in NAMES:
            await self.world.create_topic(name, partitions=2)
        for client in self.clients:
            client.add("ring", RING_PARTITIONS)
            for name in NAMES:
                client.add(name, 2)
            if self.rng.random() < 0.3:
                self.rng.shuffle(client.ring)
        for _ in range(step_count):
            self.world.now_ms += self.rng.randint(0, 500)
            if self.rng.random() < 0.4:
                self.steps.append(await self.happenings.one())
            else:
                client = self.rng.choice(self.clients)
                self.steps.append(f"client {self.clients.index(client)}")
                self.turn(client)
            await self.check_waiting()

    def turn(self, client: RingClient) -> None:
        waiting = self.waiting.pop(client, None)
        if waiting is not None:
            reply, frame = waiting
            reply.expire()
            self.check(client, reply.reply, frame)
            return
        self.change_wishes(client)
        is_long = self.rng.random() < 0.4
        frame = client.frame(
            max_wait_ms=60_000 * is_long,
            max_bytes=self.rng.choice([1 << 24, 1 << 24, 0, 80, 200, 500]),
        )
        kept = client.kept
        expected, is_due = client.judged(frame)
        reply = client.send(frame)
        self.recalled_count += kept is not None and client.kept is kept
        if isinstance(reply, list):
            assert answer_bytes(reply) == expected
        else:
            assert is_long
            assert not is_due
            self.waiting[client] = (reply, frame)

    def change_wishes(self, client: RingClient) -> None:
        for key in self.rng.sample(client.ring, self.rng.choice([0, 0, 1, 3])):
            self.place(client, key)
        if self.rng.random() < 0.05:
            client.isolation ^= 1
        if self.rng.random() < 0.05:
            self.rng.shuffle(client.ring)
        if self.rng.random() < 0.05:
            client.ring.append(client.ring.pop(self.rng.randrange(len(client.ring))))
        if self.rng.random() < 0.05:
            del client.ring[self.rng.randrange(len(client.ring))]
        if self.rng.random() < 0.1:
            client.first = self.rng.randrange(len(client.ring))
        if self.rng.random() < 0.2:
            for key in client.ring:
                self.place(client, key)

    def place(self, client: RingClient, key: Key) -> None:
        """Go on with the end of the log, mostly, or elsewhere."""
        led = self.world.handler.serving.reader.led(has_ids=client.by_id).get(key[0], {})
        replica = led.get(key[1])
        client.epochs.pop(key, None)
        client.offsets[key] = 0
        if replica is not None and not replica.is_in_trouble:
            log = replica.log
            end = log.last_stable_offset if client.isolation else log.high_watermark
            if self.rng.random() < 0.2:
                end = self.rng.randint(log.log_start_offset, max(end, log.log_start_offset))
            client.offsets[key] = end + (self.rng.random() < 0.02)
            if self.rng.random() < 0.5:
                client.epochs[key] = replica.leader_epoch

    async def check_waiting(self) -> None:
        """Settled answers are the judge's, and nobody waits for records or errors that are there."""
        for _ in range(3):
            await asyncio.sleep(0)
        for client, (reply, frame) in tuple(self.waiting.items()):
            if reply.is_settled:
                del self.waiting[client]
                self.check(client, reply.reply, frame)
            elif self.world.may_serve:
                assert client.may_wait(frame)

    def check(self, client: RingClient, reply: Any, frame: memoryview) -> None:
        expected, _ = client.judged(frame)
        assert answer_bytes(reply) == expected


async def run(folder: Path, seed: int, step_count: int) -> None:
    async with fetch_world(folder) as world:
        schedule = Run(world, seed)
        try:
            await schedule.go(step_count)
        except BaseException:
            print(f"seed {seed}, steps: {' '.join(schedule.steps)}")
            raise
        assert schedule.recalled_count > step_count / 20


@pytest.mark.parametrize("seed", range(4))
async def test_a_kept_list_is_answered_as_one_that_is_read_in_full(
    tmp_path: Path, seed: int
) -> None:
    await run(tmp_path, seed, 150)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
async def test_many_schedules_of_kept_lists(tmp_path: Path, seed: int) -> None:
    await run(tmp_path, seed, 400)
