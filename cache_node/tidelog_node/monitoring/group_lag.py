"""The lag of the groups of this node, in records and in seconds.

Theory of operation. The coordinator of a group knows its committed offsets. A group is read once
when it is found, and again after ``REREAD_SECONDS`` for changes by other processes; in between the
pages that this node writes are taken as they are written. Every ``metrics.group.lag.interval.ms`` a
pass asks the leaders, this node included, for the ends of the partitions, and for the times of the
records that the groups read next, as ``tidelog group describe`` does. The time of a record does not
change, so it is asked for once. Scrapes read the result of the last pass.

Everything is bounded: groups and partitions that are followed, and what one pass reads and asks.
Behind the markers of transactions alone a group is not behind: its lag is 0 seconds, and some
records by the offsets, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog_core.admin.groups.offset_pages import read_pages
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.coordination.groups import GroupOffsets
from tidelog_core.model import TopicPartition
from tidelog_core.records.first_time import ONLY_MARKERS
from tidelog_core.turns import Turn

from tidelog_node.coordinator.hosted_groups import HostedGroups
from tidelog_node.groups.share.share_group import ShareGroup
from tidelog_node.monitoring.leader_answers import LeaderAnswers
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

REREAD_SECONDS = 300.0
GROUPS_MAX = 1_000
POSITIONS_MAX = 10_000  # partitions of all groups
LAGS_MAX = 2_000  # topics of all groups
GROUPS_READ_PER_PASS = 50
TIMES_PER_PASS = 200


class Lag(NamedTuple):
    """The lag of a group in one topic."""

    records: int  # of all partitions
    records_max: int  # of one partition
    seconds: float | None  # the longest of a partition; None if no time is known


@dataclass(slots=True)
class _Position:
    """A group's place in one partition."""

    offset: int
    time_ms: int | None = None  # of the record there; ``ONLY_MARKERS``; None: unknown
    end: int = -1  # of the partition when the time was looked up


@dataclass(slots=True)
class _Followed:
    """One group."""

    read_at: float  # the loop's time
    pages: dict[tuple[str, int], GroupOffsets] = field(default_factory=dict)
    positions: dict[TopicPartition, _Position] = field(default_factory=dict)

    def take(self, page: GroupOffsets) -> None:
        """Take a page, unless a later version of it is known."""
        known = self.pages.get((page.topic, page.page))
        if known is None or known.version <= page.version:
            self.pages[page.topic, page.page] = page


