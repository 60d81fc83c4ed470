"""Incremental fetch sessions: requests name changed partitions, answers those with news.

A session keeps the partitions that its client fetches, each with the last fetch parameters and the
last values sent to the client. A request of the session names the partitions whose position or
limits have changed, and an answer has those with news: records, another high watermark or log start
offset, an error, a divergence, a better replica. The fields and the order of an answer's
partitions are Kafka's: partitions that had records go behind all others.

**Only partitions with news are visited.** Each is either *dirty*, and is checked by the next
request and by every check of a waiting request; or *settled*: it was checked, had no news for the
client, and its replica has not changed since. A request that names no partition, in a session
without dirty partitions, visits none. The rules:

- A partition is *dirty* if it was just opened or added, if the request names it, if its replica
  reports a change (as to any ``ReplicaWaiter``), or if its last check found anything: records, also
  those that did not fit into an answer, are read from the tier, wait for ``min_bytes``, or were
  sent, because the client may not have received them; an error, a divergence, a better replica; a
  high watermark or log start offset that the client does not have.
- Only a check *settles* a partition: it has no error, no records although it was read up to the
  end that this client may read, and no value that the client does not have. An answer settles
  nothing. So a change between a check and its answer is not lost, and if an answer is never sent,
  all of its partitions are as dirty as before.
- A settled partition *watches* the replica that it was checked in: it is one of the ``waiters``
  there (of the ``follower_waiters``, for a follower). It begins to watch in the same step of the
  event loop as the check, so no change is missed between them. Every change that can be news goes
  through its ``Replica``: appends (for followers); the high watermark, and the last stable offset,
  which moves only with it; the log start offset; a truncation; a log that goes offline or is
  replaced; another leader, leader epoch or ISR; the end of the replica. Two conditions are not
  reported by replicas. While this node may not serve, every partition is visited; and once any
  client's rights have changed, every partition is marked (``FetchServing.note_rights``).
- If more partitions are dirty than one request may name, that many are checked in one turn of the
  loop. If they have news the request is answered with it, else the next ones are checked. Those
  that stay dirty go behind the others.
- An answer has records of no more partitions than the client can name in its next request
  (``records_max``): if the client does not name a partition's next offset, it gets the same records
  again.
- A follower's partition is not settled before the follower is in the ISR: each of its requests
  asks again to join it.
- A better replica for a consumer (KIP-392) is looked for when a partition is checked. If nothing is
  written, the consumer stays; Kafka redirects it at the next request.

A partition that becomes dirty while no request of the session waits stops watching its replica, so
each partition of a session without a client costs one call.

**Ownership and bounds.** As in Kafka, a session belongs to any client that knows its id, a random
one of 2**31, and its next epoch; it outlives connections. There are
``max.incremental.fetch.session.cache.slots``. A new session evicts one that was unused for two
minutes, else the smallest that is older than two minutes and has fewer partitions; a follower's
evicts any client's, and replaces the same follower's last one. All sessions together have at most
``max.incremental.fetch.session.cache.partitions``. If a new or growing session exceeds that, it
evicts unused ones, then clients' that are older than two minutes and have more partitions (a
follower's evicts any client's), the largest first. Without room the client gets session id 0 and
names all partitions
in every request. So does a client whose rack has more than ``RACK_SIZE_BYTES_MAX`` bytes, or that
sends a topic name too long for any topic: this bounds the memory of a partition.

A follower has these rights if its broker is registered and its replica epoch is not older than
that registration. All others have a client's.

A follower's session belongs to one registration: a request with another replica epoch ends it
(FETCH_SESSION_ID_NOT_FOUND). A broker registers again if a log may have lost records, and then no
position that it sent before may be used (KIP-903); but a session keeps such positions for
partitions that a request does not name. The follower opens another session and sends all of them.

A session is not bound to a principal. A client that guesses the id and epoch of another client's
session can advance it: the owner then gets INVALID_FETCH_SESSION_EPOCH and opens another. The
guesser reads no records but those it could read without. A follower's session is safe from that:
Fetch refuses the broker id of a replica unless the connection has proved it (``Session.node_id``).

Source: KIP-227; Kafka's ``FetchSession``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from random import SystemRandom

from tidelog_core.admin.names import TOPIC_NAME_LENGTH_MAX
from tidelog_core.fetch_epochs import INITIAL_EPOCH, NO_SESSION, epoch_after
from tidelog_core.replication.leader.follower_progress import FollowerContact

from tidelog_node.replicas.replica import Replica, ReplicaWaiter
from tidelog_node.wire.fetch import FetchPartition, FetchTopic, ForgottenTopic
from tidelog_node.wire.fetch_answer import FetchResult

EVICTABLE_AFTER_MS = 120_000.0  # Kafka's min.incremental.fetch.session.eviction.ms
RACK_SIZE_BYTES_MAX = 256  # of a consumer's rack; the id of an AWS zone has 8
SESSION_ID_MAX = 2**31 - 1
_UNKNOWN = -1  # an offset that was not sent to the client
_UNGUESSABLE = SystemRandom()  # as ``secrets`` has it, but that loads OpenSSL

_Worth = tuple[bool, int, int]
"""The rank of a session for eviction, lowest first: is a follower's, size; then its id."""


