"""Which lane a run of a query claims: no two of the last ``PAIR_COUNT`` runs have the same.

A run claims a pair of lanes when its first task writes. The claims are the metadata of an offset of
a group of the query's own, the latest first. If that offset has expired, the next run claims any
pair but that of the last decision. A claim is added

1. by the producer of one transactional id, whose start fences that of any other claim and ends its
   transaction;
2. after the claims are read again, so none is overwritten;
3. in a transaction, which fails if another claim has begun since 1.

All tasks of a run may do so at once: one of them adds the claim, the others find it. The first task
is among those that Spark starts first, so the others wait a while for its claim: if all added one,
they would fence each other again and again. Earlier programs took a lane below ``CLAIMED_FROM`` by
the run's id, so none of theirs is claimed.
"""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import Sequence

from tidelog import Admin, GroupMetadata, OffsetAndMetadata
from tidelog.errors import ProducerFenced, TidelogError
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC, TopicPartition

from tidelog_spark.sink.clients import (
    UNSTABLE_TIMEOUT_MS,
    fence,
    open_admin,
    open_producer,
)
from tidelog_spark.sink.errors import CorruptDecision
from tidelog_spark.sink.options import SinkOptions
from tidelog_spark.sink.runs import DecidingRun, QueryRun

CLAIMED_FROM = 256
PAIR_COUNT = 128
KEPT_MAX = 32  # claims; an offset's metadata has at most 4096 bytes by default
TRIES_MAX = 10
FIRST_TASK_LOOKS = 15  # for the first task's claim, until others add one
_LOOK_PAUSE_SECONDS = 0.2
_FIRST_WAIT_SECONDS = 0.1

_CLAIMS = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
_Claim = tuple[str, int]
"""A run's id, and the number of its pair."""


async def claim_lane(
    options: SinkOptions, query: QueryRun, last: DecidingRun | None, *, task: int
) -> int:
    """Return the first lane of the run's pair, which it claims if it has none.

    ``last`` has decided the last micro-batch: its pair is not claimed. ``task`` is the number of
    the task that asks. Raises ``ProducerFenced`` if other claims get in between again and again.
    """
    lane = await _look(options, query, count=FIRST_TASK_LOOKS if task else 1)
    for number in range(TRIES_MAX):
        if lane is not None:
            return lane
        try:
            return await _add(options, query, last)
        except ProducerFenced:
            if number == TRIES_MAX - 1:
                raise
            await asyncio.sleep(random.uniform(0, _FIRST_WAIT_SECONDS * 2**number))
        lane = await _look(options, query)
    raise AssertionError("the last try returns or raises")


async def claimed_lane(options: SinkOptions, query: QueryRun) -> int | None:
    """Return the first lane of the run's pair, ``None`` if it has none.

    Ends a claim that is being added: its program has died, or adds it again.
    """
    async with open_admin(options, timeout_ms=UNSTABLE_TIMEOUT_MS) as admin:
        try:
            return _lane(await _read(admin, query), query)
        except TidelogError as error:
            if not error.retriable:
                raise
    await fence(options, _claiming_id(query))
    async with open_admin(options) as admin:
        return _lane(await _read(admin, query), query)


async def _look(options: SinkOptions, query: QueryRun, *, count: int = 1) -> int | None:
    """Return the first lane of the run's pair, ``None`` if it is not found ``count`` times.

    It is not either while a claim is being added, or the nodes are busy.
    """
    async with open_admin(options, timeout_ms=UNSTABLE_TIMEOUT_MS) as admin:
        for number in range(count):
            if number:
                await asyncio.sleep(_LOOK_PAUSE_SECONDS)
            try:
                lane = _lane(await _read(admin, query), query)
            except TidelogError as error:
                if not error.retriable:
                    raise
            else:
                if lane is not None:
                    return lane
    return None


async def _add(options: SinkOptions, query: QueryRun, last: DecidingRun | None) -> int:
    async with (
        open_producer(options, transactional_id=_claiming_id(query)) as producer,
        open_admin(options) as admin,
    ):
        claims = await _read(admin, query)
        lane = _lane(claims, query)
        if lane is not None:
            return lane
        pair = next_pair(claims, query.run_id, last)
        text = json.dumps([(query.run_id, pair), *claims][:KEPT_MAX], separators=(",", ":"))
        async with producer.transaction() as transaction:
            await transaction.send_offsets(
                {_CLAIMS: OffsetAndMetadata(0, metadata=text)}, GroupMetadata(_group(query))
            )
        return lane_of(pair)


def next_pair(claims: Sequence[_Claim], run_id: str, last: DecidingRun | None) -> int:
    """Return the pair to claim: the one after the latest claim, but for that of ``last``."""
    taken = None if last is None else (last.lane - CLAIMED_FROM) // 2
    latest = claims[0][1] if claims else zlib.crc32(run_id.encode())
    pair = (latest + 1) % PAIR_COUNT
    return (pair + 1) % PAIR_COUNT if pair == taken else pair


def lane_of(pair: int) -> int:
    """Return the first lane of the pair."""
    return CLAIMED_FROM + 2 * pair


def _lane(claims: Sequence[_Claim], query: QueryRun) -> int | None:
    return next((lane_of(pair) for run_id, pair in claims if run_id == query.run_id), None)


async def _read(admin: Admin, query: QueryRun) -> list[_Claim]:
    """Return the claims, the latest first. Raises ``CorruptDecision``."""
    group_id = _group(query)
    found = (await admin.list_group_offsets(group_id, [_CLAIMS])).get(_CLAIMS)
    if found is None:
        return []
    try:
        return [(str(run_id), int(pair)) for run_id, pair in json.loads(found.metadata)]
    except (ValueError, TypeError) as error:
        raise CorruptDecision(group_id, repr(error)) from None


def _group(query: QueryRun) -> str:
    return f"{query.names.group_id}.lanes"


def _claiming_id(query: QueryRun) -> str:
    return f"{_group(query)}-claim"
