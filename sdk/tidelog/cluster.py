"""``Cluster``: cached metadata, and requests to the nodes.

One background task fetches the metadata: on request (an unknown topic, or an answer that
shows a leader change) and at least every ``metadata_max_age_ms``. ``wait_for_news`` waits
for the next answer.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.metadata.v13.request import MetadataRequest, MetadataRequestTopic
from tidelog_core.model import NO_LEADER, TopicPartition
from tidelog_core.wire_messages import build

from tidelog.connections import Connections, Lane
from tidelog.encodable import check_topic
from tidelog.errors import (
    ClientClosed,
    ConnectionFailed,
    InvalidRequest,
    PartitionNotKnown,
    RequestTimedOut,
    TidelogError,
    TokenNotFetched,
    error_for,
    topic_error,
)
from tidelog.metadata import Node, PartitionInfo, TopicInfo, merge, topic_info, with_leader
from tidelog.options import ClientOptions
from tidelog.wire.answers import entries_of
from tidelog.wire.backoff import Backoff
from tidelog.wire.connection import Connection
from tidelog.wire.frame_buffers import KEPT_BYTES_MAX, FrameBuffers
from tidelog.wire.requests import FIND_COORDINATOR, METADATA, Api

logger = logging.getLogger(__name__)

_IDLE_AGES_MAX = 3  # Topics unused for this many metadata ages are no longer fetched.
# Nodes that are tried before the bootstrap servers: their addresses may all have gone.
_KNOWN_TRIED_MAX = 3
# Fetches of metadata in a row that ask again soon; the next ones wait longer and longer.
_QUICK_FETCHES_MAX = 20


class CoordinatorKind(Enum):
    """The type of a coordinator; the value is the protocol's key type."""

    GROUP = 0
    TRANSACTION = 1

    def __str__(self) -> str:
        return "group" if self is CoordinatorKind.GROUP else "transactional id"


