"""Records go to bodies and back, and a body that is wrong names itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import (
    CorruptItem,
    InvalidConfig,
    StoreNotFound,
    StoreUnavailable,
)
from tidelog_core.metadata.client_metrics import ClientMetricsOverrides
from tidelog_core.metadata.coordination.group_configs import GroupConfigOverrides
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.records import (
    Broker,
    BrokerLease,
    ChainTombstone,
    Cluster,
    DeletedTopic,
    NodeConfigOverrides,
    Partition,
    ScrubOrphans,
    SegmentMeta,
    SegmentState,
    StepDownReason,
    Topic,
    delete,
    put,
)
from tidelog_core.metadata.store import ABSENT, Item, ItemKey
from tidelog_core.metadata.stores.dynamodb import DynamoDbMetadataStore
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

ID, OTHER_ID = UUID(int=7), UUID(int=8)
RECORDS: list[Any] = [
    Cluster(cluster_id="c"),
    Broker(broker_id=3, incarnation=ID, endpoints=plaintext_endpoints("h", 9092), rack="r"),
    Broker(broker_id=3, incarnation=ID, endpoints=plaintext_endpoints("h", 9092)),
    BrokerLease(broker_id=3, incarnation=ID, counter=9),
    NodeConfigOverrides(broker_id=None, configs={"num.partitions": "3"}),
    NodeConfigOverrides(broker_id=0, configs={}),
    GroupConfigOverrides(group_id="g", configs={"share.auto.offset.reset": "earliest"}),
    Topic(name="t", topic_id=ID, partition_count=2, configs={"a": "b"}, created_ms=5),
    Partition(topic_id=ID, partition=1, replicas=(1, 2), leader=-1, leader_epoch=4, isr=(2,)),
    SegmentMeta(
        topic_id=ID,
        partition=1,
        base_offset=10,
        end_offset=20,
        leader_epoch=2,
        segment_id=OTHER_ID,
        state=SegmentState.COPY_FINISHED,
        size_bytes=100,
        index_size_bytes=10,
        max_timestamp_ms=-1,
        leader_epochs=((0, 0), (2, 15)),
        chained_hash="00ff",
        created_ms=6,
    ),
    DeletedTopic(topic_id=ID, name="t", partition_count=2, deleted_ms=7),
    ChainTombstone(topic_id=ID),
    ScrubOrphans(prefix="c/t/4/", first_seen_ms={"a.log": 5, "b.log": 6}),
    ClientMetricsOverrides(subscription="s", configs={"metrics": "*"}),
]
NAMES = [type(record).__name__ for record in RECORDS]


def stored(record: Any, version: int = 3, **changed: Any) -> Item:
    """The record as a store gives it back: through JSON."""
    body = {**record.to_body(), **changed}
    return Item(record.item_id, version, json.loads(json.dumps(body)))


@pytest.mark.parametrize("record", RECORDS, ids=NAMES)
def test_a_record_comes_back_with_the_version_it_was_read_at(record: Any) -> None:
    read = type(record).from_item(stored(record))
    assert read == record
    assert (record.version, read.version) == (ABSENT, 3)
    assert (put(read).expected_version, put(read).body) == (3, record.to_body())
    assert (delete(read).expected_version, delete(read).body) == (3, None)


def test_a_lease_says_only_of_a_broker_that_steps_down_why() -> None:
    """Programs from before there was the field read the leases of all others."""
    for reason in (None, *StepDownReason):
        lease = BrokerLease(broker_id=3, incarnation=ID, counter=9, step_down_reason=reason)
        assert ("step_down_reason" in lease.to_body()) is (reason is not None)
        assert BrokerLease.from_item(stored(lease)) == lease


def test_a_lease_with_the_flag_of_before_there_were_reasons_is_read() -> None:
    lease = BrokerLease(broker_id=3, incarnation=ID, counter=9)
    for is_unfit in (False, True):
        read = BrokerLease.from_item(stored(lease, is_unfit=is_unfit))
        assert read.step_down_reason is (StepDownReason.DISK if is_unfit else None)


def test_a_lease_with_a_reason_that_nobody_knows_cannot_be_read() -> None:
    lease = BrokerLease(broker_id=3, incarnation=ID, counter=9)
    with pytest.raises(
        CorruptItem, match="step_down_reason must be one of disk, draining, store, not 'moon'"
    ):
        BrokerLease.from_item(stored(lease, step_down_reason="moon"))


@pytest.mark.parametrize("record", RECORDS, ids=NAMES)
def test_a_record_with_a_field_too_many_or_too_few_is_refused(record: Any) -> None:
    with pytest.raises(CorruptItem, match="unknown fields: extra"):
        type(record).from_item(stored(record, extra=1))
    for field in record.to_body():
        body = {name: value for name, value in record.to_body().items() if name != field}
        with pytest.raises(CorruptItem, match=f"{field} is missing"):
            type(record).from_item(Item(record.item_id, 1, body))


def test_a_partition_that_was_restored_in_part_says_from_where_and_no_other_does() -> None:
    whole = next(record for record in RECORDS if isinstance(record, Partition))
    assert "restored_log_start" not in whole.to_body()
    restored = dataclasses.replace(whole, log_start_offset=9, restored_log_start=7)
    assert Partition.from_item(stored(restored)) == restored
    with pytest.raises(CorruptItem, match="restored_log_start"):
        Partition.from_item(stored(restored, restored_log_start=-1))


WAL_ROW = [3, 1, "0badcafe-0000-4000-8000-00000000beef", 40]
BAD_WALS = {
    "no list": 7,
    "short row": [WAL_ROW[:3]],
    "text for a number": [["3", *WAL_ROW[1:]]],
    "negative epoch": [[-1, *WAL_ROW[1:]]],
    "true for a number": [[True, *WAL_ROW[1:]]],
    "broker too large": [[3, 2**31, *WAL_ROW[2:]]],
    "offset too large": [[*WAL_ROW[:3], 2**63]],
    "no uuid": [[3, 1, "chain", 40]],
    "uuid in capitals": [[3, 1, "0BADCAFE-0000-4000-8000-00000000BEEF", 40]],
    "epoch twice": [WAL_ROW, WAL_ROW],
    "offset goes back": [WAL_ROW, [4, *WAL_ROW[1:3], 39]],
}


def test_a_partition_without_chains_stores_nothing_of_them() -> None:
    whole = next(record for record in RECORDS if isinstance(record, Partition))
    assert "wal" not in whole.to_body()
    assert Partition.from_item(stored(whole, wal=[WAL_ROW])).wal == (
        EpochChain(3, ChainName(1, UUID("0badcafe-0000-4000-8000-00000000beef")), 40),
    )


@pytest.mark.parametrize("name", BAD_WALS)
def test_chains_that_no_program_writes_are_refused(name: str) -> None:
    whole = next(record for record in RECORDS if isinstance(record, Partition))
    with pytest.raises(CorruptItem, match="wal cannot be read"):
        Partition.from_item(stored(whole, wal=BAD_WALS[name]))


def test_a_lease_tells_the_time_only_where_its_broker_did() -> None:
    plain = next(record for record in RECORDS if isinstance(record, BrokerLease))
    assert "wall_ms" not in plain.to_body()
    telling = dataclasses.replace(plain, wall_ms=1_700_000_000_000)
    assert BrokerLease.from_item(stored(telling)) == telling
    with pytest.raises(CorruptItem, match="wall_ms"):
        BrokerLease.from_item(stored(telling, wall_ms=-1))


@pytest.mark.parametrize("record", RECORDS, ids=NAMES)
def test_a_field_of_another_type_is_refused_and_named(record: Any) -> None:
    for field in record.to_body():
        for wrong in (1.5, [1.5], {"a": 1.5}):
            with pytest.raises(CorruptItem, match=field) as raised:
                type(record).from_item(stored(record, **{field: wrong}))
            assert record.item_id.key in str(raised.value)


@pytest.mark.parametrize(
    ("record", "changed"),
    [
        (RECORDS[1], {"broker_id": -1}),
        (RECORDS[1], {"incarnation": "7"}),
        (RECORDS[1], {"incarnation": str(ID).replace("-", "")}),
        (RECORDS[1], {"port": True}),
        (RECORDS[6], {"partition_count": 0}),
        (RECORDS[7], {"partition": 2}),
        (RECORDS[8], {"state": "copied"}),
        (RECORDS[8], {"base_offset": 11}),
        (RECORDS[8], {"leader_epochs": [[1, 2, 3]]}),
        (RECORDS[8], {"leader_epochs": [[1, 2**63]]}),
        (RECORDS[8], {"leader_epochs": [[True, 0]]}),
        (RECORDS[8], {"created_ms": -(2**63) - 1}),
        (RECORDS[8], {"segment_id": str(UUID(int=12)).replace("-", "")}),
        (RECORDS[8], {"segment_id": str(UUID(int=12)).replace("c", "C")}),
        (RECORDS[8], {"topic_id": str(UUID(int=12))}),
        (RECORDS[8], {"partition": 99}),
        (RECORDS[8], {"base_offset": 1}),
    ],
)
def test_a_value_out_of_bounds_is_refused(record: Any, changed: dict[str, Any]) -> None:
    with pytest.raises(CorruptItem):
        type(record).from_item(stored(record, **changed))


@given(st.lists(st.integers(min_value=0, max_value=2**63 - 1), min_size=2, unique=True))
def test_segments_list_in_the_order_of_their_base_offsets(offsets: list[int]) -> None:
    keys = [f"{offset:020d}-{ID}" for offset in offsets]
    assert [int(key[:20]) for key in sorted(keys)] == sorted(offsets)


def test_stores_open_by_url() -> None:
    for url in ("sqlite:///tmp/x/metadata.db", "sqlite:metadata.db"):
        assert isinstance(open_metadata_store(url, may_be_new=True), SqliteMetadataStore)
    url = "dynamodb://table?region=eu-central-1&endpoint=http://127.0.0.1:8000"
    assert isinstance(open_metadata_store(url), DynamoDbMetadataStore)


async def test_a_file_that_is_missing_is_refused_and_not_made(tmp_path: Path) -> None:
    url, path = f"sqlite://{tmp_path}/below/metadata.db", tmp_path / "below" / "metadata.db"
    with pytest.raises(StoreNotFound, match=f"no metadata store at {path}: check") as raised:
        open_metadata_store(url)
    assert raised.value.path == path
    assert not path.parent.exists()
    store = open_metadata_store(url, may_be_new=True)
    assert await store.get(ItemKey("topics", "t")) is None
    await store.close()
    await open_metadata_store(url).close()


def test_a_file_that_cannot_be_seen_is_an_error_that_commands_know(tmp_path: Path) -> None:
    """As in a folder of another user, or here with a name that no file system takes."""
    with pytest.raises(StoreUnavailable, match="file cannot be seen"):
        open_metadata_store(f"sqlite://{tmp_path}/{'a' * 300}")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgres://x", "must be sqlite:///path or dynamodb://table"),
        ("metadata.db", "must be sqlite"),
        ("sqlite://host/path", "must be sqlite:///path"),
        ("sqlite://", "must be sqlite:///path"),
        ("dynamodb://", "must be dynamodb://table"),
        ("dynamodb://table/more", "must be dynamodb://table"),
        ("dynamodb://table?regin=x", "unknown option 'regin'"),
        ("dynamodb://table?region=", "'region' must be given once"),
        ("dynamodb://table?region=a&region=b", "'region' must be given once"),
    ],
)
def test_a_url_that_names_no_store_says_what_is_allowed(url: str, problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        open_metadata_store(url)
