"""Fetches a range of offsets from a partition's leader, as a consumer would.

For records that a replica has lost from the middle of its log. The leader treats the fetch as a
consumer's, so this broker's progress as a follower does not change. The leader reads records that
it has only in the tier from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from tidelog_core.errors import (
    CorruptRecordBatch,
    ErrorCode,
    NotLeaderOrFollower,
    OffsetOutOfRange,
)
from tidelog_core.log.append_checks import PositionedHeader, check_replicated

from tidelog_node.dialing.leader_connection import LeaderConnection
from tidelog_node.follower.turn_room import TurnRoom
from tidelog_node.follower.wire import (
    FetchedPartition,
    FollowerLimits,
    WantedPartition,
    encode_follower_fetch,
    error_name,
    parse_follower_fetch,
)
from tidelog_node.replicas.replica import Replica
from tidelog_node.wire.primitives import PARSE_ERRORS

ANSWER_SECONDS_MAX = 30.0
FETCH_BYTES = 4_194_304
NOBODY = -1  # as a replica: the fetch is a consumer's
EMPTY_ANSWERS_MAX = 20
WAIT_MS = 500


async def fetch_range(
    replica: Replica,
    connection: LeaderConnection,
    *,
    start: int,
    end: int,
    leader_epoch: int,
) -> AsyncGenerator[tuple[memoryview, list[PositionedHeader]], None]:
    """Yield the batches in ``[start, end)``, whole and checked, with their headers.

    They come in pieces, each for one turn of the event loop.
    Ends early if the leader sends only other records, or more than ``EMPTY_ANSWERS_MAX`` empty
    answers. Closes the connection at the end. The caller must close the generator
    (``contextlib.aclosing``). Raises ``OSError``, ``TimeoutError`` or
    ``NotLeaderOrFollower`` if the leader does not answer with records, ``OffsetOutOfRange`` if it
    does not have them, ``CorruptRecordBatch`` and ``UnsupportedMagic`` if its own are damaged.
    """
    try:
        empty_count = 0
        while start < end:
            fetched = await _fetch(connection, replica, start, leader_epoch)
            if fetched.records is None:
                empty_count += 1
                if empty_count > EMPTY_ANSWERS_MAX:
                    return  # The caller sees how far the batches reach.
                continue
            rest, first = fetched.records, start
            while True:
                checked, size_bytes = check_replicated(rest, TurnRoom().limit)
                if not checked:
                    break
                headers = [found for found in checked if start <= found[1].base_offset < end]
                if headers:
                    yield rest, headers
                    start = headers[-1][1].next_offset
                rest = rest[size_bytes:]
                await asyncio.sleep(0)
            if start == first:
                return
    finally:
        connection.close()


async def _fetch(
    connection: LeaderConnection, replica: Replica, offset: int, leader_epoch: int
) -> FetchedPartition:
    limits = FollowerLimits(
        replica_id=NOBODY,
        replica_epoch=-1,
        max_wait_ms=WAIT_MS,
        max_bytes=FETCH_BYTES,
        partition_max_bytes=FETCH_BYTES,
    )
    wanted = WantedPartition(replica.partition.partition, leader_epoch, offset, -1, -1)
    request = encode_follower_fetch(0, limits, {replica.topic_id.bytes: [wanted]})
    answer = await connection.exchange(request, timeout_s=ANSWER_SECONDS_MAX)
    try:
        error_code, _, found = parse_follower_fetch(answer)
    except PARSE_ERRORS as error:
        raise NotLeaderOrFollower(f"the answer cannot be read: {error!r}") from error
    if error_code or len(found) != 1 or found[0].error_code:
        code = error_code or (found[0].error_code if found else 0)
        if code == ErrorCode.corrupt_message:
            raise CorruptRecordBatch("the leader's records are damaged too")
        if code == ErrorCode.offset_out_of_range:
            first, end = (found[0].log_start_offset, found[0].high_watermark) if found else (-1, -1)
            raise OffsetOutOfRange(replica.partition, offset, start=first, end=end)
        raise NotLeaderOrFollower(f"the leader answers {error_name(code)}")
    return found[0]
