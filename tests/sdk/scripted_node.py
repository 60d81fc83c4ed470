"""A node that answers as a test says: well-formed messages with any content.

Unless the test says otherwise it is one sound node with an empty topic ``t`` of one partition: it
leads everything, coordinates everything and holds fetches as long as they ask.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from kio.schema.errors import ErrorCode
from tidelog.wire import requests
from tidelog.wire.requests import Api
from tidelog_core.message_reader import read_message
from tidelog_core.message_schemas import load_request_schema, load_response_schema
from tidelog_core.wire_messages import build, write_message

HOST = "127.0.0.1"
TOPIC = "t"
NODE_ID = 1
RECEIVE_BUFFER_BYTES = 64 * 1024  # What it does not read fills little memory of the system.
TOPIC_ID = uuid.UUID(int=7)

Answer = Callable[[Any], object | None] | Callable[[Any], Awaitable[object | None]]
"""Makes the answer to a request, with ``of``; ``None``: none is sent."""


def of(api: Api, name: str | None = None, /, **fields: object) -> Any:
    """Return an answer to the API, or the part of one that has that class's name."""
    schema: Any = load_response_schema(api.key, api.max_version)
    made = schema if name is None else getattr(sys.modules[schema.__module__], name)
    return build(made, **fields)


class ScriptedNode:
    """The node, while ``async with`` is open."""

    def __init__(self, context: ssl.SSLContext | None = None, /, **answers: Answer) -> None:
        """``answers`` are by the APIs' names in ``tidelog.wire.requests``, in lower case."""
        self._context = context  # of TLS
        self.counts: Counter[int] = Counter()  # requests, by the API's key
        self.connection_count = 0
        self.is_silent = False  # It takes connections, and answers nothing.
        self.is_deaf = False  # It reads nothing behind the first answer.
        self._answers: dict[int, Answer] = {
            requests.API_VERSIONS.key: _versions,
            requests.METADATA.key: lambda _: self.metadata(),
            requests.FIND_COORDINATOR.key: self._coordinator,
            requests.LIST_OFFSETS.key: _list_offsets,
            requests.FETCH_BY_NAME.key: self._fetch,
            requests.INIT_PRODUCER_ID.key: lambda _: of(
                requests.INIT_PRODUCER_ID, producer_id=1, producer_epoch=0
            ),
            requests.PRODUCE.key: _produce,
            requests.OFFSET_COMMIT.key: committed,
        }
        for name, answer in answers.items():
            self.set(getattr(requests, name.upper()), answer)
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._is_over = asyncio.Event()
        self.port = 0

    def set(self, api: Api, answer: Answer) -> None:
        """Answer the API's requests like this."""
        self._answers[api.key] = answer

    def count(self, api: Api) -> int:
        """Return how many requests of the API have come."""
        return self.counts[api.key]

    @property
    def address(self) -> str:
        """Return the address for clients."""
        return f"{HOST}:{self.port}"

    async def __aenter__(self) -> Self:
        """Listen."""
        listener = socket.create_server((HOST, 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self.port = listener.getsockname()[1]
        self._server = await asyncio.start_server(self._serve, sock=listener, ssl=self._context)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        assert self._server is not None
        self._server.close()
        self._is_over.set()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._serving)
        await self._server.wait_closed()

    # -- answers of a sound node --

    def metadata(
        self,
        brokers: Mapping[int, tuple[str, int]] | None = None,
        *,
        partitions: Mapping[int, int] | None = None,
        leader_epoch: int = 0,
    ) -> Any:
        """Return metadata with these brokers, and the leader of each partition of ``t``."""
        brokers = {NODE_ID: (HOST, self.port)} if brokers is None else brokers
        api = requests.METADATA
        return of(
            api,
            brokers=tuple(
                of(api, "MetadataResponseBroker", node_id=node_id, host=host, port=port)
                for node_id, (host, port) in brokers.items()
            ),
            cluster_id="scripted",
            controller_id=NODE_ID,
            topics=(
                of(
                    api,
                    "MetadataResponseTopic",
                    name=TOPIC,
                    topic_id=TOPIC_ID,
                    partitions=tuple(
                        of(
                            api,
                            "MetadataResponsePartition",
                            partition_index=number,
                            leader_id=leader,
                            leader_epoch=leader_epoch,
                        )
                        for number, leader in (partitions or {0: NODE_ID}).items()
                    ),
                ),
            ),
        )

    def _coordinator(self, request: Any) -> Any:
        api = requests.FIND_COORDINATOR
        found = [
            of(api, "Coordinator", key=key, node_id=NODE_ID, host=HOST, port=self.port)
            for key in request.coordinator_keys
        ]
        return of(api, coordinators=tuple(found))

    async def _fetch(self, request: Any) -> Any:
        await asyncio.sleep(request.max_wait.total_seconds())
        return fetched(request)

    # -- connections --

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self._writers.add(writer)
        self.connection_count += 1
        try:
            while not self.is_silent:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                await self._respond(await reader.readexactly(size), writer)
                if self.is_deaf:
                    writer.transport.pause_reading()  # type: ignore[attr-defined]
                    await self._is_over.wait()
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _respond(self, frame: bytes, writer: asyncio.StreamWriter) -> None:
        key, version, correlation_id, client_size = struct.unpack_from(">hhih", frame)
        self.counts[key] += 1
        schema = load_request_schema(key, version)
        position = 10 + client_size + schema.__flexible__
        # Versions are those that one class covers, and all fields of a request are in the newest.
        answer = self._answers[key](read_message(schema, frame, position))
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer is None:
            return
        response: Any = load_response_schema(key, version)
        has_tags = response.__flexible__ and key != requests.API_VERSIONS.key
        body = (
            correlation_id.to_bytes(4, "big") + b"\0" * has_tags + write_message(response, answer)
        )
        writer.write(struct.pack(">i", len(body)) + body)
        await writer.drain()


def fetched(
    request: Any,
    records: bytes = b"",
    *,
    error: ErrorCode = ErrorCode.none,
    high_watermark: int = 0,
    preferred_read_replica: int = -1,
) -> Any:
    """Return the answer to a fetch by name, with the same for every partition it asks for."""
    api = requests.FETCH_BY_NAME
    return of(
        api,
        session_id=0,
        responses=tuple(
            of(
                api,
                "FetchableTopicResponse",
                topic=topic.topic,
                partitions=tuple(
                    of(
                        api,
                        "PartitionData",
                        partition_index=int(one.partition),
                        error_code=error,
                        high_watermark=high_watermark,
                        last_stable_offset=high_watermark,
                        records=records,
                        preferred_read_replica=preferred_read_replica,
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def listed(request: Any, offset: int) -> Any:
    """Return the answer to ListOffsets with one offset for all."""
    api = requests.LIST_OFFSETS
    return of(
        api,
        topics=tuple(
            of(
                api,
                "ListOffsetsTopicResponse",
                name=topic.name,
                partitions=tuple(
                    of(
                        api,
                        "ListOffsetsPartitionResponse",
                        partition_index=int(one.partition_index),
                        offset=offset,
                        timestamp=-1,
                        leader_epoch=-1,
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def produced(request: Any, error: ErrorCode = ErrorCode.none) -> Any:
    """Return the answer to a Produce request."""
    api = requests.PRODUCE
    return of(
        api,
        responses=tuple(
            of(
                api,
                "TopicProduceResponse",
                name=topic.name,
                partition_responses=tuple(
                    of(api, "PartitionProduceResponse", index=int(one.index), error_code=error)
                    for one in topic.partition_data
                ),
            )
            for topic in request.topic_data
        ),
    )


def committed(request: Any, error: ErrorCode = ErrorCode.none) -> Any:
    """Return the answer to OffsetCommit."""
    api = requests.OFFSET_COMMIT
    return of(
        api,
        topics=tuple(
            of(
                api,
                "OffsetCommitResponseTopic",
                name=topic.name,
                partitions=tuple(
                    of(
                        api,
                        "OffsetCommitResponsePartition",
                        partition_index=int(one.partition_index),
                        error_code=error,
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _list_offsets(request: Any) -> Any:
    return listed(request, 0)


def _produce(request: Any) -> Any:
    return produced(request) if request.acks else None


def _versions(_: Any) -> Any:
    return versions({})


def versions(others: Mapping[int, tuple[int, int]]) -> Any:
    """Return the answer to ApiVersions; ``others`` are ranges that differ, by API key."""
    ranges: dict[int, tuple[int, int]] = {}
    for api in vars(requests).values():
        if isinstance(api, Api) and api is not requests.FETCH_BY_ID:
            low, high = ranges.get(api.key, (api.min_version, api.max_version))
            ranges[api.key] = min(low, api.min_version), max(high, api.max_version)
    api = requests.API_VERSIONS
    return of(
        api,
        api_keys=tuple(
            of(api, "ApiVersion", api_key=key, min_version=low, max_version=high)
            for key, (low, high) in (ranges | others).items()
        ),
    )
