"""A Fetch request of a session: it names only what has changed since the request before.

It reads only the partitions that may have news (``fetch_sessions``). If a later request of the
session comes before it is answered, it is answered with INVALID_FETCH_SESSION_EPOCH.

Source: KIP-227 (sessions).
"""

from __future__ import annotations

from itertools import islice

from tidelog_core.errors import ErrorCode

from tidelog_node.answers import Reply
from tidelog_node.handlers.fetch.fetch_sessions import FetchSession, SessionPartition
from tidelog_node.handlers.fetch.reading import READ_COMMITTED, Reading
from tidelog_node.handlers.fetch.served_fetch import ServedFetch
from tidelog_node.handlers.fetch.serving import FetchServing, Topics
from tidelog_node.replicas.replica import Replica, ReplicaWaiter
from tidelog_node.requests.routes import RequestContext
from tidelog_node.wire.fetch import FetchRequest
from tidelog_node.wire.fetch_answer import FetchResult, encode_fetch


class SessionFetch(ServedFetch):
    """A request of a session that has taken in the partitions it names."""

    def __init__(
        self,
        serving: FetchServing,
        request: FetchRequest,
        context: RequestContext,
        session: FetchSession,
    ) -> None:
        super().__init__(serving, request, context)
        self._session = session
        self._next_epoch = session.next_epoch  # of the session, unless another request has come
        # How many of the dirty partitions, from the first on, the request has not read yet, and how
        # many it has not read since it was woken.
        self._new_count = 0
        self._left_count = 0
        self._found: list[FetchResult] = []  # by the last read
        self._visited: list[SessionPartition] = []  # the partitions of ``_found``
        self._answered: list[tuple[SessionPartition, FetchResult]] = []  # by the encoded answer

    def overtaken(self) -> Reply | None:
        """Return INVALID_FETCH_SESSION_EPOCH if a later request has advanced the session."""
        session = self._session
        if session.next_epoch == self._next_epoch:
            return None
        error_code = ErrorCode.invalid_fetch_session_epoch
        return self.serving.refuse(self.context, error_code, session_id=session.session_id)

    def read(self, *, is_new: bool) -> Reading:
        """Read the first partitions that may have news, and settle those that have none."""
        session = self._session
        if not self.serving.can_serve():
            session.mark_all()  # No replica has notified the session.
        self.serving.note_rights(session)
        self._left_count = len(session.dirty)
        if is_new:
            self._new_count = self._left_count
        return self.read_on()

    def read_on(self) -> Reading:
        """Read the next dirty partitions, at most as many as one request may name."""
        serving, request, version = self.serving, self.request, self.version
        session, reader = self._session, serving.reader
        # Not mixed with others: only the first read of a partition notes the follower's position.
        count = min(self._new_count or self._left_count, serving.sessions.checks_max)
        is_part = count < len(session.dirty)
        is_new = self._new_count > 0
        reading = serving.begin(
            request,
            self.context,
            is_new=is_new,
            contact=session.contact,
            bytes_max=self.bytes_max,
        )
        found: list[FetchResult] = []
        visited: list[SessionPartition] = []
        has_news = False
        is_follower = request.replica_id >= 0
        partitions_with_records_left = serving.sessions.records_max
        # A copy: noting a follower's position may mark other partitions.
        for partition in list(islice(session.dirty, count)):
            name, wanted = partition.topic, partition.wanted
            replica = reader.find(name, wanted.partition, request, version)
            result = reader.read(reading, name, wanted, replica, found)
            partition_has_news = partition.has_news(result)
            if partition_has_news and is_follower and replica is not None and replica.is_diskless:
                reading.must_answer = True  # The high watermark is what it waits for.
            if result.records is not None:
                partitions_with_records_left -= 1
                if partitions_with_records_left == 0:
                    reading.bytes_left = 0  # The others are checked, but their records wait.
            # After the read: noting a follower's position wakes watchers, and may end the watch.
            if replica is None:
                partition.unwatch()
            else:
                partition.watch(replica)
                has_more_to_read = partition_has_news or reading.is_pending(wanted)
                if not has_more_to_read and self._is_at_end(replica, partition, result):
                    session.settle(partition)
                    continue
            has_news = has_news or partition_has_news
            session.mark(partition)
            found.append(result)
            visited.append(partition)
        self._found, self._visited = found, visited
        if is_part:
            for partition in visited:
                session.move_back(partition)
        self._note_read(reading, count, has_news=has_news)
        return reading

    def _note_read(self, reading: Reading, count: int, *, has_news: bool) -> None:
        """Note that so many dirty partitions were read, and whether to answer without the rest."""
        self._left_count -= count
        self._new_count = max(0, self._new_count - count)
        if self._left_count > 0:
            reading.has_more = not has_news
            reading.must_answer = reading.must_answer or has_news  # The next request reads on.
        if self._session.is_ended:
            reading.must_answer = True  # Appends would not notify this fetch.

    def _is_at_end(
        self, replica: Replica, partition: SessionPartition, result: FetchResult
    ) -> bool:
        """Whether the client has all that it may see, and a follower is in the ISR."""
        offset, request = partition.wanted.offset, self.request
        if request.replica_id >= 0:
            leader = replica.leader
            return (
                leader is not None
                and request.replica_id in leader.partition.isr
                and offset >= _end_for_followers(replica)
            )
        # Past the end the offset may become out of range without an append.
        if request.isolation_level == READ_COMMITTED:
            return offset == result.last_stable_offset
        return offset == result.high_watermark

    def encode(self, reading: Reading) -> Reply:
        """Return the results with news."""
        session, serving = self._session, self.serving
        topics: Topics = []
        topic = b""
        results: list[FetchResult] = []
        for partition, result in zip(self._visited, self._found, strict=True):
            if not partition.has_news(result):
                continue
            self._answered.append((partition, result))
            if not topics or partition.topic != topic:
                topic, results = partition.topic, []
                topics.append((topic, results))
            results.append(result)
        return serving.encode(
            self.context, topics, session_id=session.session_id, has_errors=reading.must_answer
        )

    def note_sent(self) -> None:
        """Note that the client has the results."""
        for partition, result in self._answered:
            partition.note_sent(result)
            if result.records is not None:
                self._session.move_back(partition)

    def empty(self) -> Reply:
        """Return an answer of the session without partitions: the next one has them."""
        return encode_fetch(
            self.version,
            self.context.correlation_id,
            (),
            session_id=self._session.session_id,
            throttle_ms=self.context.throttle_ms,
        )

    def begin_waiting(self, poll: ReplicaWaiter) -> None:
        """Have ``poll`` notified of changes in any partition: all watch their replicas."""
        self._session.poll = poll

    def end_waiting(self, poll: ReplicaWaiter) -> None:
        """End the notifications of ``poll``."""
        if self._session.poll is poll:
            self._session.poll = None


def _end_for_followers(replica: Replica) -> int:
    log = replica.log
    return log.high_watermark if replica.is_diskless else log.log_end_offset
