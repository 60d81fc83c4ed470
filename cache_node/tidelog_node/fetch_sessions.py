"""Incremental fetch sessions: requests name changed partitions, answers those with news.

A session keeps the partitions that its client fetches, each with what the client asked for last
and what it was told last. A request of the session names the partitions whose position or limits
have changed, and an answer has those with news: records, another high watermark or log start
offset, an error, a divergence, a better replica. The fields and the order of an answer's
partitions are Kafka's: those that had records go behind all others.

**Only partitions with news are visited.** Each is either *dirty*, and is looked at by the next
request and by every look of a request that waits; or *settled*: it was looked at, had nothing for
the client, and nothing of its replica has changed since. A request that names nothing, in a
session without dirty partitions, visits nothing. The rules:

- *Dirty* is a partition that was just opened or added, that the request names, that its replica
  reports (as to any ``ReplicaWaiter``), or whose last look found anything at all: records, also
  those that an answer has had no room for, that are read from the tier, that wait for
  ``min_bytes``, or that the client has been sent, for it may not have taken them; an error, a
  divergence, a better replica; a high watermark or log start that the client has not been told.
- It is *settled* by a look alone, at the moment of the look: no error, no records although it was
  read up to the very end that this client may see, and nothing that the client does not know.
  An answer never settles anything. So nothing that comes between a look and its answer is lost,
  and an answer that is never sent leaves everything as dirty as it was.
- A settled partition *watches* the replica that it was looked at in: it is one of the
  ``waiters`` there (of the ``follower_waiters``, if a follower asks). It begins to watch in the
  same step of the event loop in which it is looked at, so no change falls between. Everything
  that can make news goes through its ``Replica``: appends (for followers), the high watermark, with
  which alone the last stable offset moves, and the log start offset, cuts of the log, a log that
  goes offline or is exchanged, another leader, leader epoch or ISR, the end of the replica. What no
  replica reports is whether this node may serve at all: without that every partition is visited.
- Of more dirty partitions than one request may name, so many are looked at in one turn of the
  loop. If they have news the request is answered with it, else the next ones are looked at. Those
  that stay dirty go behind the others.
- An answer has records of no more partitions than the client can name in its next request
  (``records_max``): one whose next offset is not named is sent the same records again.
- A follower's partition is not settled before it is in the ISR: each request says again that it
  wants in.
- A better replica for a consumer (KIP-392) is looked for when a partition is looked at. Where
  nothing is written the consumer stays; Kafka sends it away at the next request.

A dirty partition of a session for which nobody waits lets go of its replica, so that sessions
whose clients are gone cost each partition one call.

**Who has a session.** As in Kafka it belongs to who knows its id, a random one of 2**31, and its
next epoch; it outlives connections. There are ``max.incremental.fetch.session.cache.slots``. A new
one takes the place of one unused for two minutes, else of the smallest that is as old and has fewer
partitions; a follower's takes any client's, and the place of the same follower's last one. All
together have ``max.incremental.fetch.session.cache.partitions``; where these are used up a session
of a client as old as that and with more partitions than the new one makes room, for a follower any
client's, the largest first. Without room the client gets session id 0 and names everything. So
does a client whose rack has more than ``RACK_SIZE_BYTES_MAX`` bytes, or that sends a topic name
that is too long for any topic: the memory of a partition is bounded.

A follower has these rights if its broker is registered and its replica epoch is not older than
that registration. All others are clients, whichever broker id they send.

A follower's session is of one registration: a request with another replica epoch ends it
(FETCH_SESSION_ID_NOT_FOUND). A broker registers again where a log may have lost records, so that
nothing it told before counts any more (KIP-903); and what a request does not name is what the
follower told before. It opens another session and says where each log ends.

Nobody is authenticated yet. A client that guesses id and epoch of a session can move it on: its
owner is told INVALID_FETCH_SESSION_EPOCH and opens another. The client reads only what it could
read without the session. To move a follower's session on takes its broker id and replica epoch as
well; with these two alone a client can end the session by opening another for the same broker.
Once there are principals, a session will belong to one.

Source: KIP-227; Kafka's ``FetchSession``.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence

from tidelog_core.admin.names import TOPIC_NAME_LENGTH_MAX
from tidelog_core.fetch_epochs import INITIAL_EPOCH, NO_SESSION, epoch_after
from tidelog_core.replication.follower_progress import FollowerContact

from tidelog_node.replica import Replica, ReplicaWaiter
from tidelog_node.wire.fetch import FetchPartition, FetchTopic, ForgottenTopic
from tidelog_node.wire.fetch_answer import FetchResult

EVICTABLE_AFTER_MS = 120_000.0  # Kafka's min.incremental.fetch.session.eviction.ms
RACK_SIZE_BYTES_MAX = 256  # of a consumer that has a session; that of an AWS zone has 8
SESSION_ID_MAX = 2**31 - 1
_UNKNOWN = -1  # an offset that the client has not been told

_Worth = tuple[bool, int, int]
"""What a session is worth: a follower's more than a client's, then by size; and its id."""


class SessionPartition:
    """One partition of a session; a ``ReplicaWaiter`` of its replica while it watches that."""

    __slots__ = (
        "_replica",
        "is_dirty",
        "sent_high_watermark",
        "sent_log_start",
        "session",
        "topic",
        "wanted",
    )

    def __init__(self, session: FetchSession, topic: bytes, wanted: FetchPartition) -> None:
        self.session = session
        self.topic = topic  # its name or id, as the session's requests have it
        self.wanted = wanted  # as the client has said last
        self.sent_high_watermark = _UNKNOWN
        self.sent_log_start = _UNKNOWN
        self.is_dirty = False
        self._replica: Replica | None = None  # that it watches

    def on_append(self, size_bytes: int) -> None:
        """Have it looked at, and let the request that waits count the bytes."""
        poll = self._mark()
        if poll is not None:
            poll.on_append(size_bytes)

    def on_change(self) -> None:
        """Have it looked at by the next look, whenever that is."""
        self._mark()

    def look_again(self) -> None:
        """Have it looked at now, if a request waits."""
        poll = self._mark()
        if poll is not None:
            poll.look_again()

    def _mark(self) -> ReplicaWaiter | None:
        """Have it looked at; return the request that waits."""
        session = self.session
        session.mark(self)
        if session.poll is None:
            self.unwatch()
        return session.poll

    def watch(self, replica: Replica) -> None:
        """Hear of what happens to the replica, and to no other."""
        if self._replica is replica or self.session.is_ended:
            return
        self.unwatch()
        self._replica = replica
        if self.session.replica_id >= 0:
            replica.follower_waiters.add(self)
        else:
            replica.waiters.add(self)

    def unwatch(self) -> None:
        """Hear of nothing."""
        replica, self._replica = self._replica, None
        if replica is not None:
            replica.waiters.discard(self)
            replica.follower_waiters.discard(self)

    def has_news(self, result: FetchResult) -> bool:
        """Whether the client must be sent this result."""
        return (
            result.records is not None
            or result.high_watermark != self.sent_high_watermark
            or result.log_start_offset != self.sent_log_start
            or result.error_code != 0
            or result.diverging is not None
            or result.preferred_replica >= 0
        )

    def note_sent(self, result: FetchResult) -> None:
        """Note that the client is sent this result."""
        # After an error nothing counts as told, so that it hears once the error is over.
        self.sent_high_watermark = _UNKNOWN if result.error_code else result.high_watermark
        self.sent_log_start = result.log_start_offset


class FetchSession:
    """The partitions of one client. For the node's event loop only."""

    __slots__ = (
        "contact",
        "created_ms",
        "dirty",
        "is_ended",
        "is_filed_by_all",
        "is_follower",
        "last_used_ms",
        "next_epoch",
        "partitions",
        "poll",
        "replica_epoch",
        "replica_id",
        "session_id",
        "size",
        "terms",
        "uses_ids",
    )

    def __init__(
        self,
        session_id: int,
        *,
        replica_id: int,
        replica_epoch: int,
        is_follower: bool,
        uses_ids: bool,
        contact: FollowerContact | None,
        now_ms: float,
    ) -> None:
        self.session_id = session_id
        self.replica_id = replica_id  # as its requests say; negative: a consumer's
        # The version of the follower's registration. Its positions hold under this one alone.
        self.replica_epoch = replica_epoch
        self.is_follower = is_follower  # has a follower's rights to a place
        self.uses_ids = uses_ids  # topics are named by their ids
        self.contact = contact  # of the follower
        self.created_ms = self.last_used_ms = now_ms
        self.next_epoch = INITIAL_EPOCH + 1  # that the next request must have
        self.partitions: dict[tuple[bytes, int], SessionPartition] = {}
        # To be looked at, in this order. A dict, for it keeps the order and has no doubles.
        self.dirty: dict[SessionPartition, None] = {}
        self.poll: ReplicaWaiter | None = None  # the request that waits
        # What every partition is read by. Who changes it has everything looked at again.
        self.terms: tuple[int, bytes] | None = None
        self.is_ended = False
        # Of ``FetchSessions``: how many partitions it has counted, and where it has filed them.
        self.size = 0
        self.is_filed_by_all = False

    def mark(self, partition: SessionPartition) -> None:
        """Have the partition looked at."""
        if not partition.is_dirty:
            partition.is_dirty = True
            self.dirty[partition] = None

    def settle(self, partition: SessionPartition) -> None:
        """Look at the partition no more until it is marked."""
        if partition.is_dirty:
            partition.is_dirty = False
            del self.dirty[partition]

    def move_back(self, partition: SessionPartition) -> None:
        """Let all others come first."""
        if partition.is_dirty:
            del self.dirty[partition]
            self.dirty[partition] = None

    def mark_all(self) -> None:
        """Have everything looked at."""
        for partition in self.partitions.values():
            self.mark(partition)

    def add(self, topics: Sequence[FetchTopic]) -> None:
        """Take what a request names: new partitions, and other wishes for those that it has."""
        for name, wanted_partitions in topics:
            for wanted in wanted_partitions:
                key = (name, wanted.partition)
                partition = self.partitions.get(key)
                if partition is None:
                    partition = SessionPartition(self, name, wanted)
                    self.partitions[key] = partition
                else:
                    partition.wanted = wanted
                self.mark(partition)

    def forget(self, topics: Sequence[ForgottenTopic]) -> None:
        """Let partitions go."""
        for name, indexes in topics:
            for index in indexes:
                partition = self.partitions.pop((name, index), None)
                if partition is not None:
                    partition.unwatch()
                    self.settle(partition)

    def advance(self) -> None:
        """Expect the next request."""
        self.next_epoch = epoch_after(self.next_epoch)

    def end(self) -> None:
        """Watch nothing any more, and let the request that waits be answered."""
        self.is_ended = True
        for partition in self.partitions.values():
            partition.unwatch()
        if self.poll is not None:
            self.poll.look_again()


