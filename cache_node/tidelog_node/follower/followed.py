"""The partitions followed at one leader: builds fetches and applies answers.

A fetch must not iterate over all of them. A partition is checked before the next fetch
(``_to_update``) if an event may have changed its fetch: an answer, the end of a wait, a new start,
a failure or replacement of its log, another leader. A partition whose log has failed or was
replaced is removed from the session immediately, and later added as a new one.

``FollowerState`` decides what to fetch and what an answer means; this appends and waits. A
partition in trouble waits outside the session, and delays no other. So does one whose leader keeps
answering with what changes nothing: its next fetch would be answered with the same at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import Any, NamedTuple

from tidelog_core.errors import StorageError, TidelogError
from tidelog_core.fetch_session import FetcherSession
from tidelog_core.log.values import AppendInfo, AppendLimit, UnexpectedAppendOffset
from tidelog_core.records.batch import parse_header
from tidelog_core.replication.follower_state import (
    Append,
    AskOffsets,
    FetchAnswer,
    FollowerState,
    Ignore,
    LeaderContact,
    ReplicaFetch,
    Truncate,
)

from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.follower.turn_room import TurnRoom
from tidelog_node.follower.wire import FetchedPartition, known_error
from tidelog_node.replicas.replica import Replica

logger = logging.getLogger(__name__)

TROUBLE_SECONDS = 5.0  # before a partition with a broken log or answer is tried again
# Answers in a row that changed nothing, before the partition waits. One of them is usual: two
# fetches that are under way may be answered with the same records (``_append``).
FRUITLESS_MAX = 1

PartitionKey = tuple[bytes, int]
"""Topic id as encoded bytes, which hash faster than a ``UUID``, and partition index."""


class PartitionAnswer(NamedTuple):
    """The leader's result for one partition, or the rest of it, and the fetch that it answers."""

    key: PartitionKey
    fetch: ReplicaFetch | None  # None: it was removed from the session
    fetched: FetchedPartition


@dataclass(slots=True, eq=False)
class Followed:
    """A partition of one fetcher, in one leader epoch."""

    replica: Replica
    follower: FollowerState
    key: PartitionKey
    not_before: float = 0.0  # the loop's time
    is_begun: bool = False  # the first fetch may go out
    task: asyncio.Task[None] | None = None  # finds a new start
    start_problem: str = ""  # why the last one has failed, which is logged
    fruitless_count: int = 0  # answers since the last one that has changed the log
    said: tuple[object, ...] = ()  # by the last answer: all but its records


