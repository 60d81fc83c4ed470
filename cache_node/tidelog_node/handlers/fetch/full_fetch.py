"""A Fetch request that names all of its partitions, and may open a session.

Source: KIP-74 (size limits), KIP-227 (sessions).
"""

from __future__ import annotations

from tidelog_core.fetch_epochs import NO_SESSION
from tidelog_core.replication.leader.follower_progress import FollowerContact

from tidelog_node.answers import Reply
from tidelog_node.handlers.fetch.fetch_sessions import FetchSession, may_keep
from tidelog_node.handlers.fetch.reading import Reading
from tidelog_node.handlers.fetch.served_fetch import ServedFetch
from tidelog_node.handlers.fetch.serving import FetchServing
from tidelog_node.replicas.replica import ReplicaWaiter
from tidelog_node.requests.routes import RequestContext
from tidelog_node.wire.fetch import FetchRequest
from tidelog_node.wire.fetch_answer import FetchResult


class FullFetch(ServedFetch):
    """A request that names all of its partitions."""

    def __init__(
        self,
        serving: FetchServing,
        request: FetchRequest,
        context: RequestContext,
        *,
        opens_session: bool,
    ) -> None:
        super().__init__(serving, request, context)
        self._opens_session = opens_session
        self._session: FetchSession | None = None  # that the answer opens
        self._contact: FollowerContact | None = None
        if opens_session and request.replica_id >= 0:
            self._contact = FollowerContact(serving.now_ms())
        self._waiters: list[set[ReplicaWaiter]] = []

    def read(self, *, is_new: bool) -> Reading:
        """Read every partition of the request."""
        serving, request, version = self.serving, self.request, self.version
        reader = serving.reader
        reading = serving.begin(
            request,
            self.context,
            is_new=is_new,
            contact=self._contact,
            bytes_max=self.bytes_max,
        )
        for name, partitions in request.topics:
            results: list[FetchResult] = []
            for wanted in partitions:
                replica = reader.find(name, wanted.partition, request, version)
                results.append(reader.read(reading, name, wanted, replica, results))
            reading.topics.append((name, results))
        if not request.topics:
            reading.must_answer = True
        return reading

    def encode(self, reading: Reading) -> Reply:
        """Return every partition's result; open the session if the request asks for one."""
        session_id = self._open_session(reading) if self._opens_session else NO_SESSION
        return self.serving.encode(
            self.context, reading.topics, session_id=session_id, has_errors=reading.must_answer
        )

    def empty(self) -> Reply:
        """Return an answer without partitions, and without a session."""
        if self._session is not None:
            self.serving.sessions.close(self._session)
        return super().empty()

    def _open_session(self, reading: Reading) -> int:
        request, sessions, now_ms = self.request, self.serving.sessions, self.serving.now_ms()
        if not may_keep(request.topics, request.rack):
            return NO_SESSION
        session = sessions.open(
            sum(len(partitions) for _, partitions in request.topics),
            replica_id=request.replica_id,
            replica_epoch=request.replica_epoch,
            is_follower=self.serving.is_follower(request),
            uses_ids=reading.has_ids,
            contact=self._contact,
            now_ms=now_ms,
        )
        if session is None:
            return NO_SESSION
        session.terms = terms_of(request)
        session.add(request.topics)
        for name, results in reading.topics:
            for result in results:
                session.partitions[name, result.partition].note_sent(result)
        sessions.touch(session, now_ms)
        self._session = session
        return session.session_id

    def begin_waiting(self, poll: ReplicaWaiter) -> None:
        """Add ``poll`` to the waiters of every partition's replica."""
        reader, request, version = self.serving.reader, self.request, self.version
        is_follower = request.replica_id >= 0
        for name, partitions in request.topics:
            for wanted in partitions:
                replica = reader.find(name, wanted.partition, request, version)
                if replica is not None:
                    waiters = replica.follower_waiters if is_follower else replica.waiters
                    waiters.add(poll)
                    self._waiters.append(waiters)

    def end_waiting(self, poll: ReplicaWaiter) -> None:
        """Remove ``poll`` from the waiters."""
        for waiters in self._waiters:
            waiters.discard(poll)


def terms_of(request: FetchRequest) -> tuple[int, bytes]:
    """Return the settings that hold for every partition of a session, named or not."""
    return request.isolation_level, request.rack
