"""A node on a metadata store that was set back leads nothing whose records it would replace."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tidelog_core.errors import MetadataSetBack

from tests.support.batches import batch_of
from tests.support.command import called
from tests.support.node_process import NodeProcess
from tests.support.outside_stores import node_with_outside_stores
from tests.support.wire_client import WireClient

# ``test_set_back`` has the small twins.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TOPIC, OTHER, QUIET = "t", "other", "quiet"
REFUSED = "diskless partition refused, its records are not in the metadata"
DEADLINE_SECONDS = 120.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that tiers and collects what is a few seconds old."""
    config = {"remote.task.interval.ms": "200", "diskless.wal.max.age.ms": "1000"}
    with node_with_outside_stores(tmp_path, config) as process:
        yield process


def until(is_true: Callable[[], bool], node: NodeProcess) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_true():
        assert time.monotonic() < deadline, node.log[-4000:]
        time.sleep(0.1)


def create(node: NodeProcess, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(name, 1, 1, config={"diskless.enable": "true"})])[name].result(30)


def send(node: NodeProcess, count: int, topic: str = TOPIC) -> list[int]:
    """Send records, each of its own batch; return their offsets."""
    offsets: list[int] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    with WireClient(node.port) as client:
        while len(offsets) < count:
            answer = client.produce(topic, batch_of(b"value"), acks=-1)
            if answer.error_code is ErrorCode.none:
                offsets.append(int(answer.base_offset))
                continue
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)
    return offsets


def restart(node: NodeProcess) -> None:
    node.kill()
    node.start()


def keep(node: NodeProcess, folder: Path) -> Path:
    """Copy the files of the metadata store while no node runs; return their folder."""
    node.kill()
    kept = folder / "kept"
    kept.mkdir()
    for path in folder.glob("metadata.db*"):
        shutil.copy(path, kept)
    node.start()
    return kept


def set_back(node: NodeProcess, kept: Path) -> None:
    """Start the node again, on an empty disk and the copy of the metadata store."""
    lose(node, kept.parent)
    for path in kept.iterdir():
        shutil.copy(path, kept.parent)
    node.start()


def lose(node: NodeProcess, folder: Path) -> None:
    """Kill the node, and delete its disk and the metadata store."""
    node.kill()
    node.data_dir.rename(node.data_dir.with_name(f"lost-{time.monotonic_ns()}"))
    for path in folder.glob("metadata.db*"):
        path.unlink()


def require_refused(node: NodeProcess, count: int = 1) -> None:
    until(lambda: node.log.count(REFUSED) == count, node)
    with WireClient(node.port) as client:
        answer = client.produce(TOPIC, batch_of(b"another"), acks=-1)
    assert answer.error_code is ErrorCode.not_leader_or_follower
    node.wait_logged(MetadataSetBack.hint)
    assert send(node, 1, QUIET) == [0]  # The others are led.
    assert node.log.count(REFUSED) == count


def test_nothing_that_others_have_acknowledged_is_replaced(
    node: NodeProcess, tmp_path: Path
) -> None:
    create(node, TOPIC)
    create(node, QUIET)
    assert send(node, 3) == [0, 1, 2]
    kept = keep(node, tmp_path)
    restart(node)  # the chain that the copy does not know
    assert send(node, 3) == [3, 4, 5]
    set_back(node, kept)
    require_refused(node)
    # The bucket has everything.
    lose(node, tmp_path)
    source = f"file://{tmp_path}/objects"
    restored = called(
        "restore", "--from", source, "--metadata", node.metadata_store, "--json"
    ).document
    assert restored["ok"], restored
    node.start()
    assert send(node, 1) == [6]


def test_records_that_were_tiered_and_collected_since_are_not_replaced(
    node: NodeProcess, tmp_path: Path
) -> None:
    """The copy knows the chain before, and no segment."""
    for name in (TOPIC, OTHER, QUIET):
        create(node, name)
    assert send(node, 1) == send(node, 1, OTHER) == [0]
    kept = keep(node, tmp_path)
    assert send(node, 20)[-1] == 20
    objects = tmp_path / "objects"
    tiered = set[Path]()

    def is_collected() -> bool:
        tiered.update(objects.glob(f"*/{TOPIC}-*/0/*.index"))
        # The last object stays, and it has records of the other topic alone.
        send(node, 1, OTHER)
        data = [one for one in objects.glob("*/wal/*/*/*.wal") if one.stat().st_size > 400]
        return bool(tiered) and len(data) < 8

    until(is_collected, node)
    set_back(node, kept)
    require_refused(node, 2)
