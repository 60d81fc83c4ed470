"""Sends the outcome of a transaction to every partition in it.

A prepared transaction's marker is sent to the leaders of its partitions until every ISR member of
each has it. Markers that wait for one broker at the same time share a request. A leader may get a
marker twice, from two coordinators or after a lost answer: the second one changes nothing, because
the transaction has already ended there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kio.schema.errors import ErrorCode
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.model import NO_LEADER, TopicPartition

logger = logging.getLogger(__name__)

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.02, 1.0
MARKERS_PER_REQUEST_MAX = 500


@dataclass(frozen=True, slots=True)
class Marker:
    """The outcome of a producer's transaction for some of its partitions."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    partitions: frozenset[TopicPartition]


# By producer id and partition. A missing partition has not answered.
MarkerResults = Mapping[tuple[int, TopicPartition], ErrorCode]


class MarkerTarget(Protocol):
    """Sends markers to a broker."""

    async def write_markers(self, broker_id: int, markers: Sequence[Marker]) -> MarkerResults:
        """Return each marker's result. Raises ``TidelogError`` if the broker does not answer."""


class MarkerFenced(Exception):
    """A newer coordinator of the transaction has written to a partition."""


class MarkerSender:
    """Delivers markers of all of a node's transactions. For the tasks of one event loop."""

    def __init__(self, *, view: ClusterView, target: MarkerTarget) -> None:
        self._view = view
        self._target = target
        self._channels: dict[int, _Channel] = {}

    async def deliver(self, marker: Marker, *, may_send: Callable[[], bool]) -> None:
        """Return once every partition has the marker, or is deleted. Raises ``MarkerFenced``.

        ``may_send`` is called before each attempt; while it returns False, nothing is sent.
        """
        left = set(marker.partitions)
        delay = RETRY_SECONDS_MIN
        while True:
            if may_send():
                left -= await self._attempt(marker, left)
            if not left:
                return
            await self._wait(delay)
            delay = min(2 * delay, RETRY_SECONDS_MAX)

    async def close(self) -> None:
        """Cancel the requests under way."""
        for channel in self._channels.values():
            await channel.close()

    async def _attempt(self, marker: Marker, left: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Send to every known leader; return the partitions that need no further attempt."""
        by_leader: dict[int, set[TopicPartition]] = {}
        done: set[TopicPartition] = set()
        unknown: list[TopicPartition] = []
        for partition in left:
            found = self._view.image.partition(partition)
            if found is None:
                unknown.append(partition)
            elif found.leader != NO_LEADER:
                by_leader.setdefault(found.leader, set()).add(partition)
        if unknown:
            done |= await self._gone(unknown)
        results = await asyncio.gather(
            *(
                self._channel(broker_id).write(replace(marker, partitions=frozenset(partitions)))
                for broker_id, partitions in by_leader.items()
            )
        )
        for result in results:
            done |= {p for p, code in result.items() if _is_done(marker, p, code)}
        return done

    async def _gone(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return those that the newest image does not have."""
        try:
            image = await self._view.refresh()
        except TidelogError:
            return set()
        return {partition for partition in partitions if image.partition(partition) is None}

    async def _wait(self, seconds: float) -> None:
        """Wait, at most until the cluster's image changes: there may be a new leader."""
        seen = self._view.image
        try:
            await self._view.wait_for(lambda image: image is not seen, seconds)
        except TimeoutError:
            self._view.nudge()

    def _channel(self, broker_id: int) -> _Channel:
        channel = self._channels.get(broker_id)
        if channel is None:
            channel = self._channels[broker_id] = _Channel(broker_id, self._target)
        return channel


def _is_done(marker: Marker, partition: TopicPartition, code: ErrorCode) -> bool:
    match code:
        case ErrorCode.none | ErrorCode.unsupported_for_message_format:
            return True
        case ErrorCode.transaction_coordinator_fenced:
            raise MarkerFenced(f"{partition} has heard of a newer coordinator")
        case ErrorCode.invalid_producer_epoch:
            # Only a write that bypassed this coordinator can have a newer epoch. Retrying
            # forever would make the transactional id unusable.
            logger.error(
                "partition refuses the end of a transaction",
                extra={"partition": str(partition), "producer_id": marker.producer_id},
            )
            return True
        case _:
            return False


class _Channel:
    """The markers that wait for one broker."""

    def __init__(self, broker_id: int, target: MarkerTarget) -> None:
        self._broker_id = broker_id
        self._target = target
        self._waiting: list[tuple[Marker, asyncio.Future[Mapping[TopicPartition, ErrorCode]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def write(self, marker: Marker) -> Mapping[TopicPartition, ErrorCode]:
        """Return the marker's result in each partition; empty if the broker did not answer."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((marker, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future  # type: ignore[no-any-return]

    async def close(self) -> None:
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._waiting:
                # Answers are by producer id, so a request has one marker of each.
                batch = {m.producer_id: (m, f) for m, f in reversed(self._waiting)}
                some = list(batch.values())[:MARKERS_PER_REQUEST_MAX]
                self._waiting = [entry for entry in self._waiting if entry not in some]
                await self._send(some)
        finally:
            self._task = None
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()

    async def _send(
        self, some: Sequence[tuple[Marker, asyncio.Future[Mapping[TopicPartition, ErrorCode]]]]
    ) -> None:
        results: MarkerResults = {}
        try:
            markers = [marker for marker, _ in some]
            results = await self._target.write_markers(self._broker_id, markers)
        except TidelogError as error:
            logger.warning(
                "transaction markers could not be sent, will retry",
                extra={"broker_id": self._broker_id, "reason": str(error)},
            )
        except Exception:
            # Any failure: transactions wait for their markers, and no other task sends them.
            logger.exception(
                "sending markers broke, will retry", extra={"broker_id": self._broker_id}
            )
        finally:
            for marker, future in some:
                if not future.done():
                    future.set_result(
                        {
                            partition: results[marker.producer_id, partition]
                            for partition in marker.partitions
                            if (marker.producer_id, partition) in results
                        }
                    )