class SessionPartition:
    """One partition of a session; a ``ReplicaWaiter`` of its replica while it watches it."""

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
        self.topic = topic  # its name or id, as in the session's requests
        self.wanted = wanted  # the last fetch parameters
        self.sent_high_watermark = _UNKNOWN
        self.sent_log_start = _UNKNOWN
        self.is_dirty = False
        self._replica: Replica | None = None  # the watched one

    def on_append(self, size_bytes: int) -> None:
        """Mark it, and let the waiting request count the bytes."""
        poll = self._mark()
        if poll is not None:
            poll.on_append(size_bytes)

    def on_change(self) -> None:
        """Mark it for the next check."""
        self._mark()

    def on_commit(self) -> None:
        """Mark it, and have it checked soon if a request waits."""
        poll = self._mark()
        if poll is not None:
            poll.on_commit()

    def wake(self) -> None:
        """Mark it, and have it checked now if a request waits."""
        poll = self._mark()
        if poll is not None:
            poll.wake()

    def _mark(self) -> ReplicaWaiter | None:
        """Mark it; return the waiting request. Without one it stops watching."""
        session = self.session
        session.mark(self)
        if session.poll is None:
            self.unwatch()
        return session.poll

    def watch(self, replica: Replica) -> None:
        """Watch this replica and no other."""
        if self._replica is replica or self.session.is_ended:
            return
        self.unwatch()
        self._replica = replica
        if self.session.replica_id >= 0:
            replica.follower_waiters.add(self)
        else:
            replica.waiters.add(self)

    def unwatch(self) -> None:
        """Stop watching."""
        replica, self._replica = self._replica, None
        if replica is not None:
            replica.waiters.discard(self)
            replica.follower_waiters.discard(self)

    def has_news(self, result: FetchResult) -> bool:
        """Return whether the result must be sent to the client."""
        return (
            result.records is not None
            or result.high_watermark != self.sent_high_watermark
            or result.log_start_offset != self.sent_log_start
            or result.error_code != 0
            or result.diverging is not None
            or result.preferred_replica >= 0
        )

    def note_sent(self, result: FetchResult) -> None:
        """Record the values of a result that is sent to the client."""
        # After an error the high watermark counts as unsent: the client must learn when it ends.
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
        "rights",
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
        self.replica_id = replica_id  # of its requests; negative: a consumer's
        # The version of the follower's registration. Its positions are valid only under this one.
        self.replica_epoch = replica_epoch
        self.is_follower = is_follower  # has a follower's rights to a slot
        self.uses_ids = uses_ids  # topics are named by their ids
        self.contact = contact  # of the follower
        self.created_ms = self.last_used_ms = now_ms
        self.next_epoch = INITIAL_EPOCH + 1  # required of the next request
        self.partitions: dict[tuple[bytes, int], SessionPartition] = {}
        # To be checked, in this order. A dict, because it keeps the order and has no duplicates.
        self.dirty: dict[SessionPartition, None] = {}
        self.poll: ReplicaWaiter | None = None  # the waiting request
        # Isolation level and rack of all reads. A change requires ``mark_all``.
        self.terms: tuple[int, bytes] | None = None
        # The rights by which settled partitions were checked: ``Access.generation``.
        self.rights: object = None
        self.is_ended = False
        # For ``FetchSessions``: the counted partitions, and whether it is filed in ``_by_all``.
        self.size = 0
        self.is_filed_by_all = False

    def mark(self, partition: SessionPartition) -> None:
        """Make the partition dirty."""
        if not partition.is_dirty:
            partition.is_dirty = True
            self.dirty[partition] = None

    def settle(self, partition: SessionPartition) -> None:
        """Do not check the partition until it is marked."""
        if partition.is_dirty:
            partition.is_dirty = False
            del self.dirty[partition]

    def move_back(self, partition: SessionPartition) -> None:
        """Move the partition behind all other dirty ones."""
        if partition.is_dirty:
            del self.dirty[partition]
            self.dirty[partition] = None

    def mark_all(self) -> None:
        """Make every partition dirty."""
        for partition in self.partitions.values():
            self.mark(partition)

    def add(self, topics: Sequence[FetchTopic]) -> None:
        """Add the new partitions of a request, and update the others' fetch parameters."""
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
        """Remove partitions."""
        for name, indexes in topics:
            for index in indexes:
                partition = self.partitions.pop((name, index), None)
                if partition is not None:
                    partition.unwatch()
                    self.settle(partition)

    def advance(self) -> None:
        """Advance to the next request's epoch."""
        self.next_epoch = epoch_after(self.next_epoch)

    def end(self) -> None:
        """Stop watching, and have the waiting request answered."""
        self.is_ended = True
        for partition in self.partitions.values():
            partition.unwatch()
        if self.poll is not None:
            self.poll.wake()


