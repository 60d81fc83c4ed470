"""Every version of the group requests as bytes, through the handlers, on SQLite."""

from __future__ import annotations

import itertools
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_node.transactions.producer_ids import ProducerIds

from tests.node.coordinator.wire import (
    DELETE,
    DESCRIBE,
    HEARTBEAT,
    INIT_PRODUCER_ID,
    JOIN,
    LEAVE,
    LIST,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC,
    Wire,
    versions,
)
from tests.support.group_requests import subscription


@pytest.mark.parametrize("version", versions(JOIN))
async def test_a_member_joins_syncs_beats_and_leaves(wire: Wire, version: int) -> None:
    joined = await wire.join("g", version)
    assert joined.error_code is ErrorCode.none
    assert (joined.generation_id, joined.protocol_name) == (1, "range")
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("client-")
    assert [m.metadata for m in joined.members] == [subscription("t")]
    if version >= 7:
        assert joined.protocol_type == "consumer"
    member = {"group_id": "g", "member_id": joined.member_id, "generation_id": 1}
    synced = await wire.ask(
        SYNC,
        min(version, 5),
        **member,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": joined.member_id, "assignment": b"all"}],
    )
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all")
    beaten = await wire.ask(HEARTBEAT, min(version, 4), **member)
    assert beaten.error_code is ErrorCode.none
    left = await wire.ask(
        LEAVE, min(version, 5), **member, members=[{"member_id": joined.member_id}]
    )
    assert left.error_code is ErrorCode.none
    if version >= 3:
        assert [m.error_code for m in left.members] == [ErrorCode.none]
    beaten = await wire.ask(HEARTBEAT, min(version, 4), **member)
    assert beaten.error_code is ErrorCode.unknown_member_id


async def test_a_sync_must_name_the_protocol_from_version_5_on(wire: Wire) -> None:
    """Source: KIP-559."""
    for version in versions(SYNC):
        expected = (
            ErrorCode.inconsistent_group_protocol if version >= 5 else ErrorCode.unknown_member_id
        )
        answer = await wire.ask(SYNC, version, group_id="g", member_id="x")
        assert answer.error_code is expected


@pytest.mark.parametrize("api_key", [JOIN, SYNC, HEARTBEAT, LEAVE])
async def test_errors_have_their_place_in_every_version(wire: Wire, api_key: int) -> None:
    for version in versions(api_key):
        for group, error in (
            ("", ErrorCode.invalid_group_id),
            ("none", ErrorCode.unknown_member_id),
        ):
            answer = await wire.ask(
                api_key,
                version,
                group_id=group,
                member_id="x",
                members=[{"member_id": "x"}],
                session_timeout=timedelta(seconds=10),
                protocol_type="consumer",
                protocol_name="range",
            )
            found = answer.error_code
            if api_key == LEAVE and version >= 3 and group:
                (member,) = answer.members
                found = member.error_code
            assert found is error, (version, group)


@pytest.mark.parametrize("version", versions(OFFSET_COMMIT))
async def test_offsets_are_committed_and_fetched_in_every_version(wire: Wire, version: int) -> None:
    assert await wire.commit(version) is ErrorCode.none
    for fetch_version in versions(OFFSET_FETCH):
        answer = await wire.fetch(fetch_version, [0, 1])
        if fetch_version >= 2:
            assert answer.error_code is ErrorCode.none
        (topic,) = answer.topics
        stored, absent = topic.partitions
        assert (stored.committed_offset, stored.metadata) == (5, "m")
        assert (absent.committed_offset, absent.metadata) == (-1, "")
        assert stored.error_code is absent.error_code is ErrorCode.none
        if fetch_version >= 5:
            assert stored.committed_leader_epoch == (3 if version >= 6 else -1)
        if fetch_version >= 2:
            everything = await wire.fetch(fetch_version, None)
            (topic,) = everything.topics
            assert [p.partition_index for p in topic.partitions] == [0]


@pytest.mark.parametrize("version", versions(OFFSET_COMMIT))
async def test_commits_are_refused_partition_by_partition(wire: Wire, version: int) -> None:
    unknown = ErrorCode.unknown_topic_id if version == 10 else None
    unknown = unknown or ErrorCode.unknown_topic_or_partition
    assert await wire.commit(version, topic="absent", id=UUID(int=5)) is unknown
    assert await wire.commit(version, partition=2) is ErrorCode.unknown_topic_or_partition
    assert await wire.commit(version, partition=-1) is ErrorCode.unknown_topic_or_partition
    too_large = await wire.commit(version, metadata="x" * 4097)
    assert too_large is ErrorCode.offset_metadata_too_large
    assert await wire.commit(version, group="") is ErrorCode.invalid_group_id
    stranger = await wire.commit(version, generation_id_or_member_epoch=1, member_id="x")
    assert stranger is (
        ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation
    )
    await wire.stable("g")
    assert await wire.commit(version) is ErrorCode.unknown_member_id
    answer = await wire.fetch(10, None)
    assert answer.topics == ()


async def test_a_commit_without_metadata_is_read_back_as_empty(wire: Wire) -> None:
    for version in versions(OFFSET_COMMIT):
        assert await wire.commit(version, metadata=None) is ErrorCode.none
        answer = await wire.fetch(9, [0])
        assert answer.topics[0].partitions[0].metadata == ""


