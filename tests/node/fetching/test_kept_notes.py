"""What leaders say of diskless partitions before this node has what acts on it."""

from __future__ import annotations

from pathlib import Path

from tidelog_core.replication.follower_state import Append, FollowerState
from tidelog_core.subscribers import Subscribers
from tidelog_node.follower.kept_notes import KeptNotes
from tidelog_node.replicas.replica import Replica

from tests.node.fetching.session_world import FetchWorld, fetch_world

LEADER, NEXT_LEADER = 2, 3


def follower_of(world: FetchWorld, topic: str) -> tuple[Replica, FollowerState]:
    replica = world.replica(topic)
    assert replica.role is not None
    assert replica.role.follower is not None
    return replica, replica.role.follower


async def test_the_last_note_on_each_replica_is_passed_on_unless_it_follows_otherwise(
    tmp_path: Path,
) -> None:
    """A leader says each high watermark once."""
    async with fetch_world(tmp_path) as world:
        for name in ("kept", "moved"):
            await world.create_topic(name)
            await world.change_partition(name, 0, leader=LEADER, leader_epoch=1)
        committed = Subscribers[[Replica, FollowerState, Append]]()
        kept = KeptNotes(committed)
        replica, follower = follower_of(world, "kept")
        committed.notify(*follower_of(world, "moved"), Append(5, 0))
        committed.notify(replica, follower, Append(7, 0))
        committed.notify(replica, follower, Append(9, 1))
        await world.change_partition("moved", 0, leader=NEXT_LEADER, leader_epoch=2)
        told: list[tuple[Replica, FollowerState, Append]] = []
        committed.subscribe(lambda *note: told.append(note))
        kept.pass_on()
        assert told == [(replica, follower, Append(9, 1))]
        committed.notify(replica, follower, Append(11, 1))
        assert told[1:] == [(replica, follower, Append(11, 1))]
        assert len(committed) == 1