class Cluster:
    """A client's view of the cluster. Used from one event loop only."""

    def __init__(self, options: ClientOptions, *, frame_bytes_max: int = KEPT_BYTES_MAX) -> None:
        """``frame_bytes_max`` bounds the buffers of large answers that are kept for others."""
        self._options = options
        self._buffers = FrameBuffers(frame_bytes_max)
        self._nodes: dict[int, Node] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._wanted: dict[str, float] = {}  # topic -> loop time of its last use
        self._wants_all = False
        self._auto_create = False
        self._connections = Connections(options, self._buffers)
        self._news: asyncio.Event = asyncio.Event()
        self._stale = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the connections
        self.cluster_id: str | None = None
        self.controller_id = NO_LEADER
        self.version = 0  # grows with every metadata answer
        self.last_error: TidelogError | None = None

    # -- starting and closing --

    async def start(self, *, auto_create_topics: bool = False) -> None:
        """Connect to one node and fetch the metadata. Idempotent.

        Raises the last failure if no node answers within ``bootstrap_timeout_ms``. After a failure
        or cancellation no connection is open, and ``start`` may be called again. Raises
        ``InvalidRequest`` in another event loop than the first call, and ``ClientClosed``.
        """
        self._check_open()
        self.check_loop()
        if self._loop is None:
            self._auto_create = auto_create_topics
            await self._bootstrap()
            if self._is_closed:
                await self._disconnect()
            self._check_open()
        self._loop = asyncio.get_running_loop()
        self.resume()

    def resume(self) -> None:
        """Keep the metadata current, also if the program has cancelled the task that does.

        ``start`` has to be called first. Raises ``InvalidRequest`` in another event loop.
        """
        self.check_loop()
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def _bootstrap(self) -> None:
        backoff = self.backoff()
        timeout_ms = self._options.bootstrap_timeout_ms or self._options.request_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    try:
                        await self._fetch_metadata()
                        break
                    except TidelogError as error:
                        self.last_error = error
                        if not error.retriable:
                            raise
                        if backoff.failure_count == 0:
                            logger.warning(
                                "no node answers yet, will retry", extra={"reason": str(error)}
                            )
                        await asyncio.sleep(backoff.next_s())
        except TimeoutError:
            await self._disconnect()
            if isinstance(self.last_error, TokenNotFetched):
                raise self.last_error from None  # Nodes answer: the issuer of tokens does not.
            servers = ", ".join(map(str, self._options.bootstrap))
            reason = self.last_error or f"nothing came within {timeout_ms / 1000:g} s"
            raise ConnectionFailed(f"no node answers at {servers}: {reason}") from None
        except BaseException:
            await self._disconnect()
            raise

    async def close(self) -> None:
        """Close every connection; idempotent. In another event loop they are left to that one."""
        self._is_closed = True
        self._connections.refuse()
        if self.is_elsewhere:
            return
        if self._keeper is not None:
            self._keeper.cancel()
        try:
            await self._disconnect()
            if self._keeper is not None:
                await asyncio.gather(self._keeper, return_exceptions=True)
        finally:
            self._notify()

    @property
    def is_elsewhere(self) -> bool:
        """Whether the connections belong to another event loop than the running one."""
        return self._loop is not None and self._loop is not asyncio.get_running_loop()

    def check_loop(self) -> None:
        """Raise ``InvalidRequest`` if the connections belong to another event loop."""
        if self.is_elsewhere:
            raise InvalidRequest(
                "the client belongs to another event loop: make one in each, such as in each"
                " asyncio.run(), or use the client that sync() returns"
            )

    @property
    def request_timeout_s(self) -> float:
        """Return the time that an answer may take."""
        return self._options.request_timeout_ms / 1000

    @property
    def nodes(self) -> Mapping[int, Node]:
        """Return the live nodes by id."""
        return self._nodes

    def frame_room(self, size_bytes: int) -> memoryview:
        """Return memory for bytes of an answer that outlive it; its content is anything."""
        return self._buffers.take(size_bytes)

    def note_decoding(self) -> None:
        """Note that answers were decoded now: the memory for it is given back some time later."""
        self._buffers.note_use()

    def backoff(self) -> Backoff:
        """Return a new backoff for one request's retries."""
        return Backoff(self._options.retry_backoff_ms, self._options.retry_backoff_max_ms)

    async def _disconnect(self) -> None:
        try:
            await self._connections.close_all()
        finally:
            self._buffers.close()

    # -- metadata --

    def topic(self, name: str) -> TopicInfo | None:
        """Return the known metadata of the topic, or None; keeps the topic in later fetches.

        Raises ``InvalidTopic`` for a name that no request can have.
        """
        known = self._topics.get(name)
        if known is None:
            check_topic(name)  # With it, no topic's metadata could be fetched.
        self._wanted[name] = asyncio.get_running_loop().time()
        return known

    def topics(self) -> Mapping[str, TopicInfo]:
        """Return the metadata of all known topics."""
        return self._topics

    def leader(self, partition: TopicPartition) -> PartitionInfo | None:
        """Return the partition if it has a live leader whose address is known."""
        topic = self._topics.get(partition.topic)
        info = topic.partitions.get(partition.partition) if topic is not None else None
        return info if info is not None and info.leader in self._nodes else None

    def note_leader(
        self, partition: TopicPartition, *, leader: int, leader_epoch: int, nodes: Iterable[Node]
    ) -> None:
        """Store a leader from an answer other than metadata, if its epoch is newer.

        Source: KIP-951.
        """
        for node in nodes:
            self._nodes.setdefault(node.node_id, node)
        topic = self._topics.get(partition.topic)
        if topic is not None:
            self._topics[partition.topic] = with_leader(
                topic, partition.partition, leader=leader, leader_epoch=leader_epoch
            )

    def want(self, topics: Iterable[str]) -> None:
        """Keep these topics in metadata fetches; fetches soon if one is unknown.

        Raises ``InvalidTopic`` for a name that no request can have.
        """
        now = asyncio.get_running_loop().time()
        for name in topics:
            if name not in self._topics:
                check_topic(name)
                self._stale.set()
            self._wanted[name] = now

    def want_all(self) -> None:
        """Keep all topics in metadata fetches (for a subscription by pattern)."""
        if not self._wants_all:
            self._wants_all = True
            self._stale.set()

    def invalidate(self) -> None:
        """Fetch the metadata again soon: an answer showed that it is outdated."""
        self._stale.set()

    async def wait_for_news(self) -> None:
        """Wait for the next metadata answer. Raises ``ClientClosed``."""
        await self._news.wait()
        self._check_open()

    async def refresh(self) -> None:
        """Fetch the metadata and wait for the answer, through failures."""
        self._stale.set()
        await self.wait_for_news()

    async def wait_for_topic(self, name: str, *, timeout_s: float) -> TopicInfo:
        """Return the topic once its metadata is known.

        Raises the nodes' error for the topic if it is not retriable, and
        ``UnknownTopicOrPartition`` or ``RequestTimedOut`` after the timeout.
        """
        known = self.topic(name)
        try:
            async with asyncio.timeout(timeout_s):
                while known is None or known.error is not ErrorCode.none or not known.partitions:
                    if known is not None and not known.error.retriable and known.error:
                        raise topic_error(known.error, None, topic=name)
                    await self.refresh()
                    known = self.topic(name)
        except TimeoutError:
            if known is not None and known.error:
                raise topic_error(known.error, None, topic=name) from None
            raise RequestTimedOut(
                f"no metadata for topic {name!r} within {timeout_s:g} s"
                + (f": {self.last_error}" if self.last_error else "")
            ) from None
        return known

    async def wait_for_partition(
        self, known: TopicInfo, partition: int, *, timeout_s: float
    ) -> TopicInfo:
        """Return the topic once it has the partition, which may have been added recently.

        Raises ``PartitionNotKnown`` after the timeout, and the errors of ``wait_for_topic``.
        """
        backoff = self.backoff()
        try:
            async with asyncio.timeout(timeout_s):
                while partition not in known.partitions:
                    await self.refresh()
                    known = await self.wait_for_topic(known.name, timeout_s=timeout_s)
                    if partition not in known.partitions:
                        await asyncio.sleep(backoff.next_s())
        except TimeoutError:
            raise PartitionNotKnown(
                known.name,
                partition,
                partition_count=known.partition_count,
                timeout_s=timeout_s,
            ) from None
        return known

    # -- requests --

    async def request(
        self,
        api: Api,
        message: object,
        *,
        node_id: int | None = None,
        lane: Lane = Lane.SHARED,
        timeout_s: float | None = None,
    ) -> Any:
        """Send to the node (any if None) and return the response's newest class.

        One attempt: raises ``ConnectionFailed`` or ``RequestTimedOut``.
        """
        connection = await (
            self.any_connection() if node_id is None else self.connection(node_id, lane)
        )
        timeout_s = self.request_timeout_s if timeout_s is None else timeout_s
        return await connection.request(api, message, timeout_s=timeout_s)

    async def connection(self, node_id: int, lane: Lane = Lane.SHARED) -> Connection:
        """Return an open connection to the node. Raises ``ConnectionFailed``."""
        node = self._nodes.get(node_id)
        if node is None:
            raise ConnectionFailed(f"node {node_id} is not in the cluster")
        try:
            return await self._connections.to(node.address, lane)
        except TidelogError:
            self._stale.set()  # The node may have left, or changed its address.
            raise

    def open_connection_to(self, node_id: int, lane: Lane = Lane.SHARED) -> Connection | None:
        """Return the connection if it is open now."""
        node = self._nodes.get(node_id)
        return None if node is None else self._connections.open_one(node.address, lane)

    async def any_connection(self) -> Connection:
        """Return a connection to any node, preferably one that is open."""
        if (connection := self._connections.any_open()) is not None:
            return connection
        known = list({node.address for node in self._nodes.values()})
        random.shuffle(known)
        addresses = dict.fromkeys((*known[:_KNOWN_TRIED_MAX], *self._options.bootstrap))
        return await self._connections.first_of(addresses)

    async def find_coordinator(
        self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP
    ) -> int:
        """Return the node that coordinates the group or transactional id. One attempt."""
        request = build(FindCoordinatorRequest, key_type=kind.value, coordinator_keys=(key,))
        response = await self.request(FIND_COORDINATOR, request)
        about = f"{kind} {key!r}"
        answer = entries_of(FIND_COORDINATOR, response, [key], about=f"coordinator of {about}")[key]
        if answer.error_code is not ErrorCode.none:
            raise error_for(answer.error_code, answer.error_message, about=about)
        node = Node(int(answer.node_id), answer.host, int(answer.port), None)
        self._nodes.setdefault(node.node_id, node)
        return node.node_id

    # -- internals --

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the client is closed")

    async def _keep(self) -> None:
        """Fetch the metadata when they are old or outdated, until cancelled."""
        backoff = self.backoff()
        loop = asyncio.get_running_loop()
        quick_count = 0
        while True:
            if not self._stale.is_set():
                quick_count = 0
            timer = loop.call_later(self._options.metadata_max_age_ms / 1000, self._stale.set)
            try:
                await self._stale.wait()
            finally:
                timer.cancel()
            self._stale.clear()
            try:
                await self._fetch_metadata()
            except TidelogError as error:
                self.last_error = error
                logger.warning("cannot fetch metadata, will retry", extra={"reason": str(error)})
                self._stale.set()
            except Exception as error:
                # A task supervisor: without metadata every call of this client would wait forever.
                self.last_error = ConnectionFailed(f"cannot fetch metadata: {error!r}")
                logger.exception("cannot fetch metadata, will retry")
                self._stale.set()
            else:
                quick_count += 1
                # What they do not show, such as a partition that does not exist, may be asked for
                # again and again.
                if self._is_settled() and quick_count <= _QUICK_FETCHES_MAX:
                    backoff.reset()
                    # Many answers may show the same change: fetch at most this often.
                    await asyncio.sleep(self._options.retry_backoff_ms / 2000)
                    continue
            await asyncio.sleep(backoff.next_s())

    def _is_settled(self) -> bool:
        """Whether all wanted topics are known and all their partitions have leaders."""
        wanted = [topic for name in self._wanted if (topic := self._topics.get(name)) is not None]
        is_settled = not any(
            topic.error.retriable
            or any(info.leader not in self._nodes for info in topic.partitions.values())
            for topic in wanted
        )
        if not is_settled:
            self._stale.set()
        return is_settled

    async def _fetch_metadata(self) -> None:
        now = asyncio.get_running_loop().time()
        idle_s_max = _IDLE_AGES_MAX * self._options.metadata_max_age_ms / 1000
        for name in [n for n, asked in self._wanted.items() if now - asked > idle_s_max]:
            del self._wanted[name]
        wanted = list(self._wanted)
        topics = None
        if not self._wants_all:
            topics = tuple(build(MetadataRequestTopic, name=name) for name in wanted)
        request = build(MetadataRequest, topics=topics, allow_auto_topic_creation=self._auto_create)
        response = await self.request(METADATA, request)
        self._nodes = {
            int(b.node_id): Node(int(b.node_id), b.host, int(b.port), b.rack)
            for b in response.brokers
        }
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        known = {} if self._wants_all else {n: t for n, t in self._topics.items() if n in wanted}
        for answer in response.topics:
            if answer.name is not None:
                known[answer.name] = merge(self._topics.get(answer.name), topic_info(answer))
        self._topics = known
        current = {node.address for node in self._nodes.values()}
        self._connections.close_others(current | set(self._options.bootstrap))
        self._notify()

    def _notify(self) -> None:
        self.version += 1
        news, self._news = self._news, asyncio.Event()
        if self._is_closed:
            self._news.set()
        news.set()
