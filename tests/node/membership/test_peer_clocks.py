"""What leases tell of the other nodes' clocks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

from tidelog_core.clock import wall_clock_ms
from tidelog_core.metadata.records import BrokerLease
from tidelog_node.membership.peer_clocks import PeerClocks

from tests.node.membership.virtual_cluster import LEASE_S, virtual_cluster
from tests.support.virtual_time import run


def lease(broker_id: int, version: int, wall_ms: int) -> BrokerLease:
    return BrokerLease(
        broker_id=broker_id,
        incarnation=UUID(int=broker_id),
        counter=version,
        wall_ms=wall_ms,
        version=version,
    )


def test_a_lease_tells_the_time_once_it_has_moved() -> None:
    clocks = PeerClocks(1)
    clocks.observe([lease(1, 5, 100), lease(2, 5, 100)], started_ms=10.0)
    assert list(clocks.witnesses()) == []  # Its broker may have been dead for days.
    assert clocks.have_heard([1])
    assert not clocks.have_heard([1, 2])
    clocks.observe([lease(1, 6, 300), lease(2, 5, 100)], started_ms=20.0)
    assert list(clocks.witnesses()) == []
    assert not clocks.have_heard([1, 2])
    clocks.observe([lease(1, 7, 400), lease(2, 6, 500)], started_ms=30.0)
    (witness,) = clocks.witnesses()
    # It was written at some time after the reading before had begun.
    assert (witness.wall_ms, witness.heard_steady_ms) == (500, 20.0)
    assert not witness.is_independent
    assert clocks.have_heard([1, 2])


def test_a_lease_of_an_earlier_version_tells_nothing() -> None:
    clocks = PeerClocks(1)
    clocks.observe([lease(2, 5, -1)], started_ms=10.0)
    clocks.observe([lease(2, 6, -1)], started_ms=20.0)
    assert list(clocks.witnesses()) == []
    assert clocks.have_heard([2])  # Nobody waits for what it never tells.


def test_every_node_hears_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=3) as cluster:
            await asyncio.sleep(LEASE_S)
            for member in cluster:
                witnesses = list(member.membership.peer_clocks.witnesses())
                assert len(witnesses) == 2
                for witness in witnesses:
                    assert 0 <= wall_clock_ms() - witness.wall_ms < 60_000

    run(main())
