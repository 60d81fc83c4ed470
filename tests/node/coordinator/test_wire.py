"""Every version of the group requests as bytes, through the handlers, on SQLite."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.sqlite import SqliteMetadataStore
from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.share_offsets import ShareOffsets
from tidelog_node.handlers.groups import GroupHandlers
from tidelog_node.handlers.offsets import OffsetHandlers
from tidelog_node.handlers.producer_ids import ProducerIdHandlers
from tidelog_node.handlers.share_offsets import ShareOffsetHandlers
from tidelog_node.routes import Route
from tidelog_node.transactions.producer_ids import ProducerIds
from tidelog_node.wire.messages import read_request, write_response

from tests.node.handlers.control_plane import make
from tests.node.transactions.parts import transaction_parts
from tests.support.coordinator_node import new_cluster, node, topic_id
from tests.support.group_requests import subscription
from tests.support.node_context import node_context
from tests.support.request_contexts import context_of

OFFSET_COMMIT, OFFSET_FETCH, OFFSET_DELETE = 8, 9, 47
JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE = 11, 12, 13, 14, 15, 16, 42
INIT_PRODUCER_ID = 22
NEWEST = {
    OFFSET_COMMIT: 10,
    OFFSET_FETCH: 10,
    OFFSET_DELETE: 0,
    JOIN: 9,
    HEARTBEAT: 4,
    LEAVE: 5,
    SYNC: 5,
    DESCRIBE: 6,
    LIST: 5,
    DELETE: 2,
    INIT_PRODUCER_ID: 6,
}
OLDEST = {OFFSET_COMMIT: 2, OFFSET_FETCH: 1}


def versions(api_key: int) -> range:
    return range(OLDEST.get(api_key, 0), NEWEST[api_key] + 1)


class Wire:
    """Asks one node's handlers through the wire formats."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        store: SqliteMetadataStore,
        view: ClusterView,
        **context: Any,
    ) -> None:
        node = node_context(store, view, **context)
        parts = transaction_parts(node, coordinator)
        routes: list[Route] = [
            *GroupHandlers(coordinator=coordinator).routes(),
            *OffsetHandlers(
                node,
                coordinator=coordinator,
                transactional=parts.offsets,
                verifier=parts.verifier,
            ).routes(),
            *ProducerIdHandlers(
                producer_ids=parts.producer_ids, coordinator=parts.coordinator
            ).routes(),
            *ShareOffsetHandlers(
                node, offsets=ShareOffsets(node, coordinator=coordinator)
            ).routes(),
        ]
        self.routes = {
            (route.api_key, version): route
            for route in routes
            for version in range(route.min_version, route.max_version + 1)
        }

    async def ask(self, api_key: int, version: int, **fields: object) -> Any:
        request_class: Any = load_request_schema(api_key, version)
        known = request_class.__dataclass_fields__
        buffer = io.BytesIO()
        some = {name: value for name, value in fields.items() if name in known}
        entity_writer(request_class)(buffer, make(request_class, some))
        route = self.routes[api_key, version]
        newest = load_request_schema(api_key, route.max_version)
        request = read_request(api_key, version, buffer.getvalue(), newest=newest)
        context = context_of(version, api_key=api_key, client_id=b"client")
        response = await route.handle(request, context)
        data = write_response(api_key, version, response)
        answer, size = entity_reader(load_response_schema(api_key, version))(data, 0)
        assert size == len(data)
        return answer

    async def stable(self, group: str, version: int = 9) -> str:
        """Make a group of one member; return its id."""
        joined = await self.join(group, version)
        synced = await self.ask(
            SYNC,
            min(version, 5),
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": joined.member_id, "assignment": b"all"}],
        )
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all")
        member_id: str = joined.member_id
        return member_id

    async def join(self, group: str, version: int, member_id: str = "") -> Any:
        answer = await self.ask(
            JOIN,
            version,
            group_id=group,
            session_timeout=timedelta(seconds=10),
            rebalance_timeout=timedelta(seconds=60),
            member_id=member_id,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": subscription("t")}],
        )
        if answer.error_code is ErrorCode.member_id_required:
            assert version >= 4
            return await self.join(group, version, answer.member_id)
        return answer

    async def commit(self, version: int, group: str = "g", **fields: Any) -> ErrorCode:
        partition = {
            "partition_index": fields.pop("partition", 0),
            "committed_offset": fields.pop("offset", 5),
            "committed_metadata": fields.pop("metadata", "m"),
        }
        if version >= 6:
            partition["committed_leader_epoch"] = 3
        name = fields.pop("topic", "t")
        topic = {"name": name} if version < 10 else {"topic_id": fields.pop("id", topic_id(name))}
        answer = await self.ask(
            OFFSET_COMMIT,
            version,
            group_id=group,
            **fields,
            topics=[{**topic, "partitions": [partition]}],
        )
        (answered,) = answer.topics
        assert (answered.name if version < 10 else answered.topic_id) == next(iter(topic.values()))
        (result,) = answered.partitions
        error: ErrorCode = result.error_code
        return error

    async def fetch(self, version: int, partitions: list[int] | None, group: str = "g") -> Any:
        """Return the group's part of the answer."""
        topic: dict[str, object] = {"name": "t"} if version < 10 else {"topic_id": topic_id("t")}
        topics = None if partitions is None else [{**topic, "partition_indexes": partitions}]
        if version < 8:
            return await self.ask(OFFSET_FETCH, version, group_id=group, topics=topics)
        answer = await self.ask(
            OFFSET_FETCH,
            version,
            groups=[{"group_id": group, "topics": topics}],
            require_stable=True,
        )
        return answer.groups[0]


