"""The metadata store's file taken away from under a node: it notices, and acknowledges nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tidelog_core.metadata.location import loss_of
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.replication.election import LeaderElector
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_node.membership.lease_keeper import LeaseKeeper
from tidelog_node.membership.lease_thread import LeaseThread
from tidelog_node.membership.membership import Membership
from tidelog_node.membership.node_loop import STORE_LOST, NodeLoop
from tidelog_node.node_health import NodeHealth

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

FILES = ("metadata.db", "metadata.db-wal", "metadata.db-shm")
NOTICED_SECONDS = 1.0
SLACK_SECONDS = 4.0  # what a busy machine may take longer


def produce(client: WireClient) -> ErrorCode:
    return ErrorCode(client.produce("t", batch_of(b"x")).error_code)


def wait_until(client: WireClient, expected: ErrorCode, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (code := produce(client)) is not expected:
        assert time.monotonic() < deadline, code
        time.sleep(0.02)


def take_away(folder: Path, how: Callable[[Path], object]) -> None:
    for name in FILES:
        how(folder / name)


def start(tmp_path: Path) -> NodeProcess:
    node = NodeProcess(tmp_path / "node").start()
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
    return node


async def test_the_nodes_health_tells_of_a_lost_store_for_as_long_as_it_is_lost(
    tmp_path: Path,
) -> None:
    store = SqliteMetadataStore(tmp_path / FILES[0])
    membership = Membership(1, times=LeaseTimes(), elector=LeaderElector(1))
    health = NodeHealth()
    keeper = LeaseKeeper(
        membership=membership,
        store=store,
        node_loop=NodeLoop(membership, read_cluster=lambda: asyncio.sleep(0), health=health),
        incarnation=uuid4(),
        found=None,
        is_store_lost=loss_of(store),
    )
    thread = LeaseThread()  # which may tell the node's loop and touch nothing of it
    try:
        await thread.run(keeper.step())
        assert health.is_well
        aside = tmp_path / "aside"
        aside.mkdir()
        take_away(tmp_path, lambda path: path.rename(aside / path.name))
        for _ in range(2):
            await thread.run(keeper.step())
            (reason,) = health.reasons
            assert reason.name == STORE_LOST
        take_away(aside, lambda path: path.rename(tmp_path / path.name))
        await thread.run(keeper.step())
        assert health.is_well
    finally:
        await thread.run(store.close())
        await thread.close()


def errors(node: NodeProcess) -> list[str]:
    return [line for line in node.log.splitlines() if " ERROR " in line]


def test_a_node_whose_store_is_deleted_stops_serving_and_its_files_can_be_saved(
    tmp_path: Path,
) -> None:
    """As docs/restore.md says: from the descriptors of a node that still runs."""
    node = start(tmp_path)
    try:
        with WireClient(node.port) as client:
            assert produce(client) is ErrorCode.none
            take_away(node.data_dir, os.unlink)
            wait_until(client, ErrorCode.not_leader_or_follower, NOTICED_SECONDS + SLACK_SECONDS)
            time.sleep(1)  # It does not come back, and says it once.
            assert produce(client) is ErrorCode.not_leader_or_follower
        node.wait_logged(" ERROR ")
        (error,) = errors(node)
        assert "metadata store was deleted or replaced" in error
        assert "docs/restore.md" in error
        for name in FILES[:2]:
            (held, *_) = [
                descriptor
                for descriptor, target in node.open_files().items()
                if target == f"{node.data_dir / name} (deleted)"
            ]
            shutil.copyfile(held, node.data_dir / name)
        node.stop()
        node.start()
        with WireClient(node.port) as client:
            wait_until(client, ErrorCode.none, SLACK_SECONDS)
            assert client.fetch("t", 0).high_watermark >= 2
    finally:
        if node.process is not None:
            node.stop()


def test_a_node_whose_store_comes_back_serves_again(tmp_path: Path) -> None:
    node = start(tmp_path)
    aside = tmp_path / "aside"
    aside.mkdir()
    try:
        with WireClient(node.port) as client:
            assert produce(client) is ErrorCode.none
            take_away(node.data_dir, lambda path: path.rename(aside / path.name))
            # Whoever asks for it now gets another error than that it is not there.
            instead = node.data_dir / FILES[0]
            instead.symlink_to(instead)
            wait_until(client, ErrorCode.not_leader_or_follower, NOTICED_SECONDS + SLACK_SECONDS)
            instead.unlink()
            take_away(aside, lambda path: path.rename(node.data_dir / path.name))
            wait_until(client, ErrorCode.none, NOTICED_SECONDS + SLACK_SECONDS)
        # Its lease's thread logs that after the requests' one serves.
        eventually(lambda: "the node serves again" in node.log, "the node says so")
        assert len(errors(node)) == 1
    finally:
        node.stop()
