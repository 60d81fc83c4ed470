"""A share group that begins where only the object store still has the records."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from kio.schema.errors import ErrorCode

from tests.support.node_process import NodeProcess
from tests.support.share_member import ACCEPT, ShareMember, acquired, make_group, values

GROUP, TOPIC = "g", "t"
RECORD_COUNT = 600
DEADLINE_SECONDS = 120.0


def value_of(index: int) -> bytes:
    return b"%06d" % index + b"x" * 494


def test_tiered_records_are_delivered_once_to_members_that_share_them(tmp_path: Path) -> None:
    with NodeProcess(
        tmp_path / "node",
        config={"remote.task.interval.ms": "100", "offsets.topic.num.partitions": "4"},
    ) as node:
        admin = AdminClient({"bootstrap.servers": node.address})
        config = {"segment.bytes": "50000", "local.retention.bytes": "1"}
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(60)
        entry = ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
        )
        group = ConfigResource(ConfigResource.Type.GROUP, GROUP, incremental_configs=[entry])
        admin.incremental_alter_configs([group])[group].result(60)
        make_group(node.port, GROUP, TOPIC)
        producer = Producer({"bootstrap.servers": node.address, "batch.size": 5_000})
        for index in range(RECORD_COUNT):
            producer.produce(TOPIC, value_of(index))
        assert producer.flush(60) == 0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(list((node.data_dir / f"{TOPIC}-0").glob("*.log"))) > 1:
            assert time.monotonic() < deadline, f"segments are not evicted:\n{node.log[-3000:]}"
            time.sleep(0.05)
        found: Counter[bytes | None] = Counter()

        def read(name: str) -> None:
            with ShareMember(node.port, GROUP, name, TOPIC) as member:
                while found.total() < RECORD_COUNT:
                    assert time.monotonic() < deadline, f"{found.total()} came"
                    answer = member.fetch(max_wait_ms=300, max_records=40)
                    found.update(values(answer).values())
                    for first, last, _ in acquired(answer):
                        assert member.acknowledge((first, last, [ACCEPT])) is ErrorCode.none

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(read, "abc"))
        assert found == Counter(value_of(index) for index in range(RECORD_COUNT))