@asynccontextmanager
async def wire(path: Path, config: NodeConfig | None = None) -> AsyncIterator[Wire]:
    store = SqliteMetadataStore(path / "metadata.db")
    settings = NodeConfig(group_initial_rebalance_delay_ms=0) if config is None else config
    try:
        await new_cluster(store)
        async with node(store, config=settings) as broker:
            yield Wire(broker.coordinator, store, broker.view, config=lambda: settings)
    finally:
        await store.close()


def play(path: Path, scenario: Callable[[Wire], Awaitable[None]]) -> None:
    async def main() -> None:
        async with wire(path) as asked:
            await scenario(asked)

    asyncio.run(main())


@pytest.mark.parametrize("version", versions(JOIN))
def test_a_member_joins_syncs_beats_and_leaves(tmp_path: Path, version: int) -> None:
    async def scenario(asked: Wire) -> None:
        joined = await asked.join("g", version)
        assert joined.error_code is ErrorCode.none
        assert (joined.generation_id, joined.protocol_name) == (1, "range")
        assert joined.leader == joined.member_id
        assert joined.member_id.startswith("client-")
        assert [m.metadata for m in joined.members] == [subscription("t")]
        if version >= 7:
            assert joined.protocol_type == "consumer"
        member = {"group_id": "g", "member_id": joined.member_id, "generation_id": 1}
        synced = await asked.ask(
            SYNC,
            min(version, 5),
            **member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": joined.member_id, "assignment": b"all"}],
        )
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all")
        beaten = await asked.ask(HEARTBEAT, min(version, 4), **member)
        assert beaten.error_code is ErrorCode.none
        left = await asked.ask(
            LEAVE, min(version, 5), **member, members=[{"member_id": joined.member_id}]
        )
        assert left.error_code is ErrorCode.none
        if version >= 3:
            assert [m.error_code for m in left.members] == [ErrorCode.none]
        beaten = await asked.ask(HEARTBEAT, min(version, 4), **member)
        assert beaten.error_code is ErrorCode.unknown_member_id

    play(tmp_path, scenario)


def test_a_sync_must_name_the_protocol_from_version_5_on(tmp_path: Path) -> None:
    """Source: KIP-559."""

    async def scenario(asked: Wire) -> None:
        for version in versions(SYNC):
            expected = (
                ErrorCode.inconsistent_group_protocol
                if version >= 5
                else ErrorCode.unknown_member_id
            )
            answer = await asked.ask(SYNC, version, group_id="g", member_id="x")
            assert answer.error_code is expected

    play(tmp_path, scenario)


