"""Finds start positions: a committed offset, or an end of the partition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from operator import index
from typing import SupportsIndex

from tidelog_core.model import INT64_MAX, TopicPartition

from tidelog.cluster import Cluster
from tidelog.consuming.coordinator import Coordinator
from tidelog.consuming.positions import UNKNOWN, PartitionState, Positions
from tidelog.consuming.records import OffsetAndMetadata, Offsets
from tidelog.errors import InvalidRequest, NoOffsetForPartition, TidelogError
from tidelog.given_values import mapping, partition_of
from tidelog.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, FoundOffset, ask_offsets
from tidelog.options import ConsumerOptions

logger = logging.getLogger(__name__)

RESET_TIMESTAMPS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}


class Locator:
    """Gives every partition without a position one, in its own task."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        coordinator: Coordinator | None,
        options: ConsumerOptions,
        on_located: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._coordinator = coordinator
        self._options = options
        self._on_located = on_located
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        # A program may poll on after every error: nodes are not asked as fast as it does.
        self._failures = cluster.backoff()
        self._may_start_s = 0.0

    def start(self) -> None:
        """Start the search if a partition has no position and no search is running.

        Raises what the last search raised that no retry mends.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._task is None and self._unlocated():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop the search."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _unlocated(self) -> list[PartitionState]:
        return [s for s in self._positions if s.position == UNKNOWN and s.error is None]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            if (wait_s := self._may_start_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            await self._locate_all()
            if any(state.error is not None for state in self._positions):
                self._may_start_s = loop.time() + self._failures.next_s()
            else:
                self._failures.reset()
        except Exception as error:
            # Each poll would begin the search again, and it would fail again.
            self._failure = error
        finally:
            self._task = None
            self._on_located()

    async def _locate_all(self) -> None:
        """Return once every partition has a position or an error."""
        backoff = self._cluster.backoff()
        while states := self._unlocated():
            try:
                failure = await self._locate(states)
            except TidelogError as error:
                failure = error
            if failure is None:
                backoff.reset()
            elif failure.retriable:
                logger.info("no position yet, will retry", extra={"reason": str(failure)})
                self._cluster.invalidate()
                await asyncio.sleep(backoff.next_s())
            else:
                for state in states:
                    if state.position == UNKNOWN:
                        state.error = failure

    async def _locate(self, states: list[PartitionState]) -> TidelogError | None:
        """Set the positions that can be found; return a failure if some are missing."""
        versions = {state: state.version for state in states}
        by_commit = [state for state in states if state.reset_timestamp is None]
        committed = {}
        if by_commit and self._coordinator is not None:
            committed = await self._coordinator.committed(
                [state.partition for state in by_commit],
                timeout_s=self._cluster.request_timeout_s,
            )
        for state in by_commit:
            if state.version != versions[state]:
                continue  # The user sought in the meantime.
            if (commit := committed.get(state.partition)) is not None:
                state.jump(commit.offset, commit.leader_epoch)
            elif self._options.auto_offset_reset == "none":
                state.error = NoOffsetForPartition(
                    f"nothing is committed for {state.partition} and auto_offset_reset is 'none'"
                )
            else:
                state.reset_timestamp = RESET_TIMESTAMPS[self._options.auto_offset_reset]
        self._on_located()
        timestamps = {
            state.partition: state.reset_timestamp
            for state in states
            if state.version == versions[state] and state.reset_timestamp is not None
        }
        if not timestamps:
            return None
        found: dict[TopicPartition, FoundOffset] = {}
        failure = await ask_offsets(
            self._cluster,
            timestamps,
            found,
            read_committed=self._options.isolation_level == "read_committed",
        )
        for state in states:
            if state.version == versions[state] and state.partition in found:
                state.jump(found[state.partition].offset)
        self._on_located()
        return failure


def check_offsets(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets as they are committed. Raises ``InvalidRequest`` as ``check_offset``."""
    checked = {}
    for partition, given in mapping(offsets, "offsets", "a partition: an offset").items():
        offset = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
        check_offset(offset.offset)
        checked[partition_of(partition)] = offset
    return checked


def check_offset(offset: SupportsIndex) -> int:
    """Return the offset. Raises ``InvalidRequest`` if it cannot be one."""
    try:
        # Any kind of integer: those out of tables are numpy's.
        number = -1 if isinstance(offset, bool) else index(offset)
    except TypeError:  # Whole columns of numpy's have an index, too, that raises it.
        number = -1
    if 0 <= number <= INT64_MAX:
        return number
    raise InvalidRequest(f"an offset must be an integer from 0 to 2**63 - 1, not {offset!r}")


def check_time(time_ms: SupportsIndex) -> int:
    """Return the time. Raises ``InvalidRequest`` if no record can have it."""
    if not hasattr(time_ms, "__index__") or not 0 <= index(time_ms) <= INT64_MAX:
        raise InvalidRequest(
            f"a time must be an integer of milliseconds from 0 to 2**63 - 1, not {time_ms!r}"
        )
    return index(time_ms)
