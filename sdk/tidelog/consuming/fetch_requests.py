"""Fetch requests: with a session per node for waiting partitions, without one for the others.

A consumer that has read a partition to its end waits for records in a fetch session
(``fetch_session``): each request names only the partitions that were added, removed or
moved, and each answer only the partitions with records. Available records are fetched
without a session: those answers are large, and all positions change with each.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as by_name
from kio.schema.fetch.v17 import request as by_id
from tidelog_core.fetch_epochs import FINAL_EPOCH, NO_SESSION
from tidelog_core.fetch_session import FetcherSession
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build

from tidelog.consuming.positions import PartitionState
from tidelog.errors import TidelogError, error_for
from tidelog.options import ConsumerOptions
from tidelog.wire.connection import Connection
from tidelog.wire.requests import FETCH_BY_ID, FETCH_BY_NAME, Api, supports

# The number of partitions that a fetch may add to a session: with their topics at most the
# lowest limit that a Tidelog node can have. And that it may name: half of a node's default limit.
NEW_MAX = 500
NAMED_MAX = 10_000

_Key = tuple[str | UUID, int]
"""The name of a partition in a request: topic name or id, and number."""


class _Wanted(NamedTuple):
    """A partition's entry in a fetch request."""

    leader_epoch: int
    offset: int


class FetchedPartition(NamedTuple):
    """A node's answer for one partition."""

    partition: TopicPartition
    offset: int  # the requested one
    answer: Any


class Fetched(NamedTuple):
    """A node's answer."""

    response: Any
    partitions: list[FetchedPartition]