@pytest.mark.parametrize("api_key", [JOIN, SYNC, HEARTBEAT, LEAVE])
def test_errors_have_their_place_in_every_version(tmp_path: Path, api_key: int) -> None:
    async def scenario(asked: Wire) -> None:
        for version in versions(api_key):
            for group, error in (
                ("", ErrorCode.invalid_group_id),
                ("none", ErrorCode.unknown_member_id),
            ):
                answer = await asked.ask(
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

    play(tmp_path, scenario)


@pytest.mark.parametrize("version", versions(OFFSET_COMMIT))
def test_offsets_are_committed_and_fetched_in_every_version(tmp_path: Path, version: int) -> None:
    async def scenario(asked: Wire) -> None:
        assert await asked.commit(version) is ErrorCode.none
        for fetch_version in versions(OFFSET_FETCH):
            answer = await asked.fetch(fetch_version, [0, 1])
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
                everything = await asked.fetch(fetch_version, None)
                (topic,) = everything.topics
                assert [p.partition_index for p in topic.partitions] == [0]

    play(tmp_path, scenario)


@pytest.mark.parametrize("version", versions(OFFSET_COMMIT))
def test_commits_are_refused_partition_by_partition(tmp_path: Path, version: int) -> None:
    async def scenario(asked: Wire) -> None:
        unknown = ErrorCode.unknown_topic_id if version == 10 else None
        unknown = unknown or ErrorCode.unknown_topic_or_partition
        assert await asked.commit(version, topic="absent", id=UUID(int=5)) is unknown
        assert await asked.commit(version, partition=2) is ErrorCode.unknown_topic_or_partition
        assert await asked.commit(version, partition=-1) is ErrorCode.unknown_topic_or_partition
        too_large = await asked.commit(version, metadata="x" * 4097)
        assert too_large is ErrorCode.offset_metadata_too_large
        assert await asked.commit(version, group="") is ErrorCode.invalid_group_id
        stranger = await asked.commit(version, generation_id_or_member_epoch=1, member_id="x")
        assert stranger is (
            ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation
        )
        await asked.stable("g")
        assert await asked.commit(version) is ErrorCode.unknown_member_id
        answer = await asked.fetch(10, None)
        assert answer.topics == ()

    play(tmp_path, scenario)


def test_a_commit_without_metadata_is_read_back_as_empty(tmp_path: Path) -> None:
    async def scenario(asked: Wire) -> None:
        for version in versions(OFFSET_COMMIT):
            assert await asked.commit(version, metadata=None) is ErrorCode.none
            answer = await asked.fetch(9, [0])
            assert answer.topics[0].partitions[0].metadata == ""

    play(tmp_path, scenario)


def test_fetching_names_topics_that_are_not_there(tmp_path: Path) -> None:
    async def scenario(asked: Wire) -> None:
        answer = await asked.ask(
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

    play(tmp_path, scenario)


def test_several_groups_are_fetched_at_once(tmp_path: Path) -> None:
    async def scenario(asked: Wire) -> None:
        for number, group in enumerate(("g", "h", "i")):
            await asked.commit(9, group, offset=number)
        topics = [{"name": "t", "partition_indexes": [0]}]
        for version in (8, 9):
            answer = await asked.ask(
                OFFSET_FETCH,
                version,
                groups=[{"group_id": group, "topics": topics} for group in "ghi"],
            )
            offsets = [g.topics[0].partitions[0].committed_offset for g in answer.groups]
            assert offsets == [0, 1, 2]

    play(tmp_path, scenario)


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_groups_are_described(tmp_path: Path, version: int) -> None:
    async def scenario(asked: Wire) -> None:
        member_id = await asked.stable("g")
        await asked.commit(9, "simple")
        answer = await asked.ask(
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

    play(tmp_path, scenario)


@pytest.mark.parametrize("version", versions(LIST))
def test_groups_are_listed_by_state_and_type(tmp_path: Path, version: int) -> None:
    async def scenario(asked: Wire) -> None:
        await asked.stable("g")
        await asked.commit(9, "simple")

        async def listed(**filters: list[str]) -> dict[str, str]:
            answer = await asked.ask(LIST, version, **filters)
            assert answer.error_code is ErrorCode.none
            return {group.group_id: group.protocol_type for group in answer.groups}

        assert await listed() == {"g": "consumer", "simple": ""}
        if version >= 4:
            assert await listed(states_filter=["stable"]) == {"g": "consumer"}
            assert await listed(states_filter=["EMPTY", "Dead"]) == {"simple": ""}
        if version >= 5:
            assert len(await listed(types_filter=["classic"])) == 2
            assert await listed(types_filter=["consumer", "what"]) == {}

    play(tmp_path, scenario)


@pytest.mark.parametrize("version", versions(DELETE))
def test_empty_groups_are_deleted(tmp_path: Path, version: int) -> None:
    async def scenario(asked: Wire) -> None:
        await asked.stable("g")
        await asked.commit(9, "simple")
        answer = await asked.ask(DELETE, version, groups_names=["g", "simple", "absent", ""])
        assert {r.group_id: r.error_code for r in answer.results} == {
            "g": ErrorCode.non_empty_group,
            "simple": ErrorCode.none,
            "absent": ErrorCode.group_id_not_found,
            "": ErrorCode.invalid_group_id,
        }
        assert (await asked.fetch(9, None, "simple")).topics == ()

    play(tmp_path, scenario)


def test_offsets_are_deleted_but_for_consumed_topics(tmp_path: Path) -> None:
    async def scenario(asked: Wire) -> None:
        for topic in ("t", "u"):
            await asked.commit(9, topic=topic)
        await asked.stable("g")
        partitions = [{"partition_index": index} for index in (0, 2)]
        answer = await asked.ask(
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
        (left,) = (await asked.fetch(9, None)).topics
        assert left.name == "t"
        missing = await asked.ask(OFFSET_DELETE, 0, group_id="absent", topics=[])
        assert missing.error_code is ErrorCode.group_id_not_found

    play(tmp_path, scenario)


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
def test_producers_with_a_transactional_id_need_its_coordinator(
    tmp_path: Path, version: int
) -> None:
    async def scenario(asked: Wire) -> None:
        answer = await asked.ask(INIT_PRODUCER_ID, version, transactional_id=None)
        assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, 0)
        given = {"transactional_id": "tx", "transaction_timeout": timedelta(seconds=1)}
        refused = await asked.ask(INIT_PRODUCER_ID, version, **given)
        assert (refused.error_code, refused.producer_id) == (ErrorCode.not_coordinator, -1)
        empty = await asked.ask(INIT_PRODUCER_ID, version, transactional_id="")
        assert empty.error_code is ErrorCode.invalid_request

    play(tmp_path, scenario)
