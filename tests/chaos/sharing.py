"""Members of a share group: they get records of any partition, and accept them or give them back.

They speak to the partitions' leaders as bytes (``ShareMember``), in threads of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from tidelog import Admin
from tidelog_core.wire_messages import build

from tests.chaos.history import Outcome, PartitionKey, Settled, Shared
from tests.chaos.scene import Delivered, Scene
from tests.support.share_member import (
    ACCEPT,
    RELEASE,
    ShareMember,
    acquired,
    make_group,
    partition_of,
    values,
)
from tests.support.wire_client import WireClient

SHARE_GROUP = "share-group"
SESSION_SECONDS = 3.0, 12.0
FETCH_WAIT_MS = 300
RECORDS_MAX = 50  # of one fetch
RELEASED_PART = 0.2  # of what a member gets for the first times
ABRUPT_PART = 0.3  # of the sessions end with records in hand
ACCEPTED_FROM = 3  # deliveries on, whatever chance says: the limit is not to be reached
AGAIN_SECONDS = 0.3


async def make_share_group(scene: Scene, topic: str) -> None:
    """Make the group, which is to read the topic from its start."""
    async with Admin(scene.bootstrap) as admin:
        await admin.alter_configs("group", SHARE_GROUP, set={"share.auto.offset.reset": "earliest"})
    await asyncio.to_thread(make_group, _ports(scene)[0], SHARE_GROUP, topic)


class ShareReader:
    """One member of the group, session after session."""

    def __init__(self, scene: Scene, name: str, topic: str, delivered: Delivered) -> None:
        """``delivered`` is the whole group's, whatever became of a record then."""
        self._scene = scene
        self._name = name
        self._topic = topic
        self._delivered = delivered
        self._chance = scene.chance(name)

    async def run(self) -> None:
        """Run sessions until the scene wants no more reads."""
        with ThreadPoolExecutor(1, thread_name_prefix=self._name) as thread:
            await asyncio.get_running_loop().run_in_executor(thread, self._run)

    def _run(self) -> None:
        count = 0
        while self._scene.is_reading:
            session = f"{self._name}.{count}"
            # Whatever faults do to a connection; what came of a request is noted where it is.
            with contextlib.suppress(OSError, EOFError):
                self._session(session)
            count += 1
            time.sleep(AGAIN_SECONDS)

    def _session(self, session: str) -> None:
        """Be with one node for a while, for all partitions that it leads."""
        scene, chance = self._scene, self._chance
        port, partitions = self._choose_leader()
        end_s = scene.clock_s() + chance.uniform(*SESSION_SECONDS)
        is_abrupt = chance.random() < ABRUPT_PART
        with ShareMember(port, SHARE_GROUP, session, self._topic) as member:
            while scene.is_reading:
                asked_s = scene.clock_s()
                answer = member.fetch(
                    partitions=partitions, max_wait_ms=FETCH_WAIT_MS, max_records=RECORDS_MAX
                )
                if answer.error_code is not ErrorCode.none:
                    return
                told = [one for one in partitions if partition_of(answer, one) is not None]
                handed = [self._note(session, answer, one, asked_s) for one in told]
                if is_abrupt and scene.clock_s() > end_s and any(handed):
                    return
                for partition in told:
                    if partition_of(answer, partition).error_code != ErrorCode.none:
                        return  # It leads somewhere else by now.
                    self._settle(session, member, answer, partition)
                if scene.clock_s() > end_s:
                    member.close_session()
                    return

    def _note(self, session: str, answer: Any, partition: int, asked_s: float) -> int:
        """Put what was delivered into the history; return how many records that is."""
        scene, got = self._scene, values(answer, partition)
        for first, last, count in acquired(answer, partition):
            records = tuple(
                (offset, (value or b"").decode())
                for offset, value in sorted(got.items())
                if first <= offset <= last
            )
            scene.history.add(
                Shared(session, asked_s, scene.clock_s(), self._topic, partition, count, records)
            )
        self._delivered.add(PartitionKey(self._topic, partition), got)
        return len(got)

    def _settle(self, session: str, member: ShareMember, answer: Any, partition: int) -> None:
        scene = self._scene
        for first, last, count in acquired(answer, partition):
            is_accepted = count >= ACCEPTED_FROM or self._chance.random() >= RELEASED_PART
            said_s, outcome = scene.clock_s(), Outcome.INFO
            try:
                said = (first, last, [ACCEPT if is_accepted else RELEASE])
                code = member.acknowledge(said, partition=partition)
                outcome = Outcome.OK if code is ErrorCode.none else Outcome.INFO
            finally:
                scene.history.add(
                    Settled(
                        session,
                        self._topic,
                        partition,
                        first,
                        last,
                        is_accepted,
                        said_s,
                        scene.clock_s(),
                        outcome,
                    )
                )

    def _choose_leader(self) -> tuple[int, list[int]]:
        """Return the port of a node and the partitions that it leads."""
        with WireClient(self._chance.choice(_ports(self._scene))) as client:
            topics = (build(MetadataRequestTopic, topic_id=None, name=self._topic),)
            found = client.call(build(MetadataRequest, topics=topics))
        ports = {int(broker.node_id): int(broker.port) for broker in found.brokers}
        leaders: dict[int, list[int]] = {}
        for partition in found.topics[0].partitions:
            if int(partition.leader_id) in ports:
                led = leaders.setdefault(int(partition.leader_id), [])
                led.append(int(partition.partition_index))
        if not leaders:
            raise ConnectionError(f"nobody leads {self._topic}")
        leader = self._chance.choice(sorted(leaders))
        return ports[leader], sorted(leaders[leader])


def _ports(scene: Scene) -> list[int]:
    return [int(address.rpartition(":")[2]) for address in scene.bootstrap.split(",")]