class GroupLag:
    """Follows the groups that this node coordinates. For its event loop."""

    def __init__(self, node: NodeContext, groups: HostedGroups, answers: LeaderAnswers) -> None:
        self._node = node
        self._groups = groups
        self._answers = answers
        self._followed: dict[str, _Followed] = {}
        self._left_out: set[str] = set()  # in the pass under way
        self.lags: Mapping[tuple[str, str], Lag] = {}  # by group and topic
        self.left_out_count = 0  # groups with topics or partitions beyond the limits

    async def run(self) -> None:
        """Follow the groups until cancelled."""
        unsubscribe = self._groups.pages.written.subscribe(self._on_written)
        try:
            while True:
                try:
                    await self.follow()
                except (TidelogError, OSError, TimeoutError) as error:
                    logger.info("lag of groups not known", extra={"reason": str(error)})
                except Exception:
                    # What only watches the node must not end it.
                    logger.exception("lag of groups not known")
                await asyncio.sleep(self._node.config().metrics_group_lag_interval_ms / 1000)
        finally:
            unsubscribe()

    async def follow(self) -> None:
        """Make one pass. Raises the metadata store's errors."""
        await self._read_groups()
        wanted = await self._positions()
        ends = await self._answers.ends({one for _, one, _ in wanted})
        await self._find_times(wanted, ends)
        self.lags = self._sum_up(wanted, ends)

    def _on_written(self, page: GroupOffsets) -> None:
        followed = self._followed.get(page.group_id)
        if followed is not None:
            followed.take(page)

    async def _read_groups(self) -> None:
        """Begin to follow new groups, read old ones again, forget deleted ones."""
        hosted = [
            group.group_id for group in self._groups.loaded() if not isinstance(group, ShareGroup)
        ]
        for gone in self._followed.keys() - set(hosted):
            del self._followed[gone]
        now = asyncio.get_running_loop().time()
        new = [group_id for group_id in hosted if group_id not in self._followed]
        room = GROUPS_MAX - len(self._followed)
        self._left_out = set(new[room:])
        old = [g for g, known in self._followed.items() if now - known.read_at > REREAD_SECONDS]
        for group_id in (*new[:room], *old)[:GROUPS_READ_PER_PASS]:
            # Before the read, so that no page is missed that is written during it.
            before, found = self._followed.get(group_id), _Followed(now)
            self._followed[group_id] = found
            if before is not None:
                found.positions = before.positions
            for page in await read_pages(self._node.store, group_id):
                found.take(page)

    async def _positions(self) -> list[tuple[str, TopicPartition, _Position]]:
        """Return every group's positions in partitions that there are."""
        turn, image = Turn(), self._node.view.image
        wanted: list[tuple[str, TopicPartition, _Position]] = []
        for group_id, followed in tuple(self._followed.items()):
            before, followed.positions = followed.positions, {}
            for page in tuple(followed.pages.values()):
                await turn.step()
                topic = image.topic(page.topic)
                if topic is None or topic.topic_id != page.topic_id:
                    continue
                for number, committed in page.partitions.items():
                    if len(wanted) >= POSITIONS_MAX:
                        self._left_out.add(group_id)
                        break
                    partition = TopicPartition(page.topic, number)
                    known = before.get(partition)
                    if known is None or known.offset != committed.offset:
                        known = _Position(committed.offset)
                    followed.positions[partition] = known
                    wanted.append((group_id, partition, known))
        return wanted

    async def _find_times(
        self,
        wanted: Iterable[tuple[str, TopicPartition, _Position]],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """Look up the times of the next records that are not known yet, as many as one pass may."""
        rounds: list[dict[TopicPartition, _Position]] = []  # a partition once in each
        count = 0
        for _, partition, position in wanted:
            end = ends.get(partition, -1)
            is_known = position.time_ms is not None and (
                position.time_ms != ONLY_MARKERS or position.end == end
            )
            if is_known or position.offset >= end or count >= TIMES_PER_PASS:
                continue
            count += 1
            for asked in rounds:
                if partition not in asked:
                    asked[partition] = position
                    break
            else:
                rounds.append({partition: position})
        for asked in rounds:
            times = await self._answers.times({p: found.offset for p, found in asked.items()})
            for partition, time_ms in times.items():
                asked[partition].time_ms, asked[partition].end = time_ms, ends[partition]

    def _sum_up(
        self,
        wanted: Iterable[tuple[str, TopicPartition, _Position]],
        ends: Mapping[TopicPartition, int],
    ) -> Mapping[tuple[str, str], Lag]:
        now_ms = self._node.clock_ms()
        found: dict[tuple[str, str], list[tuple[int, float | None]]] = defaultdict(list)
        for group_id, partition, position in wanted:
            end = ends.get(partition)
            key = (group_id, partition.topic)
            if key not in found and len(found) >= LAGS_MAX:
                self._left_out.add(group_id)
            elif end is not None:
                lag = max(0, end - position.offset)
                seconds = _seconds_behind(position, lag, now_ms)
                found[key].append((lag, seconds))
        self.left_out_count = len(self._left_out)
        return {key: _total(lags) for key, lags in found.items()}


def _seconds_behind(position: _Position, lag: int, now_ms: int) -> float | None:
    if lag == 0 or position.time_ms == ONLY_MARKERS:
        return 0.0
    if position.time_ms is None:
        return None
    return max(0, now_ms - position.time_ms) / 1000


def _total(lags: list[tuple[int, float | None]]) -> Lag:
    records = [lag for lag, _ in lags]
    known = [seconds for _, seconds in lags if seconds is not None]
    return Lag(sum(records), max(records), max(known, default=None))
