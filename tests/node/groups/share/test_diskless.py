"""A share group on a diskless topic, over a kill of the node and the loss of its disk."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from kio.schema.errors import ErrorCode

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.share_member import ACCEPT, RELEASE, ShareMember, acquired, make_group
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

# ``tests/node/groups/share/test_wire.py`` has the small twins.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TOPIC, GROUP = "t", "g"
SECONDS_MAX = 60.0


def set_up(node: NodeProcess) -> None:
    """Create the topic, and a group that begins at its start."""
    admin = AdminClient({"bootstrap.servers": node.address})
    config = {"diskless.enable": "true"}
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(60)
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, GROUP, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)


def send(node: NodeProcess, *values: bytes) -> None:
    def is_sent() -> bool:
        with WireClient(node.port) as client:
            answer = client.produce(TOPIC, batch_of(*values), acks=-1)
        return answer.error_code is ErrorCode.none

    eventually(is_sent, "a batch is acknowledged", seconds=SECONDS_MAX)


def take(node: NodeProcess, member: str, count: int, kind: int) -> dict[int, int]:
    """Acquire so many records and acknowledge them so; return their delivery counts by offset."""
    found: dict[int, int] = {}
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count:
        assert time.monotonic() < deadline, found
        with ShareMember(node.port, GROUP, member, TOPIC) as one:
            answer = one.fetch(max_wait_ms=500, max_records=count - len(found), batch_size=1)
            for first, last, deliveries in acquired(answer):
                if one.acknowledge((first, last, [kind])) is ErrorCode.none:
                    found |= dict.fromkeys(range(first, last + 1), deliveries)
            one.close_session()
    return found


@pytest.mark.parametrize("is_disk_lost", [False, True], ids=["disk kept", "disk lost"])
def test_what_was_accepted_is_done_and_the_rest_comes_again(
    tmp_path: Path, is_disk_lost: bool
) -> None:
    with NodeProcess(
        tmp_path / "node",
        metadata_store=f"sqlite://{tmp_path}/metadata.db",
        object_store=f"file://{tmp_path}/objects",
        config={"offsets.topic.num.partitions": "2"},
    ) as node:
        set_up(node)
        for number in range(10):
            send(node, b"%d" % number)
        make_group(node.port, GROUP, TOPIC)
        assert take(node, "one", 5, ACCEPT) == dict.fromkeys(range(5), 1)
        assert take(node, "one", 2, RELEASE) == {5: 1, 6: 1}
        node.kill()
        if is_disk_lost:
            shutil.rmtree(node.data_dir)
        node.start()
        send(node, b"10")
        again = take(node, "other", 6, ACCEPT)
        assert again == {5: 2, 6: 2, 7: 1, 8: 1, 9: 1, 10: 1}