class NodeFetches:
    """Sends one consumer's fetches to one node."""

    def __init__(
        self,
        options: ConsumerOptions,
        *,
        topic_id: Callable[[str], UUID | None],
        request_timeout_s: float,
    ) -> None:
        self._options = options
        self._topic_id = topic_id
        self._timeout_s = request_timeout_s
        self._has_ids = True  # Topics were last named by id.
        self._is_refused = False  # The last answer of a session could not be used.
        self._session: FetcherSession[_Key, _Wanted] = FetcherSession(
            new_max=NEW_MAX, named_max=NAMED_MAX, clock_s=time.monotonic
        )

    async def fetch(self, connection: Connection, states: Sequence[PartitionState]) -> Fetched:
        """Fetch available records, without a session. Raises the request's error."""
        api, names, wanted = self._wanted(connection, states)
        request = self._build(api, wanted.items(), max_wait_ms=0, min_bytes=1)
        response = await connection.request(api, request, timeout_s=self._timeout_s)
        if response.error_code is not ErrorCode.none:
            raise error_for(response.error_code, None, about="fetch")
        return _fetched(response, names, wanted.get)

    async def wait(self, connection: Connection, states: Sequence[PartitionState]) -> Fetched:
        """Wait for records of exactly these partitions, in the node's session.

        Returns nothing if the node has lost the session; the next call opens another. Raises
        the request's error.
        """
        session, options = self._session, self._options
        api, names, wanted = self._wanted(connection, states)
        if (api is FETCH_BY_ID) != self._has_ids:
            self._has_ids = api is FETCH_BY_ID
            session.restart()  # A session is either by topic name or by id.
        session.replace(wanted)
        fetch = session.next_fetch()
        assert fetch is not None, "the session has partitions"
        max_wait_ms = options.fetch_max_wait_ms if fetch.may_wait else 0
        request = self._build(
            api,
            fetch.named,
            max_wait_ms=max_wait_ms,
            min_bytes=options.fetch_min_bytes,
            session=(fetch.session_id, fetch.session_epoch),
            forgotten=fetch.forgotten,
        )
        try:
            response = await connection.request(
                api, request, timeout_s=self._timeout_s + max_wait_ms / 1000
            )
        except BaseException:
            session.restart()  # The node may have applied the request although the answer is lost.
            raise
        keys = [
            (_topic_key(topic), int(answer.partition_index))
            for topic in response.responses
            for answer in topic.partitions
        ]
        if session.on_answer(response.error_code, int(response.session_id), keys):
            self._is_refused = False
            return _fetched(response, names, session.last_asked)
        was_refused, self._is_refused = self._is_refused, True
        if was_refused or response.error_code is ErrorCode.none:
            raise _refusal(response)
        return Fetched(response, [])

    async def close(self, connection: Connection, *, timeout_s: float) -> None:
        """Close the node's session, if one is open. Raises the request's error.

        No request may be in flight; the node answers a fetch that it still holds.
        """
        fetch = self._session.last_fetch()
        if fetch is None:
            return
        api = FETCH_BY_ID if self._has_ids else FETCH_BY_NAME
        session = (fetch.session_id, fetch.session_epoch)
        request = self._build(api, (), max_wait_ms=0, min_bytes=0, session=session)
        await connection.request(api, request, timeout_s=timeout_s)

    def _wanted(
        self, connection: Connection, states: Sequence[PartitionState]
    ) -> tuple[Api, dict[str | UUID, str], dict[_Key, _Wanted]]:
        """Return the API, the topics' names by their key in the request, and the partitions."""
        ids = {name: self._topic_id(name) for name in {one.partition.topic for one in states}}
        has_ids = supports(FETCH_BY_ID, connection.versions) and all(ids.values())
        keys: dict[str, str | UUID] = {
            name: topic_id if has_ids and topic_id else name for name, topic_id in ids.items()
        }
        wanted = {
            (keys[state.partition.topic], state.partition.partition): _Wanted(
                state.leader_epoch, state.fetch_position
            )
            for state in states
        }
        api = FETCH_BY_ID if has_ids else FETCH_BY_NAME
        return api, {key: name for name, key in keys.items()}, wanted

    def _build(
        self,
        api: Api,
        named: Iterable[tuple[_Key, _Wanted]],
        *,
        max_wait_ms: int,
        min_bytes: int,
        session: tuple[int, int] = (NO_SESSION, FINAL_EPOCH),
        forgotten: Iterable[_Key] = (),
    ) -> Any:
        options, module = self._options, by_id if api is FETCH_BY_ID else by_name
        topics: dict[str | UUID, list[Any]] = {}
        for (topic, partition), wanted in named:
            topics.setdefault(topic, []).append(
                build(
                    module.FetchPartition,
                    partition=partition,
                    current_leader_epoch=wanted.leader_epoch,
                    fetch_offset=wanted.offset,
                    partition_max_bytes=options.max_partition_fetch_bytes,
                )
            )
        gone: dict[str | UUID, list[int]] = {}
        for topic, partition in forgotten:
            gone.setdefault(topic, []).append(partition)
        topic_field = "topic_id" if api is FETCH_BY_ID else "topic"
        return build(
            module.FetchRequest,
            max_wait=datetime.timedelta(milliseconds=max_wait_ms),
            min_bytes=min_bytes,
            max_bytes=options.fetch_max_bytes,
            isolation_level=int(options.isolation_level == "read_committed"),
            session_id=session[0],
            session_epoch=session[1],
            topics=tuple(
                build(module.FetchTopic, **{topic_field: topic}, partitions=tuple(partitions))
                for topic, partitions in topics.items()
            ),
            forgotten_topics_data=tuple(
                build(module.ForgottenTopic, **{topic_field: topic}, partitions=tuple(partitions))
                for topic, partitions in gone.items()
            ),
            rack_id=options.rack or "",
        )


def _fetched(
    response: Any,
    names: Mapping[str | UUID, str],
    asked: Callable[[_Key], _Wanted | None],
) -> Fetched:
    partitions = []
    for topic in response.responses:
        key = _topic_key(topic)
        for answer in topic.partitions:
            wanted = asked((key, int(answer.partition_index)))
            if wanted is not None and key in names:
                partition = TopicPartition(names[key], int(answer.partition_index))
                partitions.append(FetchedPartition(partition, wanted.offset, answer))
    return Fetched(response, partitions)


def _topic_key(topic: Any) -> str | UUID:
    key: str | UUID = topic.topic if hasattr(topic, "topic") else topic.topic_id
    return key


def _refusal(response: Any) -> TidelogError:
    if response.error_code is ErrorCode.none:
        return error_for(ErrorCode.invalid_fetch_session_epoch, None, about="fetch")
    return error_for(response.error_code, None, about="fetch")
