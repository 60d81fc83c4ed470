"""A member of a share group that speaks ShareFetch and ShareAcknowledge, and nothing else.

The leader of a partition accepts any member id if the group exists: ``make_group`` creates it.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any
from uuid import UUID, uuid4

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.metadata.v12 import request as metadata_request
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.share_group_heartbeat.v1.request import ShareGroupHeartbeatRequest
from tidelog_core.records.batch import decode_records, iter_headers
from tidelog_core.wire_messages import build

from tests.support.wire_client import WireClient

SHARE_FETCH, SHARE_ACKNOWLEDGE = 78, 79
SETTLE_SECONDS_MAX = 30.0
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FINAL = -1

# (first offset, last offset, types)
Said = tuple[int, int, Sequence[int]]


class ShareMember:
    """One member with one connection to one node; closing it closes no session by itself."""

    def __init__(
        self, port: int, group_id: str, member_id: str, topic: str, *, version: int = 2
    ) -> None:
        self.client = WireClient(port)
        self.group_id = group_id
        self.member_id = member_id
        self.epoch = 0
        self.version = version
        self.topic_id = topic_id_of(self.client, topic)

    def __enter__(self) -> ShareMember:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.socket.close()

    def fetch(
        self,
        *,
        partitions: Sequence[int] = (0,),
        said: dict[int, list[Said]] | None = None,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 50_000_000,
        max_records: int = 500,
        batch_size: int = 500,
        epoch: int | None = None,
        **fields: Any,
    ) -> Any:
        """Fetch; return the whole answer. The session's epoch follows where nothing is wrong."""
        said = said or {}
        schema = load_request_schema(SHARE_FETCH, self.version)
        sent = self.epoch if epoch is None else epoch
        named = {*(partitions if sent == 0 else ()), *said}
        request = build(
            schema,
            group_id=self.group_id,
            member_id=self.member_id,
            share_session_epoch=sent,
            max_wait=datetime.timedelta(milliseconds=max_wait_ms),
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_records=max_records,
            batch_size=batch_size,
            topics=self._topics(SHARE_FETCH, "FetchTopic", "FetchPartition", named, said),
            forgotten_topics_data=(),
            **fields,
        )
        answer = self.client.call(request)
        self._follow(sent, answer)
        return answer

    def records(self, **options: Any) -> list[tuple[int, int, int]]:
        """Fetch partition 0; return first and last offset and delivery count of the acquired records."""
        answer = self.fetch(**options)
        assert answer.error_code is ErrorCode.none, answer
        return acquired(answer)

    def acknowledge(
        self, *said: Said, partition: int = 0, epoch: int | None = None, **fields: Any
    ) -> ErrorCode:
        """Acknowledge records; return the partition's error code, or the answer's."""
        schema = load_request_schema(SHARE_ACKNOWLEDGE, self.version)
        sent = self.epoch if epoch is None else epoch
        by_partition = {partition: list(said)} if said else {}
        request = build(
            schema,
            group_id=self.group_id,
            member_id=self.member_id,
            share_session_epoch=sent,
            topics=self._topics(
                SHARE_ACKNOWLEDGE,
                "AcknowledgeTopic",
                "AcknowledgePartition",
                set(by_partition),
                by_partition,
            ),
            **fields,
        )
        answer = self.client.call(request)
        self._follow(sent, answer)
        if answer.error_code is not ErrorCode.none or not answer.responses:
            return ErrorCode(answer.error_code)
        return ErrorCode(answer.responses[0].partitions[0].error_code)

    def close_session(self) -> ErrorCode:
        """Close the session, which releases acquired records."""
        return self.acknowledge(epoch=FINAL)

    def _follow(self, sent: int, answer: Any) -> None:
        if answer.error_code is ErrorCode.none:
            self.epoch = 0 if sent == FINAL else sent + 1

    def _topics(
        self,
        api_key: int,
        topic_class: str,
        partition_class: str,
        partitions: set[int],
        said: dict[int, list[Said]],
    ) -> tuple[Any, ...]:
        module = sys.modules[load_request_schema(api_key, self.version).__module__]
        if not partitions:
            return ()
        rows = tuple(
            getattr(module, partition_class)(
                partition_index=index,
                acknowledgement_batches=tuple(
                    module.AcknowledgementBatch(
                        first_offset=first, last_offset=last, acknowledge_types=tuple(types)
                    )
                    for first, last, types in said.get(index, ())
                ),
            )
            for index in sorted(partitions)
        )
        return (getattr(module, topic_class)(topic_id=self.topic_id, partitions=rows),)


def make_group(port: int, group_id: str, topic: str) -> None:
    """Make a share group, by a member that joins and goes."""
    member = str(uuid4())
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        with WireClient(port) as client:
            found = client.call(
                build(FindCoordinatorRequest, key_type=0, coordinator_keys=(group_id,))
            ).coordinators[0]
        if found.error_code is ErrorCode.none:
            with WireClient(found.port) as client:
                codes = [
                    client.call(
                        build(
                            ShareGroupHeartbeatRequest,
                            group_id=group_id,
                            member_id=member,
                            member_epoch=epoch,
                            subscribed_topic_names=(topic,),
                        )
                    ).error_code
                    for epoch in (0, -1)
                ]
            if codes == [ErrorCode.none, ErrorCode.none]:
                return
        assert time.monotonic() < deadline, f"nobody coordinates {group_id}: {found}"
        time.sleep(0.05)


def partition_of(answer: Any, index: int = 0) -> Any:
    """Return the answer's part about a partition, ``None`` if there is none."""
    for topic in answer.responses:
        for partition in topic.partitions:
            if partition.partition_index == index:
                return partition
    return None


def acquired(answer: Any, index: int = 0) -> list[tuple[int, int, int]]:
    """Return first and last offset and delivery count of the acquired records."""
    partition = partition_of(answer, index)
    if partition is None:
        return []
    return [(a.first_offset, a.last_offset, a.delivery_count) for a in partition.acquired_records]


def values(answer: Any, index: int = 0) -> dict[int, bytes | None]:
    """Return the acquired records' values by offset."""
    partition = partition_of(answer, index)
    if partition is None:
        return {}
    ranges = acquired(answer, index)
    found = {}
    data = bytes(partition.records or b"")
    for position, header in iter_headers(data):
        if header.is_control:
            continue
        for record in decode_records(data, position):
            if any(first <= record.offset <= last for first, last, _ in ranges):
                found[record.offset] = record.value
    return found


def topic_id_of(client: WireClient, topic: str) -> UUID:
    """Return a topic's id."""
    request = build(
        MetadataRequest,
        topics=(build(metadata_request.MetadataRequestTopic, topic_id=None, name=topic),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    found: UUID | None = client.call(request).topics[0].topic_id
    assert found is not None, f"there is no topic {topic}"
    return found
