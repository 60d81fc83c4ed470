"""What an administrator does while clients work: topics and partitions come now and then."""

from __future__ import annotations

import contextlib

from tidelog import Admin, TidelogError
from tidelog.errors import TopicAlreadyExists

from tests.chaos.history import PartitionKey
from tests.chaos.scene import Scene, pause

ADMIN_GAP_SECONDS = 3.0, 8.0
TOPICS_MAX = 4
PARTITIONS_MAX = 6


async def administer(scene: Scene, *, replication_factor: int, configs: dict[str, str]) -> None:
    """Make topics and partitions now and then, while records are written."""
    chance = scene.chance("admin")
    for count in range(1000):
        await pause(chance.uniform(*ADMIN_GAP_SECONDS), lambda: scene.is_writing)
        if not scene.is_writing:
            return
        topics = scene.topics()
        try:
            async with Admin(scene.bootstrap, timeout_ms=15_000, request_timeout_ms=5_000) as admin:
                if len(topics) < TOPICS_MAX and chance.random() < 0.5:
                    name = f"late-{count}"
                    scene.partitions += await create(
                        scene, admin, name, chance.randint(1, 3), replication_factor, configs
                    )
                else:
                    await _grow(scene, admin, chance.choice(topics))
        except TidelogError as error:
            scene.note("admin", f"{type(error).__name__}: {error}")


async def create(
    scene: Scene,
    admin: Admin,
    name: str,
    partition_count: int,
    replication_factor: int,
    configs: dict[str, str],
) -> list[PartitionKey]:
    """Create a topic and return its partitions."""
    # There already: by an attempt whose answer was lost.
    with contextlib.suppress(TopicAlreadyExists):
        await admin.create_topic(
            name,
            partition_count=partition_count,
            replication_factor=replication_factor,
            configs=dict(configs),
        )
    scene.note("admin", f"topic {name} with {partition_count} partitions")
    return [PartitionKey(name, number) for number in range(partition_count)]


async def _grow(scene: Scene, admin: Admin, topic: str) -> None:
    held = [name for name in scene.partitions if name.topic == topic]
    if len(held) >= PARTITIONS_MAX:
        return
    await admin.create_partitions({topic: len(held) + 1})
    scene.note("admin", f"topic {topic} has {len(held) + 1} partitions")
    scene.partitions.append(PartitionKey(topic, len(held)))
