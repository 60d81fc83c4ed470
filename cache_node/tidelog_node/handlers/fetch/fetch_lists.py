"""Keeps the partition lists that consumers without sessions repeat on a connection.

librdkafka has no fetch sessions. It names all of its partitions in every fetch and expects all of
them in the answer. Little of the list changes between two fetches: the partition that it begins
with, and the offsets of partitions that had records. So the last list of a connection is kept like
a fetch session that the client does not know of: the partitions and their fetch parameters, those
that may have news (``fetch_sessions`` defines *dirty* and *settled*), and the encoded bytes of the
request and of each settled partition's result. A request is compared with the kept one; the
partitions that it changes become dirty. Only dirty partitions are checked; the rest of the answer
is composed of the kept bytes (``wire.fetch_list``).

The client sees no difference: **the answer is that of a request that is parsed in full**. A session
omits a settled partition from its answers; a list repeats its bytes in each answer. The check that
settles a partition writes its bytes: no records up to the end that this client may read, and no
error. The partition is notified of every change that could make them wrong, like any
``ReplicaWaiter``: it watches its replica as a session's partition does. While this node may not
serve, and after a change of the terms (isolation level) or of any client's rights, every partition
is checked.

A list is kept of a consumer's request without a session that names at least
``KEPT_PARTITIONS_MIN`` partitions, each once, without a rack (another replica may become the
closest one at any time), forgotten partitions, empty topics and names too long for any topic. A
request that is not the kept list, with any beginning and few changes, is parsed in full, and its
list is kept instead. If a client's lists differ every time, they are kept less and less often
(``_Kept.misses``). While a request served from a list is not answered, the next one of the
connection is parsed in full and does not use the list.

Lists share the bounds of sessions: each takes one of the slots and counts its partitions. A
partition takes some 500 bytes if topics have many partitions, and up to 1,700 if each is of another
topic with a name of 249 characters. Lists are evicted like clients' sessions, and end with their
connection.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_core.fetch_epochs import FINAL_EPOCH, NO_SESSION

from tidelog_node.handlers.fetch.fetch_sessions import (
    FetchSession,
    FetchSessions,
    SessionPartition,
    may_keep,
)
from tidelog_node.requests.session import Session
from tidelog_node.wire.fetch import (
    TOPIC_ID_FROM,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    encode_entry,
    parse_entry,
    parse_fetch_head,
)
from tidelog_node.wire.fetch_answer import FetchResult, encode_result
from tidelog_node.wire.fetch_list import ListLayout, find_changes, first_named
from tidelog_node.wire.primitives import PARSE_ERRORS

KEPT_PARTITIONS_MIN = 32  # fewer are parsed as quickly as compared
COMPARED_BYTES_MIN = 512  # of a frame: a shorter one cannot name ``KEPT_PARTITIONS_MIN``
MISSES_MAX = 8  # after this many in a row, one list of 256 is kept
_CONSUMER = -1


class ListedPartition(SessionPartition):
    """One partition of a kept list."""

    __slots__ = ("place",)

    def __init__(
        self, session: FetchSession, topic: bytes, wanted: FetchPartition, place: int
    ) -> None:
        super().__init__(session, topic, wanted)
        self.place = place  # its index in the kept list


class FullList(FetchSession):
    """The last full list of one connection. For the node's event loop only."""

    __slots__ = (
        "_entries",
        "_sent",
        "answers",
        "first",
        "is_busy",
        "layout",
        "listed",
        "version",
    )

    def __init__(self, version: int, now_ms: float) -> None:
        super().__init__(
            NO_SESSION,
            replica_id=_CONSUMER,
            replica_epoch=-1,
            is_follower=False,
            uses_ids=version >= TOPIC_ID_FROM,
            contact=None,
            now_ms=now_ms,
        )
        self.version = version
        self.listed: list[ListedPartition] = []  # by place
        self.first = 0  # the place of the last request's first partition
        self.is_busy = False  # a request served from it is not answered yet

    def fill(self, request: FetchRequest) -> bool:
        """Keep the request's list; return whether it names each partition once."""
        version, topics = self.version, request.topics
        if len(topics) > 1 and topics[0][0] == topics[-1][0]:
            # The request began in the middle of a topic, and ended with its first partitions.
            self.first = len(topics[-1][1])
            topics = [(topics[0][0], topics[-1][1] + topics[0][1]), *topics[1:-1]]
        self._add(topics)
        self.terms = (request.isolation_level, b"")
        if len(self.partitions) != len(self.listed):
            return False
        counts = [(name, len(partitions)) for name, partitions in topics]
        entry_size_bytes = len(encode_entry(version, self.listed[0].wanted))
        self._entries = ListLayout(version, counts, entry_size_bytes)
        self._sent = self._entries.empty_list()  # the request's bytes
        for partition in self.listed:
            at = self._entries.position(partition.place)
            self._sent[at : at + entry_size_bytes] = encode_entry(version, partition.wanted)
        self.layout = ListLayout(version, counts, len(encode_result(version, FetchResult(0))))
        self.answers = self.layout.empty_list()  # valid for settled partitions only
        return True

    def _add(self, topics: list[FetchTopic]) -> None:
        for name, wanted_partitions in topics:
            for wanted in wanted_partitions:
                partition = ListedPartition(self, name, wanted, len(self.listed))
                self.listed.append(partition)
                self.partitions[name, wanted.partition] = partition
                self.mark(partition)

    def take(self, sent: bytes, isolation_level: int) -> bool:
        """Return whether the request has this list; apply its changes, and mark those partitions.

        ``sent`` is the request from its topics on.
        """
        try:
            partition = self.partitions.get(first_named(self.version, sent))
        except PARSE_ERRORS:
            return False
        if partition is None:
            return False
        assert isinstance(partition, ListedPartition)
        changes = find_changes(self.version, self._entries, self._sent, sent, partition.place)
        if changes is None:
            return False
        self.first = partition.place
        for place, entry in changes:
            at = self._entries.position(place)
            self._sent[at : at + len(entry)] = entry
            changed = self.listed[place]
            changed.wanted = parse_entry(self.version, entry)
            self.mark(changed)
        terms = (isolation_level, b"")
        if terms != self.terms:
            self.terms = terms
            self.mark_all()
        return True

    def clear(self) -> None:
        """Remove the partitions, so that no reference cycle is left to the garbage collector."""
        self.dirty.clear()
        self.partitions.clear()
        self.listed.clear()

    def dirty_in_order(self) -> list[ListedPartition]:
        """Return the dirty partitions in the order of the last request."""
        listed, first, count = self.listed, self.first, len(self.listed)
        if len(self.dirty) == count:
            return listed[first:] + listed[:first]
        found: list[int] = []  # distances from the first
        for partition in self.dirty:
            assert isinstance(partition, ListedPartition)
            found.append((partition.place - first) % count)
        found.sort()
        return [listed[(first + distance) % count] for distance in found]

    def settle_as(self, partition: ListedPartition, result: FetchResult) -> None:
        """Do not check the partition until it is marked, and answer ``result`` until then."""
        at = self.layout.position(partition.place)
        self.answers[at : at + self.layout.entry_size_bytes] = encode_result(self.version, result)
        self.settle(partition)


