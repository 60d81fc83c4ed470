"""A coordinator's handlers, asked through every version of the wire formats, on SQLite."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.share_offsets import ShareOffsets
from tidelog_node.handlers.groups.classic_groups import GroupHandlers
from tidelog_node.handlers.groups.consumer_groups import ConsumerGroupHandlers
from tidelog_node.handlers.groups.offset_commits import OffsetCommitHandlers
from tidelog_node.handlers.groups.offset_deletions import OffsetDeletionHandler
from tidelog_node.handlers.groups.offset_fetches import OffsetFetchHandlers
from tidelog_node.handlers.share.groups import ShareGroupHandlers
from tidelog_node.handlers.share.offsets import ShareOffsetHandlers
from tidelog_node.handlers.transactions.producer_ids import ProducerIdHandlers
from tidelog_node.requests.routes import Route
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
            *ConsumerGroupHandlers(coordinator=coordinator, access=None).routes(),
            *ShareGroupHandlers(coordinator=coordinator).routes(),
            *OffsetCommitHandlers(
                node,
                coordinator=coordinator,
                transactional=parts.offsets,
                verifier=parts.verifier,
            ).routes(),
            *OffsetFetchHandlers(
                node, coordinator=coordinator, transactional=parts.offsets
            ).routes(),
            *OffsetDeletionHandler(node, coordinator=coordinator).routes(),
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
async def open_wire(path: Path, config: NodeConfig | None = None) -> AsyncIterator[Wire]:
    store = SqliteMetadataStore(path / "metadata.db")
    settings = NodeConfig(group_initial_rebalance_delay_ms=0) if config is None else config
    try:
        await new_cluster(store)
        async with node(store, config=settings) as broker:
            yield Wire(broker.coordinator, store, broker.view, config=lambda: settings)
    finally:
        await store.close()