class FetchSessions:
    """The sessions of one node."""

    def __init__(
        self,
        *,
        slots_max: int,
        partitions_max: int,
        session_partitions_max: int,
        draw: Callable[[int], int] = _UNGUESSABLE.randrange,
    ) -> None:
        """``session_partitions_max`` bounds the partitions of one client's session.

        A follower's session has all partitions that it follows, because one fetch could not name
        them all instead. ``draw`` returns a random number below its argument, for ids.
        """
        self._draw = draw
        self._slots_max = slots_max
        self._partitions_max = partitions_max
        self._session_partitions_max = session_partitions_max
        # Dirty partitions are checked in portions of the number that a request may name.
        self.checks_max = session_partitions_max
        # Partitions with records in one answer. The client must name each of them in its next
        # request, among others and with its topic: one that it did not name would be sent again.
        self.records_max = max(1, session_partitions_max * 2 // 5)
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first
        self._of_followers: dict[int, FetchSession] = {}  # by broker id
        # Sessions that a client's new session may evict, and those that a follower's may.
        self._by_all: list[_Worth] = []
        self._by_followers: list[_Worth] = []
        self.partition_count = 0
        self._last_unnamed_id = SESSION_ID_MAX  # of ``enter``: beyond any id of a request

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
        """Return a new session for ``size`` partitions, ``None`` if there is no room.

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
        """Add a client's session that no request can name; return whether there was room.

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
        """Return whether the session may add a request's partitions; may evict others."""
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
        """Update the time of the session's last use, and its count of partitions."""
        self._sessions.move_to_end(session.session_id)
        session.last_used_ms = now_ms
        is_old = now_ms - session.created_ms > EVICTABLE_AFTER_MS
        if len(session.partitions) != session.size or is_old != session.is_filed_by_all:
            self._unfile(session)
            session.is_filed_by_all = is_old
            self._file(session)

    def close(self, session: FetchSession) -> None:
        """End the session, if it has not ended."""
        if session.is_ended:
            return
        del self._sessions[session.session_id]
        if self._of_followers.get(session.replica_id) is session:
            del self._of_followers[session.replica_id]
        self._unfile(session)
        session.end()

    # -- room --

    def _has_place(self, size: int, is_follower: bool, now_ms: float) -> bool:
        """Return whether there may be another session of this size; may evict others."""
        if not is_follower and size > self._session_partitions_max:
            return False
        if len(self._sessions) >= self._slots_max and not self._evict(is_follower, size, now_ms):
            return False
        return self._make_room(size, is_follower, size, now_ms)

    def _evict(self, is_follower: bool, size: int, now_ms: float) -> bool:
        """End a session that ranks below the new one. Source: Kafka's ``tryEvict``."""
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
        """Return whether a session of this size may add ``count`` partitions; may evict others."""
        while self.partition_count + count > self._partitions_max:
            if not self._evict_stale(now_ms) and not self._evict_largest(is_follower, size):
                return False
        return True

    def _evict_largest(self, is_follower: bool, size: int) -> bool:
        filed = self._by_followers if is_follower else self._by_all
        at = bisect_left(filed, (True, 0, 0)) - 1  # the largest of clients'
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