class FollowedPartitions:
    """The partitions of one fetcher. Keeps their next fetches in the fetcher's session."""

    def __init__(
        self,
        session: FetcherSession[PartitionKey, ReplicaFetch],
        *,
        broker_id: int,
        catch_up: CatchUp,
        backoff_s: Callable[[], float],
        clock_ms: Callable[[], float],
        on_possible: Callable[[], None],
        on_committed: Callable[[Replica, FollowerState, Append], None],
    ) -> None:
        """``on_possible`` is called when there may be something new to fetch.

        ``on_committed`` gets what the leader of a diskless partition says: no records come with it.
        """
        self._session = session
        self._broker_id = broker_id
        self._catch_up = catch_up
        self._backoff_s = backoff_s
        self._clock_ms = clock_ms
        self._contact = LeaderContact()  # of the session
        self._on_possible = on_possible
        self._on_committed = on_committed
        self._loop = asyncio.get_running_loop()
        # Partitions' results that had records, or said something else than the result before.
        self.news_count = 0
        self._partitions: dict[PartitionKey, Followed] = {}
        self._to_update: dict[Followed, None] = {}  # before the next fetch
        self._waits: list[tuple[float, int, Followed]] = []  # a heap, by end of the wait
        self._wait_count = 0

    def __len__(self) -> int:
        """Return the number of partitions."""
        return len(self._partitions)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the running tasks that find new starts."""
        return [followed.task for followed in self._partitions.values() if followed.task]

    def add(self, replica: Replica, follower: FollowerState) -> None:
        """Follow the partition in this leader epoch."""
        key = _key_of(replica)
        followed = Followed(replica, follower, key)
        follower.on_stop = partial(self._drop, followed)
        self._partitions[key] = followed
        self._to_update[followed] = None
        self._on_possible()

    def note_answer(self, answered_ms: float) -> None:
        """Note that an answer of this time is applied: the leader has no news of the others."""
        self._contact.answered_ms = answered_ms

    def begin_session(self) -> None:
        """Note that the session has ended: partitions are heard of once the next one names them."""
        for followed in self._partitions.values():
            followed.follower.end_contact()
        self._contact = LeaderContact()

    def wake_unheard(self, silence_ms_max: float) -> None:
        """Have consumers of the diskless partitions look again that this node may not serve."""
        begun_ms = self._clock_ms() - silence_ms_max
        for followed in self._partitions.values():
            if followed.replica.is_diskless and followed.follower.heard_ms < begun_ms:
                followed.replica.notify_waiters()

    def on_trouble(self, replica: Replica) -> None:
        """Fetch a partition whose log is in trouble again after ``TROUBLE_SECONDS``."""
        followed = self._forget(_key_of(replica))
        if followed is not None:
            self._put_off(followed, TROUBLE_SECONDS)
            self._on_possible()

    def on_moved(self, replica: Replica) -> None:
        """Tell the leader where a diskless partition's log ends since its feed has moved it."""
        followed = self._partitions.get(_key_of(replica))
        if followed is not None:
            self._to_update[followed] = None
            self._on_possible()

    def on_exchanged(self, replica: Replica) -> None:
        """Fetch a partition whose log was replaced as a new one."""
        followed = self._forget(_key_of(replica))
        if followed is not None:
            followed.not_before = 0.0
            self._to_update[followed] = None
            self._on_possible()

    def fetch_again(self, key: PartitionKey) -> None:
        """Fetch a partition as a new one, because an answer was not applied."""
        followed = self._forget(key)
        if followed is not None:
            self._to_update[followed] = None

    def _forget(self, key: PartitionKey) -> Followed | None:
        """Remove the partition from the session, if it is followed; return it."""
        followed = self._partitions.get(key)
        if followed is not None:
            self._session.forget(followed.key)
            followed.follower.end_contact()
        return followed

    def _drop(self, followed: Followed) -> None:
        """Stop following the partition in this leader epoch."""
        if self._partitions.get(followed.key) is followed:
            del self._partitions[followed.key]
            self._session.forget(followed.key)

    def _put_off(self, followed: Followed, seconds: float) -> None:
        """Leave the partition out of the session for this long."""
        followed.follower.end_contact()
        followed.not_before = self._loop.time() + seconds
        self._wait_count += 1
        heappush(self._waits, (followed.not_before, self._wait_count, followed))
        self._to_update[followed] = None

    # -- the next fetch --

    def update_all_next(self) -> None:
        """Have all partitions checked before the next fetch."""
        self._to_update.update(dict.fromkeys(self._partitions.values()))

    def update_fetches(self) -> None:
        """Update the session's fetches of the partitions that may have changed."""
        now = self._loop.time()
        waits = self._waits
        while waits and waits[0][0] <= now:
            self._to_update[heappop(waits)[2]] = None
        if self._to_update:
            to_update, self._to_update = self._to_update, {}
            for followed in to_update:
                if self._partitions.get(followed.key) is followed:
                    self._update_fetch(followed, now)

    def _update_fetch(self, followed: Followed, now: float) -> None:
        fetch = None
        if followed.task is None and followed.not_before <= now:
            log = followed.replica.opened_log
            if log is None or log.is_offline:
                self._put_off(followed, TROUBLE_SECONDS)
            elif followed.is_begun or not self._begins_elsewhere(followed):
                is_fed = followed.replica.is_diskless
                fetch = followed.follower.next_fetch(log, is_fed=is_fed)
                if fetch is not None and (unfilled := log.unfilled) is not None:
                    # It is no replica of all that its position would say.
                    position = min(fetch.offset, unfilled.start)
                    fetch = replace(fetch, offset=position)
        if fetch is None:
            self._session.forget(followed.key)
        else:
            self._session.want(followed.key, fetch)

    def _begins_elsewhere(self, followed: Followed) -> bool:
        """Start a task that finds a better start if the log is empty and not in the ISR.

        Also for a log that lacks records before its start. Returns whether it did.
        """
        followed.is_begun = True
        if followed.replica.is_diskless:
            return False  # Its feed finds where it begins.
        log = followed.replica.log
        is_empty = log.log_end_offset == log.local_log_start_offset
        is_member = self._broker_id in followed.follower.partition.isr
        if log.unfilled is None and (is_member or not is_empty):
            return False
        self._start(followed, self._catch_up.begin(followed.replica, followed.follower))
        return True

    # -- answers --

    def take(self, answer: PartitionAnswer, room: TurnRoom) -> PartitionAnswer | None:
        """Apply the leader's answer for one partition, up to the limit of the turn's room.

        Returns the rest of the answer. Failures are logged and retried later.
        """
        followed, fetch = self._partitions.get(answer.key), answer.fetch
        if followed is None or fetch is None:
            return None
        self._to_update[followed] = None
        fetched = answer.fetched
        said = (
            fetched.error_code,
            fetched.high_watermark,
            fetched.log_start_offset,
            fetched.diverging,
        )
        if fetched.records is not None or said != followed.said:
            self.news_count += 1
            followed.said = said
        try:
            rest = self._act(followed, fetch, fetched, room)
        except (TidelogError, OSError) as error:
            self._put_off(followed, TROUBLE_SECONDS)
            replica = followed.replica
            if not (isinstance(error, OSError | StorageError) and replica.note_failure(error)):
                logger.error(
                    "replica cannot follow, will retry",
                    extra={"partition": str(followed.replica.partition), "reason": str(error)},
                )
            return None
        if rest is None:
            return None
        fetch = replace(fetch, offset=followed.replica.log.log_end_offset)
        return PartitionAnswer(answer.key, fetch, fetched._replace(records=rest))

    def _act(
        self, followed: Followed, fetch: ReplicaFetch, answer: FetchedPartition, room: TurnRoom
    ) -> memoryview | None:
        """Act on the answer; return the records for which there was no room."""
        replica, follower = followed.replica, followed.follower
        action = follower.on_answer(
            fetch,
            FetchAnswer(
                known_error(answer.error_code),
                answer.high_watermark,
                answer.log_start_offset,
                answer.diverging,
            ),
            replica.log,
            is_fed=replica.is_diskless,
        )
        match action:
            case Append() if replica.is_diskless:
                follower.on_heard(self._contact)
                self._on_committed(replica, follower, action)
            case Append():
                rest = self._append_records(followed, answer.records, room)
                replica.follow_leader(
                    high_watermark=action.high_watermark,
                    log_start_offset=action.log_start_offset,
                )
                return rest
            case Truncate():
                self._truncate(followed, action.offset)
            case AskOffsets():
                self._start(followed, self._catch_up.find_start(replica, follower, fetch))
            case Ignore(must_wait=True):
                self._put_off(followed, self._backoff_s())
                if replica.is_diskless:
                    replica.notify_waiters()  # It may not be heard of for too long by now.
            case _:
                pass
        return None

    def _append_records(
        self, followed: Followed, records: memoryview | None, room: TurnRoom
    ) -> memoryview | None:
        """Append the records that the turn has room for, and return the others."""
        if records is None:
            return None
        info = _append(followed.replica, records, room.limit)
        self._note_effect(followed, info is not None and info.size_bytes > 0)
        if info is None:
            return None
        room.note_append(info)
        has_rest = room.is_used_up and info.size_bytes < len(records)
        return records[info.size_bytes :] if has_rest else None

    def _truncate(self, followed: Followed, offset: int) -> None:
        log = followed.replica.log
        before = log.log_end_offset, log.leader_epoch
        logger.info(
            "replica truncated",
            extra={
                "partition": str(followed.replica.partition),
                "from": log.log_end_offset,
                "to": offset,
            },
        )
        log.truncate_to(offset)
        self._note_effect(followed, before != (log.log_end_offset, log.leader_epoch))

    def _note_effect(self, followed: Followed, has_changed: bool) -> None:
        """Note whether an answer that had something to apply has changed the log.

        The partition waits as Kafka's fetcher has it wait after a fault of its answer.
        """
        if has_changed:
            followed.fruitless_count = 0
            return
        followed.fruitless_count += 1
        if followed.fruitless_count <= FRUITLESS_MAX:
            return
        self._put_off(followed, self._backoff_s())
        if followed.fruitless_count == FRUITLESS_MAX + 1:
            logger.warning(
                "leader's answers change nothing, will retry",
                extra={
                    "partition": str(followed.replica.partition),
                    "broker_id": followed.follower.leader_id,
                },
            )

    def _start(self, followed: Followed, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, which finds a new start; the partition is not fetched until it ends."""
        task = self._loop.create_task(work)
        followed.task = task

        def on_done(done: asyncio.Task[None]) -> None:
            followed.task = None
            problem = None if done.cancelled() else done.exception()
            if problem is None:
                followed.not_before, followed.start_problem = 0.0, ""
                self._to_update[followed] = None
                self._on_possible()
                return
            if self._partitions.get(followed.key) is not followed:
                return  # It was deleted, for example, and its log with it.
            followed.is_begun = False
            self._put_off(followed, self._backoff_s())
            if str(problem) == followed.start_problem:
                return  # Tried several times a second, perhaps for as long as the bucket is away.
            followed.start_problem = str(problem)
            logger.warning(
                "no new start found, will retry",
                extra={"partition": str(followed.replica.partition), "reason": str(problem)},
                exc_info=None if isinstance(problem, TidelogError | OSError) else problem,
            )

        task.add_done_callback(on_done)


def _key_of(replica: Replica) -> PartitionKey:
    return replica.topic_id.bytes, replica.partition.partition


def _append(replica: Replica, records: memoryview, limit: AppendLimit) -> AppendInfo | None:
    """Append the leader's records. Raises ``CorruptRecordBatch``, ``StorageError``.

    ``None`` if the log has them by now. Two fetches may be under way, and both may be answered with
    the same records. If a third one has named the partition between the two answers, the second
    answer looks like that of the third fetch, whose own is on its way.
    """
    log = replica.log
    try:
        return replica.append_as_follower(records, limit)
    except UnexpectedAppendOffset:
        # The leader's log may start in the middle of a batch. An empty log takes the whole batch.
        first = parse_header(records)
        end_offset = log.log_end_offset
        if first.next_offset <= end_offset:
            return None
        is_empty = end_offset == log.local_log_start_offset
        if not is_empty or not first.base_offset < end_offset < first.next_offset:
            raise
        log.truncate_fully_and_start_at(
            first.base_offset,
            log_start_offset=log.log_start_offset,
            leader_epochs=log.leader_epochs,
        )
        return replica.append_as_follower(records, limit)