async def test_fetching_names_topics_that_are_not_there(wire: Wire) -> None:
    answer = await wire.ask(
        OFFSET_FETCH,
        10,
        groups=[
            {"group_id": "g", "topics": [{"topic_id": UUID(int=9), "partition_indexes": [0]}]},
            {"group_id": "", "topics": None},
        ],
    )
    found, refused = answer.groups
    (topic,) = found.topics
    assert topic.topic_id == UUID(int=9)
    assert topic.partitions[0].error_code is ErrorCode.unknown_topic_id
    assert (refused.error_code, refused.topics) == (ErrorCode.invalid_group_id, ())


async def test_several_groups_are_fetched_at_once(wire: Wire) -> None:
    for number, group in enumerate(("g", "h", "i")):
        await wire.commit(9, group, offset=number)
    topics = [{"name": "t", "partition_indexes": [0]}]
    for version in (8, 9):
        answer = await wire.ask(
            OFFSET_FETCH,
            version,
            groups=[{"group_id": group, "topics": topics} for group in "ghi"],
        )
        offsets = [g.topics[0].partitions[0].committed_offset for g in answer.groups]
        assert offsets == [0, 1, 2]


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_groups_are_described(wire: Wire, version: int) -> None:
    member_id = await wire.stable("g")
    await wire.commit(9, "simple")
    answer = await wire.ask(
        DESCRIBE,
        version,
        groups=["g", "simple", "absent"],
        include_authorized_operations=True,
    )
    stable, simple, absent = answer.groups
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (member,) = stable.members
    assert (member.member_id, member.client_id) == (member_id, "client")
    assert (member.client_host, member.member_assignment) == ("/127.0.0.1", b"all")
    assert member.member_metadata == subscription("t")
    assert (simple.group_state, simple.protocol_type, simple.members) == ("Empty", "", ())
    assert absent.group_state == "Dead"
    expected = ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none
    assert absent.error_code is expected
    if version >= 3:
        assert stable.authorized_operations == 3400


@pytest.mark.parametrize("version", versions(LIST))
async def test_groups_are_listed_by_state_and_type(wire: Wire, version: int) -> None:
    await wire.stable("g")
    await wire.commit(9, "simple")

    async def listed(**filters: list[str]) -> dict[str, str]:
        answer = await wire.ask(LIST, version, **filters)
        assert answer.error_code is ErrorCode.none
        return {group.group_id: group.protocol_type for group in answer.groups}

    assert await listed() == {"g": "consumer", "simple": ""}
    if version >= 4:
        assert await listed(states_filter=["stable"]) == {"g": "consumer"}
        assert await listed(states_filter=["EMPTY", "Dead"]) == {"simple": ""}
    if version >= 5:
        assert len(await listed(types_filter=["classic"])) == 2
        assert await listed(types_filter=["consumer", "what"]) == {}


@pytest.mark.parametrize("version", versions(DELETE))
async def test_empty_groups_are_deleted(wire: Wire, version: int) -> None:
    await wire.stable("g")
    await wire.commit(9, "simple")
    answer = await wire.ask(DELETE, version, groups_names=["g", "simple", "absent", ""])
    assert {r.group_id: r.error_code for r in answer.results} == {
        "g": ErrorCode.non_empty_group,
        "simple": ErrorCode.none,
        "absent": ErrorCode.group_id_not_found,
        "": ErrorCode.invalid_group_id,
    }
    assert (await wire.fetch(9, None, "simple")).topics == ()


async def test_offsets_are_deleted_but_for_consumed_topics(wire: Wire) -> None:
    for topic in ("t", "u"):
        await wire.commit(9, topic=topic)
    await wire.stable("g")
    partitions = [{"partition_index": index} for index in (0, 2)]
    answer = await wire.ask(
        OFFSET_DELETE,
        0,
        group_id="g",
        topics=[{"name": name, "partitions": partitions} for name in ("t", "u", "absent")],
    )
    assert answer.error_code is ErrorCode.none
    results = {
        (topic.name, partition.partition_index): partition.error_code
        for topic in answer.topics
        for partition in topic.partitions
    }
    unknown = ErrorCode.unknown_topic_or_partition
    assert results == {
        ("t", 0): ErrorCode.group_subscribed_to_topic,
        ("t", 2): unknown,
        ("u", 0): ErrorCode.none,
        ("u", 2): unknown,
        ("absent", 0): unknown,
        ("absent", 2): unknown,
    }
    (left,) = (await wire.fetch(9, None)).topics
    assert left.name == "t"
    missing = await wire.ask(OFFSET_DELETE, 0, group_id="absent", topics=[])
    assert missing.error_code is ErrorCode.group_id_not_found


async def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    try:
        nodes = [ProducerIds(store) for _ in range(3)]
        turns = itertools.islice(itertools.cycle(nodes), 4000)
        ids = [await producer_ids.take() for producer_ids in turns]
        assert len(set(ids)) == 4000
        assert min(ids) >= 0
    finally:
        await store.close()


@pytest.mark.parametrize("version", versions(INIT_PRODUCER_ID))
async def test_producers_with_a_transactional_id_need_its_coordinator(
    wire: Wire, version: int
) -> None:
    answer = await wire.ask(INIT_PRODUCER_ID, version, transactional_id=None)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, 0)
    given = {"transactional_id": "tx", "transaction_timeout": timedelta(seconds=1)}
    refused = await wire.ask(INIT_PRODUCER_ID, version, **given)
    assert (refused.error_code, refused.producer_id) == (ErrorCode.not_coordinator, -1)
    empty = await wire.ask(INIT_PRODUCER_ID, version, transactional_id="")
    assert empty.error_code is ErrorCode.invalid_request