@dataclass(slots=True)
class RecalledFetch(FetchRequest):
    """A request that was not parsed: it names the partitions of a kept list."""

    listed: FullList | None = None


class _Kept:
    """The kept list of one connection, and its statistics."""

    __slots__ = ("hits", "listed", "misses", "skips")

    def __init__(self) -> None:
        self.listed: FullList | None = None
        self.hits = 0  # requests that repeated the list
        self.misses = 0  # lists in a row that were not repeated
        self.skips = 0  # lists still to skip before the next one is kept


class FetchLists:
    """The kept lists of one node, by connection."""

    def __init__(self, sessions: FetchSessions) -> None:
        """Lists take slots of ``sessions``."""
        self._sessions = sessions
        self._kept: dict[Session, _Kept] = {}

    def recall(
        self, frame: memoryview, position: int, version: int, session: Session
    ) -> RecalledFetch | None:
        """Return the request whose body starts at ``position`` if it repeats the kept list."""
        kept = self._kept.get(session) if len(frame) >= COMPARED_BYTES_MIN else None
        if kept is None or kept.listed is None:
            return None
        listed = kept.listed
        if listed.is_busy or listed.is_ended or version != listed.version:
            return None
        try:
            head, position = parse_fetch_head(frame, position, version)
        except PARSE_ERRORS:
            return None
        replica_id, _, _, _, isolation_level, session_id, epoch = head
        is_full = (replica_id, session_id, epoch) == (_CONSUMER, NO_SESSION, FINAL_EPOCH)
        if not is_full or not listed.take(bytes(frame[position:]), isolation_level):
            return None
        kept.hits += 1
        return RecalledFetch(*head, [], element_count=len(listed.dirty), listed=listed)

    def keep(
        self, request: FetchRequest, version: int, session: Session, now_ms: float
    ) -> FullList | None:
        """Keep the list of a request without a session; return it, ``None`` if it is not kept."""
        if not _may_keep(request):
            return None
        kept = self._kept.get(session)
        if kept is None:
            kept = self._kept[session] = _Kept()
            session.on_close(self._on_close)
        if kept.listed is not None:
            if kept.listed.is_busy:
                return None
            self._let_go(kept, kept.listed)
        if kept.skips > 0:
            kept.skips -= 1
            return None
        listed = FullList(version, now_ms)
        size = sum(len(partitions) for _, partitions in request.topics)
        if not self._sessions.enter(listed, size, now_ms):
            return None
        if not listed.fill(request):
            self._let_go(kept, listed)
            return None
        self._sessions.touch(listed, now_ms)
        kept.listed = listed
        return listed

    def _let_go(self, kept: _Kept, listed: FullList) -> None:
        """End the list. If it served no request, skip more lists than the last time."""
        self._sessions.close(listed)
        listed.clear()
        kept.listed = None
        kept.misses = 0 if kept.hits else min(kept.misses + 1, MISSES_MAX)
        kept.skips = (1 << kept.misses) - 1
        kept.hits = 0

    def _on_close(self, session: Session) -> None:
        kept = self._kept.pop(session)
        if kept.listed is not None:
            self._sessions.close(kept.listed)
            if not kept.listed.is_busy:
                kept.listed.clear()


def _may_keep(request: FetchRequest) -> bool:
    topics = request.topics
    return (
        request.element_count >= KEPT_PARTITIONS_MIN
        and request.replica_id == _CONSUMER
        and not request.rack
        and not request.forgotten
        and all(partitions for _, partitions in topics)
        and may_keep(topics, b"")
    )
