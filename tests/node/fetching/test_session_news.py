"""A session looks at partitions with news alone, and misses none: against looking at all."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.node.fetching.session_world import (
    FetchWorld,
    Happenings,
    Key,
    SessionClient,
    fetch_world,
)
from tests.support.request_contexts import context_of

NAMES = ["one", "two", "three"]


class Run:
    """One schedule. The clients take turns with what happens to the partitions."""

    def __init__(self, world: FetchWorld, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.happenings = Happenings(world, self.rng, NAMES)
        self.clients = [
            SessionClient(world),
            SessionClient(world, isolation=1, by_id=True),
            SessionClient(world, by_id=True),
            SessionClient(world, replica_id=2, by_id=True),
            SessionClient(world, replica_id=3, by_id=True),
        ]
        self.waiting: dict[SessionClient, Any] = {}
        self.steps: list[str] = []

    async def go(self, step_count: int) -> None:
        for name in NAMES:
            await self.world.create_topic(name, partitions=2)
        for _ in range(step_count):
            self.world.now_ms += self.rng.randint(0, 500)
            if self.rng.random() < 0.5:
                self.steps.append(await self.happenings.one())
            else:
                client = self.rng.choice(self.clients)
                self.steps.append(f"client {self.clients.index(client)}")
                await self.turn(client)
            self.world.check_settled(self.clients)
            await self.check_waiting()
        await self.drain()

    async def turn(self, client: SessionClient) -> None:
        waiting = self.waiting.pop(client, None)
        if waiting is not None:
            if not waiting.is_settled:
                waiting.expire()
            client.take(await waiting)
            return
        self.change_wishes(client)
        kind = self.rng.random()
        if kind < 0.25:
            reply: Any = self.world.handler.handle(
                client.next_request(max_wait_ms=60_000),
                context_of(client.version, node_id=client.replica_id),
            )
            if isinstance(reply, list):
                client.take(reply)
            else:
                self.waiting[client] = reply
        elif kind < 0.5:
            await client.fetch(max_bytes=self.rng.choice([0, 80, 200, 500]))
        elif kind < 0.55:
            client.session_id, client.epoch = 0, 0  # It has lost its session.
        else:
            await self.compared_fetch(client)

    def change_wishes(self, client: SessionClient) -> None:
        topics = self.world.view.image.topics
        possible = [
            self.world.key(name, index, by_id=client.by_id)
            for name in topics
            for index in (0, 1, 2)
        ]
        for key in [key for key in client.wanted if self.rng.random() < 0.05]:
            del client.wanted[key]
        for key in possible:
            is_wanted = key in client.wanted and not client.errors.get(key)
            if not is_wanted and self.rng.random() < 0.5:
                self.want(client, key)

    def want(self, client: SessionClient, key: Key) -> None:
        """Begin where the log has something, mostly, and with its leader epoch, mostly."""
        led = self.world.handler.serving.reader.led(has_ids=client.by_id).get(key[0], {})
        replica = led.get(key[1])
        offset, epoch = 0, -1
        if replica is not None and not replica.is_in_trouble:
            log = replica.log
            end = log.log_end_offset if client.replica_id >= 0 else log.high_watermark
            offset = self.rng.randint(log.log_start_offset, max(end, log.log_start_offset))
            if client.replica_id >= 0 or self.rng.random() < 0.5:
                epoch = replica.leader_epoch
        client.want(key, offset, leader_epoch=epoch)

    async def compared_fetch(self, client: SessionClient) -> None:
        wanted, told = dict(client.wanted), dict(client.told)
        is_full = client.session_id == 0
        expected = self.world.everything(client, wanted)
        error = await client.fetch()
        if error or client.replica_id >= 0:
            return  # What a follower asks for moves the high watermark.
        for key, result in expected.items():
            answer = client.answered.get(key)
            if answer is None:
                assert not is_full
                assert result.error_code == 0, (key, result)
                assert result.records is None, (key, result)
                assert told[key] == (result.high_watermark, result.log_start_offset), key
            else:
                assert answer.error_code == result.error_code
                assert answer.high_watermark == result.high_watermark
                assert answer.log_start_offset == result.log_start_offset
                size_bytes = 0 if result.records is None else result.records.size_bytes
                assert len(answer.records or b"") == size_bytes

    async def check_waiting(self) -> None:
        """Nobody waits for records that are there."""
        for _ in range(3):
            await asyncio.sleep(0)
        for client, reply in self.waiting.items():
            if not self.world.may_serve or reply.is_settled:
                continue
            for key, result in self.world.everything(client, client.sent).items():
                assert result.records is None, (key, result)

    async def drain(self) -> None:
        """In the end everyone has everything, and is then told nothing any more."""
        self.world.may_serve = True
        for client in list(self.waiting):
            await self.turn(client)
        for _ in range(3):
            for client in self.clients:
                for _ in range(50):
                    await client.fetch()
                    if not any(answer.records for answer in client.answered.values()):
                        break
                else:
                    pytest.fail("no end of records")
        self.world.check_settled(self.clients)
        for client in self.clients:
            await client.fetch()
            session = self.world.handler.sessions.find(client.session_id)
            assert session is not None or not client.wanted
            for key, result in self.world.everything(client, client.wanted).items():
                assert result.records is None
                assert client.errors.get(key, 0) == result.error_code
                if not result.error_code:
                    assert client.told[key] == (result.high_watermark, result.log_start_offset)
                assert (key in client.answered) == bool(result.error_code)


async def run(folder: Path, seed: int, step_count: int) -> None:
    async with fetch_world(folder) as world:
        schedule = Run(world, seed)
        try:
            await schedule.go(step_count)
        except BaseException:
            print(f"seed {seed}, steps: {' '.join(schedule.steps)}")
            raise


@pytest.mark.parametrize("seed", range(4))
async def test_a_session_is_told_what_a_request_for_everything_would_be_told(
    tmp_path: Path, seed: int
) -> None:
    await run(tmp_path, seed, 150)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
async def test_many_schedules_of_sessions(tmp_path: Path, seed: int) -> None:
    await run(tmp_path, seed, 400)
