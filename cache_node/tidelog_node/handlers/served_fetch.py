"""A Fetch request in progress: its reads, its wait and its answer.

A full request names every partition (``FullFetch``) and may open a session. Later requests of the
session name only changes: ``SessionFetch`` reads only the partitions with news
(``fetch_sessions``). If a later request of the session comes before a request is answered, the
earlier one is answered with INVALID_FETCH_SESSION_EPOCH.

Source: KIP-74 (size limits), KIP-227 (sessions), KIP-951 (leaders in the answer).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from tidelog_core.errors import ErrorCode
from tidelog_core.fetch_epochs import NO_SESSION
from tidelog_core.replication.follower_progress import FollowerContact

from tidelog_node.answers import Reply
from tidelog_node.audit.transfers import TransferRecorder
from tidelog_node.authorization.access import Access
from tidelog_node.fetch_sessions import FetchSession, FetchSessions, SessionPartition, may_keep
from tidelog_node.handlers.fetch_reading import (
    NO_REPLICAS,
    READ_COMMITTED,
    ClosestReplica,
    PartitionReader,
    Reading,
)
from tidelog_node.node_context import NodeContext
from tidelog_node.replica import Replica, ReplicaWaiter
from tidelog_node.replicas import ReplicaManager
from tidelog_node.routes import RequestContext
from tidelog_node.session import NO_NODE
from tidelog_node.throttling.throttle import NO_LIMIT_BYTES, Throttle
from tidelog_node.wire import fetch
from tidelog_node.wire.fetch import FetchRequest
from tidelog_node.wire.fetch_answer import (
    LEADERS_FROM,
    FetchResult,
    encode_fetch,
    fetch_size_bytes,
    set_throttle_time,
)
from tidelog_node.wire.produce import Endpoint

_LEADER_ERRORS = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)

_Topics = list[tuple[bytes, list[FetchResult]]]


class FetchServing:
    """The shared means of serving requests: the reader, the sessions, and leaders' endpoints."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        closest: ClosestReplica | None,
        access: Access | None = None,
        throttle: Throttle | None = None,
        record: TransferRecorder | None = None,
    ) -> None:
        self.throttle = throttle
        self.counters = node.counters
        self.can_serve = node.standing.can_serve  # whether this node may answer now
        self._replicas = replicas
        self._node_config = node.config
        self.reader = PartitionReader(
            replicas=replicas,
            closest=closest,
            access=access,
            record=record,
            counters=node.counters,
            has_gateways=node.static_config.diskless_gateways_enable,
            silence_ms_max=lambda: float(node.config().replica_lag_time_max_ms),
        )
        config = node.config()
        self.sessions = FetchSessions(
            slots_max=config.max_incremental_fetch_session_cache_slots,
            partitions_max=config.max_incremental_fetch_session_cache_partitions,
            session_partitions_max=config.socket_request_max_partitions,
        )

    def now_ms(self) -> float:
        """Return the time of the clock that decides whether followers are late."""
        return self._replicas.clock_ms()

    def is_follower(self, request: FetchRequest) -> bool:
        """Return whether the request is from a broker registered with this replica epoch.

        A later epoch counts too: the image here may lag behind the registration.
        """
        registered = self._replicas.leaders.replica_epoch(request.replica_id)
        return registered is not None and request.replica_epoch >= registered

    def begin(
        self,
        request: FetchRequest,
        context: RequestContext,
        *,
        is_new: bool,
        contact: FollowerContact | None,
        bytes_max: int = NO_LIMIT_BYTES,
    ) -> Reading:
        """Return the start of a pass over partitions. ``bytes_max`` is by the client's quota."""
        return Reading(
            request,
            context.api_version >= fetch.TOPIC_ID_FROM,
            self.can_serve(),
            is_new,
            min(request.max_bytes, self._node_config().fetch_max_bytes, bytes_max),
            contact,
            None if request.replica_id >= 0 else context.session,
        )

    def note_rights(self, session: FetchSession) -> None:
        """Mark all of a session's partitions if rights have changed since they were checked."""
        access = self.reader.access
        if access is not None:
            generation = access.generation()
            if session.rights is not generation:
                session.rights = generation
                session.mark_all()

    def encode(
        self,
        served: ServedFetch,
        topics: _Topics,
        *,
        session_id: int,
        has_errors: bool,
    ) -> Reply:
        """Return the response, with the leaders of partitions that other nodes lead."""
        context, version = served.context, served.version
        endpoints: Sequence[Endpoint] = ()
        if has_errors and version >= LEADERS_FROM:
            topics = [
                (name, [self.with_leader(name, result) for result in results])
                for name, results in topics
            ]
            results = [result for _, of_topic in topics for result in of_topic]
            endpoints = self.endpoints_of(results, context)
        return encode_fetch(
            version,
            context.correlation_id,
            topics,
            session_id=session_id,
            endpoints=endpoints,
            throttle_ms=context.throttle_ms,
        )

    def with_leader(self, name: bytes, result: FetchResult) -> FetchResult:
        """Return the result with the partition's leader, if that is another node.

        For versions from ``LEADERS_FROM`` on.
        """
        if result.error_code not in _LEADER_ERRORS:
            return result
        leader = self._replicas.leaders.find(name, result.partition, is_id=True)
        if leader is None:
            return result
        return result._replace(leader_id=leader.leader_id, leader_epoch=leader.leader_epoch)

    def endpoints_of(
        self, results: Iterable[FetchResult], context: RequestContext
    ) -> Sequence[Endpoint]:
        """Return the client's endpoints of the leaders in the results."""
        leader_ids = {result.leader_id for result in results if result.leader_id >= 0}
        return self._replicas.leaders.endpoints(leader_ids, context.session.listener)

    def refuse(
        self, context: RequestContext, error_code: int, *, session_id: int = NO_SESSION
    ) -> Reply:
        """Return a response with an error and no partitions."""
        self.counters.note_error(fetch.API_KEY, error_code)
        if context.timer is not None and self.throttle is not None:
            self.throttle.timed(context)
        return encode_fetch(
            context.api_version,
            context.correlation_id,
            (),
            error_code=error_code,
            session_id=session_id,
            throttle_ms=context.throttle_ms,
        )

    def refuse_follower(self, request: FetchRequest, context: RequestContext) -> Reply:
        """Return the response to a client that names a replica and has not proved to be its node.

        Every partition that it names has the error that Kafka gives without CLUSTER_ACTION. A
        session of that replica is not shown to it.
        """
        if request.session_epoch > 0:
            return self.refuse(context, ErrorCode.fetch_session_id_not_found)
        code = ErrorCode.topic_authorization_failed
        self.counters.note_error(fetch.API_KEY, code)
        return encode_fetch(
            context.api_version,
            context.correlation_id,
            [
                (name, [FetchResult(wanted.partition, code) for wanted in partitions])
                for name, partitions in request.topics
            ],
            throttle_ms=context.throttle_ms,
        )


