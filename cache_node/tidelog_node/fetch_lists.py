"""Keeps the partition lists that consumers without sessions repeat on a connection.

librdkafka has no fetch sessions. It names all of its partitions in every fetch, and wants an answer
that has all of them. Between two fetches hardly anything of the list changes: the partition that it
begins with, and the offsets of those that had records. So the last list of a connection is kept
like a fetch session, which its client knows nothing of: the partitions with what they want, which
of them may have news (``fetch_sessions`` says what makes *dirty* and what settles), and in bytes
both the request and what each settled partition answers. A request is compared with the kept one;
the partitions that it changes are dirty. Only dirty ones are looked at, and the answer is put
together from the bytes of all others (``wire.fetch_list``).

The client sees no difference: **the answer is that of a request that is read in full**. A session's
partition is settled once the client has been told everything; here its bytes tell everything again
each time. They are written by the look that settles it: it has no records, up to the very end that
this client may see, and no error. Whatever could make them wrong is told to it as to any
``ReplicaWaiter``: the watch is the session's, with the same reasons. While this node may not
serve, and for other terms (isolation level), every partition is looked at.

A list is kept of a consumer's request without session that names ``KEPT_PARTITIONS_MIN`` or
more, each once, without rack (another replica may become the closest one at any time), and with
nothing else that a full list need not have. A request that is not the kept list, begun anywhere and
with few changes, is read in full, and its list is kept instead. A client whose lists differ every
time pays for that less and less often (``_Kept.misses``). While a request that was served from a
list is not answered, the next one of the same connection is read in full and leaves the list alone.

Lists are bounded as sessions are, and together with them: each takes one of the slots and counts
its partitions: some 500 bytes each where topics have many, and up to 1,700 where each is of
another topic with a name of 249 characters. They are evicted as clients' sessions are. A list ends
with its connection.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_core.fetch_epochs import FINAL_EPOCH, NO_SESSION

from tidelog_node.fetch_sessions import FetchSession, FetchSessions, SessionPartition, may_keep
from tidelog_node.session import Session
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

KEPT_PARTITIONS_MIN = 32  # fewer are read as quickly as they are compared
COMPARED_BYTES_MIN = 512  # of a frame: a shorter one cannot name so many
MISSES_MAX = 8  # after so many in a row, one list of 256 is kept
_CONSUMER = -1


class ListedPartition(SessionPartition):
    """One partition of a kept list."""

    __slots__ = ("place",)

    def __init__(
        self, session: FetchSession, topic: bytes, wanted: FetchPartition, place: int
    ) -> None:
        super().__init__(session, topic, wanted)
        self.place = place  # its number in the kept list


class FullList(FetchSession):
    """The full list that one connection has sent last. For the node's event loop only."""

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
        self.first = 0  # the place of the partition with which the last request began
        self.is_busy = False  # a request that is served from it is not answered yet

    def fill(self, request: FetchRequest) -> bool:
        """Keep the request's list; return whether it names each partition once."""
        version, topics = self.version, request.topics
        if len(topics) > 1 and topics[0][0] == topics[-1][0]:
            # It began in the middle of a topic, whose beginning came last.
            self.first = len(topics[-1][1])
            topics = [(topics[0][0], topics[-1][1] + topics[0][1]), *topics[1:-1]]
        self._add(topics)
        self.terms = (request.isolation_level, b"")
        if len(self.partitions) != len(self.listed):
            return False
        counts = [(name, len(partitions)) for name, partitions in topics]
        entry_size_bytes = len(encode_entry(version, self.listed[0].wanted))
        self._entries = ListLayout(version, counts, entry_size_bytes)
        self._sent = self._entries.empty_list()  # as the client has sent it
        for partition in self.listed:
            at = self._entries.position(partition.place)
            self._sent[at : at + entry_size_bytes] = encode_entry(version, partition.wanted)
        self.layout = ListLayout(version, counts, len(encode_result(version, FetchResult(0))))
        self.answers = self.layout.empty_list()  # right for what is settled, and for nothing else
        return True

    def _add(self, topics: list[FetchTopic]) -> None:
        for name, wanted_partitions in topics:
            for wanted in wanted_partitions:
                partition = ListedPartition(self, name, wanted, len(self.listed))
                self.listed.append(partition)
                self.partitions[name, wanted.partition] = partition
                self.mark(partition)

    def take(self, sent: bytes, isolation_level: int) -> bool:
        """Take another request, from its topics on; return whether it has this list.

        What has changed of it is marked.
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
        """Let go of the partitions, so that they are not left to a collection of garbage."""
        self.dirty.clear()
        self.partitions.clear()
        self.listed.clear()

    def dirty_in_order(self) -> list[ListedPartition]:
        """Return what is to be looked at, in the order of the last request."""
        listed, first, count = self.listed, self.first, len(self.listed)
        if len(self.dirty) == count:
            return listed[first:] + listed[:first]
        found: list[int] = []  # how far behind the first
        for partition in self.dirty:
            assert isinstance(partition, ListedPartition)
            found.append((partition.place - first) % count)
        found.sort()
        return [listed[(first + distance) % count] for distance in found]

    def settle_as(self, partition: ListedPartition, result: FetchResult) -> None:
        """Look at the partition no more until it is marked, and answer this meanwhile."""
        at = self.layout.position(partition.place)
        self.answers[at : at + self.layout.entry_size_bytes] = encode_result(self.version, result)
        self.settle(partition)


@dataclass(slots=True)
class RecalledFetch(FetchRequest):
    """A request that was not read: it names the partitions of a kept list."""

    listed: FullList | None = None


class _Kept:
    """What is kept for one connection."""

    __slots__ = ("hits", "listed", "misses", "skips")

    def __init__(self) -> None:
        self.listed: FullList | None = None
        self.hits = 0  # requests that had the list
        self.misses = 0  # lists in a row that came only once
        self.skips = 0  # lists that will not be kept, before the next one


class FetchLists:
    """The kept lists of one node, by connection."""

    def __init__(self, sessions: FetchSessions) -> None:
        """They have their places among ``sessions``."""
        self._sessions = sessions
        self._kept: dict[Session, _Kept] = {}

    def recall(
        self, frame: memoryview, position: int, version: int, session: Session
    ) -> RecalledFetch | None:
        """Return the request whose body starts at ``position``, if it has the kept list."""
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
        """Keep the list of a request that is none of a session, and return it.

        ``None`` where it is not kept.
        """
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
        """End the list, and say how many are not kept now if it has served nobody."""
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