class FetchSessions:
    """The sessions of one node."""

    def __init__(
        self,
        *,
        slots_max: int,
        partitions_max: int,
        session_partitions_max: int,
        draw: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        """``session_partitions_max`` bounds the partitions of one client's session.

        A follower's has all that it follows: it could not name so many in a fetch instead.
        ``draw`` returns a number below the given one, for ids.
        """
        self._draw = draw
        self._slots_max = slots_max
        self._partitions_max = partitions_max
        self._session_partitions_max = session_partitions_max
        # As many partitions as a request may name are looked at at once, and then the others.
        self.looks_max = session_partitions_max
        # Of an answer, with records: the client has to name each of them in its next request,
        # among others and with its topic. Those of one that it could not name would come again.
        self.records_max = max(1, session_partitions_max * 2 // 5)
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the last used last
        self._of_followers: dict[int, FetchSession] = {}  # by broker id
        # What another client's new session may replace, and what a follower's may.
        self._by_all: list[_Worth] = []
        self._by_followers: list[_Worth] = []
        self.partition_count = 0
        self._last_unnamed_id = SESSION_ID_MAX  # of a session that no request can name

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int) -> FetchSession | None:
        """Return the session, if there is one."""
        return self._sessions.get(session_id)

    def open(
        self,
        size: int,
        *,
        replica_id: int,
        replica_epoch: int,
        is_follower: bool,
        uses_ids: bool,
        contact: FollowerContact | None,
        now_ms: float,
    ) -> FetchSession | None:
        """Return a new session for so many partitions, ``None`` where there is no room.

        ``is_follower`` gives it a follower's rights. ``touch`` counts the partitions once they
        are added.
        """
        if is_follower and replica_id in self._of_followers:
            self.close(self._of_followers[replica_id])
        if not self._has_place(size, is_follower, now_ms):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = 1 + self._draw(SESSION_ID_MAX)
        session = FetchSession(
            session_id,
            replica_id=replica_id,
            replica_epoch=replica_epoch,
            is_follower=is_follower,
            uses_ids=uses_ids,
            contact=contact,
            now_ms=now_ms,
        )
        self._sessions[session_id] = session
        if is_follower:
            self._of_followers[replica_id] = session
        self._file(session)
        return session

    def enter(self, session: FetchSession, size: int, now_ms: float) -> bool:
        """Take in a client's session that no request can name; return whether there is room.

        ``touch`` counts its partitions once they are added.
        """
        if not self._has_place(size, False, now_ms):
            return False
        self._last_unnamed_id += 1
        session.session_id = self._last_unnamed_id
        self._sessions[session.session_id] = session
        self._file(session)
        return True

    def may_grow(self, session: FetchSession, topics: Sequence[FetchTopic], now_ms: float) -> bool:
        """Return whether the session may take what a request names; may evict others."""
        is_follower = session.is_follower
        size_max = self._partitions_max if is_follower else self._session_partitions_max
        named = sum(len(partitions) for _, partitions in topics)
        if (
            session.size + named <= size_max
            and self.partition_count + named <= self._partitions_max
        ):
            return True
        keys = {(name, wanted.partition) for name, partitions in topics for wanted in partitions}
        added = len(keys - session.partitions.keys())
        size = session.size + added
        return added == 0 or (
            size <= size_max and self._make_room(added, is_follower, size, now_ms)
        )

    def touch(self, session: FetchSession, now_ms: float) -> None:
        """Note that the session is used now, and how many partitions it has."""
        self._sessions.move_to_end(session.session_id)
        session.last_used_ms = now_ms
        is_old = now_ms - session.created_ms > EVICTABLE_AFTER_MS
        if len(session.partitions) != session.size or is_old != session.is_filed_by_all:
            self._unfile(session)
            session.is_filed_by_all = is_old
            self._file(session)

    def close(self, session: FetchSession) -> None:
        """End the session, if that has not been done."""
        if session.is_ended:
            return
        del self._sessions[session.session_id]
        if self._of_followers.get(session.replica_id) is session:
            del self._of_followers[session.replica_id]
        self._unfile(session)
        session.end()

    # -- room

    def _has_place(self, size: int, is_follower: bool, now_ms: float) -> bool:
        """Return whether there may be another session of this size; may evict others."""
        if not is_follower and size > self._session_partitions_max:
            return False
        if len(self._sessions) >= self._slots_max and not self._evict(is_follower, size, now_ms):
            return False
        return self._make_room(size, is_follower, size, now_ms)

    def _evict(self, is_follower: bool, size: int, now_ms: float) -> bool:
        """End a session that is worth less than a new one. Source: Kafka's ``tryEvict``."""
        if self._evict_stale(now_ms):
            return True
        filed = self._by_followers if is_follower else self._by_all
        if not filed or (is_follower, size, 0) < filed[0]:
            return False
        self.close(self._sessions[filed[0][2]])
        return True

    def _evict_stale(self, now_ms: float) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.last_used_ms <= EVICTABLE_AFTER_MS:
            return False
        self.close(oldest)
        return True

    def _make_room(self, count: int, is_follower: bool, size: int, now_ms: float) -> bool:
        """Return whether a session of this size may have so many partitions more."""
        while self.partition_count + count > self._partitions_max:
            if not self._evict_stale(now_ms) and not self._evict_largest(is_follower, size):
                return False
        return True

    def _evict_largest(self, is_follower: bool, size: int) -> bool:
        filed = self._by_followers if is_follower else self._by_all
        at = bisect_left(filed, (True, 0, 0)) - 1  # the last one that is a client's
        if at < 0 or (not is_follower and filed[at][1] <= size):
            return False
        self.close(self._sessions[filed[at][2]])
        return True

    def _file(self, session: FetchSession) -> None:
        session.size = len(session.partitions)
        self.partition_count += session.size
        worth = _worth_of(session)
        if session.is_filed_by_all:
            insort(self._by_all, worth)
        if session.is_filed_by_all or not session.is_follower:
            insort(self._by_followers, worth)

    def _unfile(self, session: FetchSession) -> None:
        self.partition_count -= session.size
        worth = _worth_of(session)
        for filed in (self._by_all, self._by_followers):
            at = bisect_left(filed, worth)
            if at < len(filed) and filed[at] == worth:
                del filed[at]


def may_keep(topics: Sequence[FetchTopic], rack: bytes) -> bool:
    """Return whether a session may keep these names and this rack."""
    return len(rack) <= RACK_SIZE_BYTES_MAX and all(
        len(name) <= TOPIC_NAME_LENGTH_MAX for name, _ in topics
    )


def _worth_of(session: FetchSession) -> _Worth:
    return session.is_follower, session.size, session.session_id