class ServedFetch:
    """One request in progress."""

    def __init__(
        self, serving: FetchServing, request: FetchRequest, context: RequestContext
    ) -> None:
        self.serving = serving
        self.request = request
        self.context = context
        self.version = context.api_version
        self.min_bytes = request.min_bytes
        self.bytes_max = NO_LIMIT_BYTES
        throttle = serving.throttle
        if throttle is not None and throttle.is_active:
            self.bytes_max = throttle.fetch_bytes_max(context.session)
            self.min_bytes = min(request.min_bytes, self.bytes_max)

    def overtaken(self) -> Reply | None:
        """Return the answer if a later request of the same session has come."""
        return None

    def read(self, *, is_new: bool) -> Reading:
        """Read, within the request's limits, from the local logs."""
        raise NotImplementedError

    def read_on(self) -> Reading:
        """Read the next partitions, if the last reading has set ``has_more``."""
        raise NotImplementedError

    def reply(self, reading: Reading) -> Reply:
        """Return the answer with the records found, an empty one to a client over its quota."""
        overtaken = self.overtaken()
        if overtaken is not None:
            return overtaken
        reply = self.encode(reading)
        throttle, context = self.serving.throttle, self.context
        if (
            throttle is not None
            and throttle.is_active
            and not throttle.fetched(context, fetch_size_bytes(reply, self.version))
        ):
            return self.empty()
        self.note_sent()
        self._count(reading)
        if context.throttle_ms:
            return set_throttle_time(reply, self.version, context.throttle_ms)
        return reply

    def _count(self, reading: Reading) -> None:
        """Count the bytes of the records that are answered."""
        client = reading.client
        if client is None:
            for replica, size_bytes, _ in reading.found:
                replica.traffic.replicated_out_bytes += size_bytes
            return
        if client.node_id != NO_NODE:
            return  # A node reads for itself, like a lag of groups or a damaged segment.
        for replica, size_bytes, offset_count in reading.found:
            replica.traffic.note_fetched(size_bytes, offset_count)

    def encode(self, reading: Reading) -> Reply:
        """Return the answer with the records found, which may not be sent."""
        raise NotImplementedError

    def note_sent(self) -> None:
        """Note that the client gets the encoded answer."""

    def empty(self) -> Reply:
        """Return an answer without partitions instead of the encoded one."""
        return encode_fetch(
            self.version,
            self.context.correlation_id,
            (),
            throttle_ms=self.context.throttle_ms,
        )

    def begin_waiting(self, poll: ReplicaWaiter) -> None:
        """Have ``poll`` notified of appends."""
        raise NotImplementedError

    def end_waiting(self, poll: ReplicaWaiter) -> None:
        """Undo ``begin_waiting``."""
        raise NotImplementedError


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
        led_by = reader.led(has_ids=reading.has_ids)
        for name, partitions in request.topics:
            led = led_by.get(name, NO_REPLICAS)
            results: list[FetchResult] = []
            for wanted in partitions:
                replica = led.get(wanted.partition)
                if replica is None:
                    replica = reader.followed(name, wanted.partition, request, version)
                results.append(reader.read(reading, name, wanted, replica, results))
            reading.topics.append((name, results))
        if not request.topics:
            reading.must_answer = True
        return reading

    def encode(self, reading: Reading) -> Reply:
        """Return every partition's result; open the session if the request asks for one."""
        session_id = self._open_session(reading) if self._opens_session else NO_SESSION
        return self.serving.encode(
            self, reading.topics, session_id=session_id, has_errors=reading.must_answer
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
        led_by = reader.led(has_ids=version >= fetch.TOPIC_ID_FROM)
        is_follower = request.replica_id >= 0
        for name, partitions in request.topics:
            led = led_by.get(name, NO_REPLICAS)
            for wanted in partitions:
                replica = led.get(wanted.partition)
                if replica is None:
                    replica = reader.followed(name, wanted.partition, request, version)
                if replica is not None:
                    waiters = replica.follower_waiters if is_follower else replica.waiters
                    waiters.add(poll)
                    self._waiters.append(waiters)

    def end_waiting(self, poll: ReplicaWaiter) -> None:
        """Remove ``poll`` from the waiters."""
        for waiters in self._waiters:
            waiters.discard(poll)


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
        """Read the partitions that may have news, and settle those that have none.

        One turn reads at most as many as one request may name.
        """
        session = self._session
        if not self.serving.can_serve():
            session.mark_all()  # No replica has notified the session.
        self.serving.note_rights(session)
        self._left_count = len(session.dirty)
        if is_new:
            self._new_count = self._left_count
        return self.read_on()

    def read_on(self) -> Reading:
        """Read the next partitions."""
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
        led_by = reader.led(has_ids=reading.has_ids)
        found: list[FetchResult] = []
        visited: list[SessionPartition] = []
        has_news = False
        is_follower = request.replica_id >= 0
        left_count = serving.sessions.records_max
        # A copy: noting a follower's position may mark other partitions.
        for partition in list(islice(session.dirty, count)):
            name, wanted = partition.topic, partition.wanted
            replica = led_by.get(name, NO_REPLICAS).get(wanted.partition)
            if replica is None:
                replica = reader.followed(name, wanted.partition, request, version)
            result = reader.read(reading, name, wanted, replica, found)
            partition_has_news = partition.has_news(result)
            if partition_has_news and is_follower and replica is not None and replica.is_diskless:
                reading.must_answer = True  # The high watermark is what it waits for.
            if result.records is not None:
                left_count -= 1
                if left_count == 0:
                    reading.bytes_left = 0  # The others are checked, but their records wait.
            # After the read: noting a follower's position wakes watchers, and may end the watch.
            if replica is not None:
                partition.watch(replica)
                if (
                    not partition_has_news
                    and not reading.is_owed(wanted)
                    and self._is_at_end(replica, partition, result)
                ):
                    session.settle(partition)
                    continue
            else:
                partition.unwatch()
            has_news = has_news or partition_has_news
            session.mark(partition)
            found.append(result)
            visited.append(partition)
        self._found, self._visited = found, visited
        if is_part:
            for partition in visited:
                session.move_back(partition)
        self._left_count -= count
        self._new_count = max(0, self._new_count - count)
        if self._left_count > 0:
            reading.has_more = not has_news
            reading.must_answer = reading.must_answer or has_news  # The next request reads on.
        if session.is_ended:
            reading.must_answer = True  # Appends would not notify this fetch.
        return reading

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
        topics: _Topics = []
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
            self, topics, session_id=session.session_id, has_errors=reading.must_answer
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


def terms_of(request: FetchRequest) -> tuple[int, bytes]:
    """Return the settings that hold for every partition of a session, named or not."""
    return request.isolation_level, request.rack


def _end_for_followers(replica: Replica) -> int:
    log = replica.log
    return log.high_watermark if replica.is_diskless else log.log_end_offset
