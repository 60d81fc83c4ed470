"""A sealed segment of a diskless topic that loses a byte before it is tiered."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tidelog_core.records.batch import decode_records

from tests.support.batches import batch_of
from tests.support.hand_chain import DISKLESS
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow  # tests/node/upkeep/test_segment_repair.py has the decision

COUNT = 60
CONFIG = {"log.scrub.bytes.per.second": "0", "transaction.state.log.num.partitions": "1"}


def test_the_log_is_made_again_from_its_chain_and_tiered(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    with NodeProcess(tmp_path / "node", object_store=f"file://{objects}", config=CONFIG) as node:
        admin = AdminClient({"bootstrap.servers": node.address})
        config = {**DISKLESS, "segment.bytes": "20000"}
        admin.create_topics([NewTopic("t", 1, 1, config=config)])["t"].result(60)
        # Nothing is tiered behind an open transaction.
        open_one = Producer({"bootstrap.servers": node.address, "transactional.id": "t"})
        open_one.init_transactions(30)
        open_one.begin_transaction()
        open_one.produce("t", b"first")
        assert open_one.flush(30) == 0
        values = [b"%04d" % number + b"v" * 2_000 for number in range(COUNT)]
        with WireClient(node.port) as client:
            for number, value in enumerate(values):
                answer = client.produce("t", batch_of(value), acks=-1)
                assert (answer.error_code, answer.base_offset) == (ErrorCode.none, number + 1)
        second = sorted((node.data_dir / "t-0").glob("*.log"))[1]
        content = bytearray(second.read_bytes())
        content[5_000] ^= 1
        second.write_bytes(content)
        open_one.commit_transaction(30)
        eventually(lambda: "damaged log set aside" in node.log, "the damage is found")
        with WireClient(node.port) as client:
            eventually(
                lambda: client.fetch("t", 0).error_code is ErrorCode.none, "the node leads again"
            )
            found: list[bytes | None] = []
            while len(found) < COUNT + 1:
                answer = client.fetch("t", len(found), max_bytes=1 << 20)
                assert answer.error_code is ErrorCode.none
                records = decode_records(memoryview(answer.records))
                found += [one.value for one in records if one.offset >= len(found)]
            assert found == [b"first", *values]
        eventually(lambda: len(list(objects.rglob("*.index"))) >= 5, "all is in the tier")
