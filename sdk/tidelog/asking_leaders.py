"""Requests to partition leaders, repeated until each partition has an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from kio.schema.errors import ErrorCode
from tidelog_core.model import TopicPartition

from tidelog.cluster import Cluster
from tidelog.errors import EntryNotAnswered, RequestTimedOut, TidelogError, error_for
from tidelog.wire.answers import LACKING_ANSWERS_MAX

QuestionT = TypeVar("QuestionT")
AnswerT = TypeVar("AnswerT")


async def ask_until_found(
    cluster: Cluster,
    questions: Mapping[TopicPartition, QuestionT],
    ask: Callable[
        [Mapping[TopicPartition, QuestionT], dict[TopicPartition, AnswerT]],
        Awaitable[TidelogError | None],
    ],
    *,
    what: str,
    timeout_s: float,
) -> dict[TopicPartition, AnswerT]:
    """Return the answer of each partition.

    ``ask`` adds answers to its second argument, and returns a failure if a partition has
    none. Retries while leaders move; raises an error that is not retriable, ``EntryNotAnswered``
    if partitions are left out of answers again, else the last error after the timeout.
    """
    found: dict[TopicPartition, AnswerT] = {}
    backoff = cluster.backoff()
    failure: TidelogError | None = None
    lacking_count = 0
    try:
        async with asyncio.timeout(timeout_s):
            while missing := {p: q for p, q in questions.items() if p not in found}:
                failure = await ask(missing, found)
                if failure is not None:
                    if not failure.retriable:
                        raise failure
                    if isinstance(failure, EntryNotAnswered):
                        lacking_count += 1
                        if lacking_count == LACKING_ANSWERS_MAX:
                            raise failure
                        await cluster.refresh()  # The next answer must be the current leader's.
                        continue
                    cluster.invalidate()
                    await asyncio.sleep(backoff.next_s())
    except TimeoutError:
        raise failure or RequestTimedOut(f"no {what} within {timeout_s:g} s") from None
    return found


async def by_leader(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> tuple[dict[int, list[TopicPartition]], list[TidelogError]]:
    """Return the partitions by the node that leads them, and a failure for each without one."""
    led: dict[int, list[TopicPartition]] = {}
    failures: list[TidelogError] = []
    wanted = list(partitions)
    # Each asks for its topic, so one answer has all of them.
    if None in [cluster.topic(name) for name in {partition.topic for partition in wanted}]:
        await cluster.refresh()
    for partition in wanted:
        leader = cluster.leader(partition)
        if leader is None:
            failures.append(_without_leader(cluster, partition))
        else:
            led.setdefault(leader.leader, []).append(partition)
    return led, failures


def worst(failures: Iterable[TidelogError]) -> TidelogError | None:
    """Return the failure after which least may be repeated, or None."""
    return min(failures, key=_repeatable, default=None)


def _repeatable(failure: TidelogError) -> tuple[bool, bool]:
    return failure.retriable, not isinstance(failure, EntryNotAnswered)


def _without_leader(cluster: Cluster, partition: TopicPartition) -> TidelogError:
    topic = cluster.topic(partition.topic)
    if topic is not None and partition.partition in topic.partitions:
        return error_for(ErrorCode.leader_not_available, "it has no leader", about=partition)
    return error_for(ErrorCode.unknown_topic_or_partition, None, about=partition)
