"""Fetch: read what there is, wait for what is missing, never poll.

A request that finds enough is answered from the call itself. One that does not becomes
a long poll: it counts the bytes that are appended to its partitions, and reads again when there
are enough or its time is up. Offsets that this node has evicted are read through the tier, all of a
request's at once, in a task of their own, so that the loop serves everyone else meanwhile. Logs
that nobody has used since the node has started are opened on another thread first.

A full request names every partition and is read by what it names (``FullFetch``). It may open a
session, whose requests name what changes: ``SessionFetch`` looks at the partitions with news
alone (``fetch_sessions``). A request is of a session from its arrival on; where the session has
gone on before it is answered, it is answered with that (INVALID_FETCH_SESSION_EPOCH).

Source: KIP-74 (size limits), KIP-227 (sessions).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any

from tidelog_core.config import NodeConfig
from tidelog_core.errors import ErrorCode
from tidelog_core.replication.follower_progress import FollowerContact

from tidelog_node.dispatch import HotRoute
from tidelog_node.fetch_sessions import (
    FetchSession,
    FetchSessions,
    SessionPartition,
    may_keep,
)
from tidelog_node.handlers.fetch_reading import (
    NO_REPLICAS,
    READ_COMMITTED,
    ClosestReplica,
    PartitionReader,
    Reading,
)
from tidelog_node.owed_reply import OwedReply, Reply
from tidelog_node.replicas import AppendWaiter, Replica, ReplicaManager
from tidelog_node.tiered_reads import TierReader, read_all
from tidelog_node.wire import fetch
from tidelog_node.wire.fetch import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchRequest,
    FetchResult,
    encode_fetch,
    parse_fetch,
)
from tidelog_node.wire.produce import Endpoint

LEADERS_FROM = 16
MAX_WAIT_MS_MAX = 2**31 - 1
_LEADER_ERRORS = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)

_Topics = list[tuple[bytes, list[FetchResult]]]


class FetchHandler:
    """Serves Fetch on the partitions that this node leads."""

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        node_config: Callable[[], NodeConfig],
        tier: TierReader | None = None,
        can_serve: Callable[[], bool] = lambda: True,
        closest: ClosestReplica | None = None,
    ) -> None:
        """``can_serve`` says whether this node may answer at this moment."""
        self.can_serve = can_serve
        self._loop = asyncio.get_running_loop()
        self._replicas = replicas
        self._node_config = node_config
        self._tier = tier
        self.reader = PartitionReader(replicas=replicas, tier=tier, closest=closest)
        config = node_config()
        self.sessions = FetchSessions(
            slots_max=config.max_incremental_fetch_session_cache_slots,
            partitions_max=config.max_incremental_fetch_session_cache_partitions,
            session_partitions_max=config.socket_request_max_partitions,
        )
        self._polls: set[_LongPoll] = set()
        self._tasks: set[asyncio.Task[Reply]] = set()

    def hot_route(self) -> HotRoute:
        """Return the route."""
        return HotRoute(
            api_key=fetch.API_KEY,
            min_version=fetch.VERSION_MIN,
            max_version=fetch.VERSION_MAX,
            flexible_from=fetch.FLEXIBLE_FROM,
            parse=parse_fetch,
            handle=self.handle,
            advertised_min_version=fetch.VERSION_MIN,
            names_replica=True,
            weigh=self.weigh,
        )

    async def close(self) -> None:
        """Answer every long poll with what there is; give up the reads from the tier."""
        for poll in tuple(self._polls):
            poll.expire()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def now_ms(self) -> float:
        """Return the time by which followers are late."""
        return self._replicas.clock_ms()

    def is_follower(self, request: FetchRequest) -> bool:
        """Return whether a broker asks that is registered with this replica epoch.

        A later epoch counts too: the image here may lag behind the registration.
        """
        registered = self._replicas.leaders.replica_epoch(request.replica_id)
        return registered is not None and request.replica_epoch >= registered

    def weigh(self, request: FetchRequest) -> int:
        """Return how many partitions and topics the request makes the node look at."""
        session = None
        if request.session_epoch > 0:
            session = self.sessions.find(request.session_id)
        if session is None:
            return request.element_count
        if session.terms != _terms_of(request) or not self.can_serve():
            return request.element_count + len(session.partitions)
        return request.element_count + len(session.dirty)

    def handle(
        self, request: FetchRequest, version: int, correlation_id: int
    ) -> Reply | OwedReply | asyncio.Future[Reply]:
        """Return the answer, or what will have it."""
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._close_session(request)
            served: ServedFetch = FullFetch(
                self, request, version, correlation_id, opens_session=epoch == INITIAL_EPOCH
            )
        else:
            session = self._session_of(request, version)
            if not isinstance(session, FetchSession):
                return encode_fetch(version, correlation_id, (), error_code=session)
            if session.is_ended:  # It had nothing left.
                served = FullFetch(self, request, version, correlation_id, opens_session=False)
            else:
                served = SessionFetch(self, request, version, correlation_id, session)
        unopened = self._unopened(request, version)
        if unopened:
            return self._start(self._answer_opened(unopened, served))
        return self._answer(served)

    # -- sessions

    def _session_of(self, request: FetchRequest, version: int) -> FetchSession | int:
        """Return the session as its next request makes it, or the error that it meets.

        A session that is left without partitions is ended.
        """
        session = self.sessions.find(request.session_id)
        if session is None or session.replica_id != request.replica_id:
            return ErrorCode.fetch_session_id_not_found
        error_code = self._refusal(session, request, version)
        if error_code:
            return error_code
        before = session.poll
        if isinstance(before, _LongPoll):
            before.expire()  # Its client asks on.
        now_ms = self.now_ms()
        if session.contact is not None:
            session.contact.last_fetch_ms = now_ms
        self.sessions.touch(session, now_ms)
        if not may_keep(request.topics, request.rack) or not self.sessions.may_grow(
            session, request.topics, now_ms
        ):
            # The client asks for another, does not get it, and names everything.
            self.sessions.close(session)
            return ErrorCode.fetch_session_id_not_found
        session.add(request.topics)
        if request.forgotten:
            self._end_contacts(session, request)
            session.forget(request.forgotten)
        if not session.partitions:
            self.sessions.close(session)
            return session
        terms = _terms_of(request)
        if session.terms != terms:
            session.terms = terms
            session.mark_all()
        if len(session.partitions) != session.size:
            self.sessions.touch(session, now_ms)
        session.advance()
        return session

    def _refusal(self, session: FetchSession, request: FetchRequest, version: int) -> int:
        """Return the error that the session's owner gets for the request, 0 for none."""
        if session.next_epoch != request.session_epoch:
            return ErrorCode.invalid_fetch_session_epoch
        if session.uses_ids != (version >= fetch.TOPIC_ID_FROM):
            return ErrorCode.fetch_session_topic_id_error
        if session.replica_epoch != request.replica_epoch:
            # What it told before it registered again counts for nothing (KIP-903).
            self.sessions.close(session)
            return ErrorCode.fetch_session_id_not_found
        return 0

    def _end_contacts(self, session: FetchSession, request: FetchRequest) -> None:
        if session.contact is None:
            return
        led_by = self.reader.led(has_ids=session.uses_ids)
        for name, indexes in request.forgotten:
            for index in indexes:
                replica = led_by.get(name, NO_REPLICAS).get(index)
                leader = None if replica is None else replica.leader
                if leader is not None:
                    leader.end_contact(session.replica_id, session.contact)

    def _close_session(self, request: FetchRequest) -> None:
        session = self.sessions.find(request.session_id)
        if session is not None and session.replica_id == request.replica_id:
            self.sessions.close(session)

    # -- answering

    def _unopened(self, request: FetchRequest, version: int) -> list[Replica]:
        """Return the replicas that a consumer names and whose logs are not open."""
        if request.replica_id >= 0:
            return []  # What has other replicas is open.
        led_by = self.reader.led(has_ids=version >= fetch.TOPIC_ID_FROM)
        return [
            replica
            for name, partitions in request.topics
            if (led := led_by.get(name)) is not None
            for wanted in partitions
            if (replica := led.get(wanted.partition)) is not None and replica.opened_log is None
        ]

    async def _answer_opened(self, unopened: list[Replica], served: ServedFetch) -> Reply:
        """Open logs on another thread, since it takes a dozen small reads each; then answer."""
        await self._replicas.open_logs(unopened)
        answer = self._answer(served)
        return await answer if isinstance(answer, OwedReply | asyncio.Future) else answer

    def _start(self, work: Coroutine[Any, Any, Reply]) -> asyncio.Task[Reply]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _answer(self, served: ServedFetch) -> Reply | OwedReply | asyncio.Future[Reply]:
        overtaken = served.overtaken()
        if overtaken is not None:
            return overtaken  # The wake-ups of its session are the later request's.
        reading = served.read(is_new=True)
        if reading.tier_reads:
            return self._start(self._read_tier(reading, served))
        request = served.request
        if (
            reading.size_bytes >= request.min_bytes
            or request.max_wait_ms <= 0
            or reading.must_answer
        ):
            return served.reply(reading)
        poll = _LongPoll(self, served, reading.size_bytes)
        self._polls.add(poll)
        if reading.has_more:
            poll.look_soon()
        return poll

    async def _read_tier(self, reading: Reading, served: ServedFetch) -> Reply:
        """Fill in what the tier holds, all partitions at once, and answer."""
        assert self._tier is not None
        is_committed_only = served.request.isolation_level == READ_COMMITTED
        reads = [read.to_tier(is_committed_only=is_committed_only) for read in reading.tier_reads]
        found = await read_all(self._tier, reads)
        for read, records in zip(reading.tier_reads, found, strict=True):
            read.fill_in(records, is_committed_only=is_committed_only)
        return served.reply(reading)

    def begin(
        self,
        request: FetchRequest,
        version: int,
        *,
        is_new: bool,
        contact: FollowerContact | None,
    ) -> Reading:
        """Return what a pass over partitions begins with."""
        return Reading(
            request,
            version >= fetch.TOPIC_ID_FROM,
            self.can_serve(),
            is_new,
            min(request.max_bytes, self._node_config().fetch_max_bytes),
            contact,
        )

    def encode(
        self,
        served: ServedFetch,
        topics: _Topics,
        *,
        session_id: int,
        has_errors: bool,
    ) -> Reply:
        """Return the response, with the leaders of the partitions that others lead."""
        version, correlation_id = served.version, served.correlation_id
        if not has_errors or version < LEADERS_FROM:
            return encode_fetch(version, correlation_id, topics, session_id=session_id)
        leaders = self._replicas.leaders
        endpoints: dict[int, Endpoint] = {}
        hinted: _Topics = []
        for name, results in topics:
            found = []
            for result in results:
                leader = None
                if result.error_code in _LEADER_ERRORS:
                    leader = leaders.find(name, result.partition, is_id=True)
                if leader is None:
                    found.append(result)
                    continue
                if leader.endpoint is not None:
                    endpoints[leader.leader_id] = leader.endpoint
                found.append(
                    result._replace(leader_id=leader.leader_id, leader_epoch=leader.leader_epoch)
                )
            hinted.append((name, found))
        return encode_fetch(
            version,
            correlation_id,
            hinted,
            session_id=session_id,
            endpoints=list(endpoints.values()),
        )

    def forget(self, poll: _LongPoll) -> None:
        """Note that a long poll is over."""
        self._polls.discard(poll)


class ServedFetch:
    """One request that is being served."""

    def __init__(
        self, handler: FetchHandler, request: FetchRequest, version: int, correlation_id: int
    ) -> None:
        self.handler = handler
        self.request = request
        self.version = version
        self.correlation_id = correlation_id

    def overtaken(self) -> Reply | None:
        """Return the answer if a later request of the same session has come."""
        return None

    def read(self, *, is_new: bool) -> Reading:
        """Read, within the request's limits, from the local logs."""
        raise NotImplementedError

    def read_on(self) -> Reading:
        """Read from the next partitions, where the last reading has said ``has_more``."""
        raise NotImplementedError

    def reply(self, reading: Reading) -> Reply:
        """Return the answer with what was found."""
        raise NotImplementedError

    def begin_waiting(self, poll: AppendWaiter) -> None:
        """Have ``poll`` told of what is appended."""
        raise NotImplementedError

    def end_waiting(self, poll: AppendWaiter) -> None:
        """Undo ``begin_waiting``."""
        raise NotImplementedError


class FullFetch(ServedFetch):
    """A request that names all of its partitions."""

    def __init__(
        self,
        handler: FetchHandler,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        *,
        opens_session: bool,
    ) -> None:
        super().__init__(handler, request, version, correlation_id)
        self._opens_session = opens_session
        self._contact: FollowerContact | None = None
        if opens_session and request.replica_id >= 0:
            self._contact = FollowerContact(handler.now_ms())
        self._waiters: list[set[AppendWaiter]] = []

    def read(self, *, is_new: bool) -> Reading:
        """Read every partition of the request."""
        handler, request, version = self.handler, self.request, self.version
        reader = handler.reader
        reading = handler.begin(request, version, is_new=is_new, contact=self._contact)
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

    def reply(self, reading: Reading) -> Reply:
        """Return every partition's result; open the session if one is wanted."""
        session_id = self._open_session(reading) if self._opens_session else NO_SESSION
        return self.handler.encode(
            self, reading.topics, session_id=session_id, has_errors=reading.must_answer
        )

    def _open_session(self, reading: Reading) -> int:
        request, sessions, now_ms = self.request, self.handler.sessions, self.handler.now_ms()
        if not may_keep(request.topics, request.rack):
            return NO_SESSION
        session = sessions.open(
            sum(len(partitions) for _, partitions in request.topics),
            replica_id=request.replica_id,
            replica_epoch=request.replica_epoch,
            is_follower=self.handler.is_follower(request),
            uses_ids=reading.has_ids,
            contact=self._contact,
            now_ms=now_ms,
        )
        if session is None:
            return NO_SESSION
        session.terms = _terms_of(request)
        session.add(request.topics)
        for name, results in reading.topics:
            for result in results:
                session.partitions[name, result.partition].tell(result)
        sessions.touch(session, now_ms)
        return session.session_id

    def begin_waiting(self, poll: AppendWaiter) -> None:
        """Have ``poll`` wait with every partition's replica."""
        reader, request, version = self.handler.reader, self.request, self.version
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

    def end_waiting(self, poll: AppendWaiter) -> None:
        """Have it wait no more."""
        for waiters in self._waiters:
            waiters.discard(poll)


class SessionFetch(ServedFetch):
    """A request of a session, which has taken in what it names."""

    def __init__(
        self,
        handler: FetchHandler,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        session: FetchSession,
    ) -> None:
        super().__init__(handler, request, version, correlation_id)
        self._session = session
        self._next_epoch = session.next_epoch  # while no other request has come
        # How many of the dirty partitions, from the first on, the request has not looked at, and
        # how many it has not looked at since it was woken.
        self._new_count = 0
        self._left_count = 0
        self._found: list[FetchResult] = []  # by the last look
        self._visited: list[SessionPartition] = []  # of which they are

    def overtaken(self) -> Reply | None:
        """Return the error that says that the session has gone on."""
        session = self._session
        if session.next_epoch == self._next_epoch:
            return None
        return encode_fetch(
            self.version,
            self.correlation_id,
            (),
            error_code=ErrorCode.invalid_fetch_session_epoch,
            session_id=session.session_id,
        )

    def read(self, *, is_new: bool) -> Reading:
        """Look at the partitions that may have news, and settle those that have none.

        So many as a request may name in one turn of the loop.
        """
        session = self._session
        if not self.handler.can_serve():
            session.mark_all()  # No replica has told.
        self._left_count = len(session.dirty)
        if is_new:
            self._new_count = self._left_count
        return self.read_on()

    def read_on(self) -> Reading:
        """Look at the next ones."""
        handler, request, version = self.handler, self.request, self.version
        session, reader = self._session, handler.reader
        # New ones are not mixed with others: only they are a fetch of the follower to be noted.
        count = min(self._new_count or self._left_count, handler.sessions.looks_max)
        is_part = count < len(session.dirty)
        is_new = self._new_count > 0
        reading = handler.begin(request, version, is_new=is_new, contact=session.contact)
        led_by = reader.led(has_ids=reading.has_ids)
        found: list[FetchResult] = []
        visited: list[SessionPartition] = []
        has_news = False
        # A list, for to note a follower's fetch may mark others.
        for partition in list(islice(session.dirty, count)):
            name, wanted = partition.topic, partition.wanted
            replica = led_by.get(name, NO_REPLICAS).get(wanted.partition)
            if replica is None:
                replica = reader.followed(name, wanted.partition, request, version)
            result = reader.read(reading, name, wanted, replica, found)
            partition_has_news = partition.has_news(result)
            # Afterwards: noting a follower's fetch tells those who watch, and may end that.
            if replica is not None:
                partition.watch(replica)
                if (
                    not partition_has_news
                    and not reading.is_of_tier(wanted)
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
            reading.must_answer = reading.must_answer or has_news  # The rest is looked at next.
        if session.is_ended:
            reading.must_answer = True  # Nothing tells of appends.
        return reading

    def _is_at_end(
        self, replica: Replica, partition: SessionPartition, result: FetchResult
    ) -> bool:
        """Whether nothing is left that this client may see, and its replica counts as in sync."""
        offset, request = partition.wanted.offset, self.request
        if request.replica_id >= 0:
            leader = replica.leader
            return (
                leader is not None
                and request.replica_id in leader.partition.isr
                and offset >= replica.log.log_end_offset
            )
        if request.isolation_level == READ_COMMITTED:
            return offset >= result.last_stable_offset
        return offset >= result.high_watermark

    def reply(self, reading: Reading) -> Reply:
        """Return the results with news, and note that the client knows them."""
        session, handler = self._session, self.handler
        overtaken = self.overtaken()
        if overtaken is not None:
            return overtaken
        topics: _Topics = []
        topic = b""
        results: list[FetchResult] = []
        for partition, result in zip(self._visited, self._found, strict=True):
            if not partition.has_news(result):
                continue
            partition.tell(result)
            if result.records is not None:
                session.move_back(partition)
            if not topics or partition.topic != topic:
                topic, results = partition.topic, []
                topics.append((topic, results))
            results.append(result)
        return handler.encode(
            self, topics, session_id=session.session_id, has_errors=reading.must_answer
        )

    def begin_waiting(self, poll: AppendWaiter) -> None:
        """Have ``poll`` told of what happens to any partition: all watch their replicas."""
        self._session.poll = poll

    def end_waiting(self, poll: AppendWaiter) -> None:
        """Have it told no more."""
        if self._session.poll is poll:
            self._session.poll = None


class _LongPoll(OwedReply):
    """A fetch that waits for bytes or for its time to be up."""

    __slots__ = (
        "_handler",
        "_is_due",
        "_is_over",
        "_is_woken",
        "_loop",
        "_missing_bytes",
        "_served",
        "_timer",
    )

    def __init__(self, handler: FetchHandler, served: ServedFetch, size_bytes: int) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._handler = handler
        self._served = served
        self._missing_bytes = served.request.min_bytes - size_bytes
        self._is_due = False  # a look at the logs is already on its way
        self._is_woken = False  # by appends: that look begins with the first partition again
        self._is_over = False  # answered, or nobody waits any more
        served.begin_waiting(self)
        self._timer = self._loop.call_later(served.request.max_wait_ms / 1000, self.expire)

    def on_append(self, size_bytes: int) -> None:
        """Note that so many more bytes can be read."""
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self._is_woken = True
            self.look_soon()

    def look_soon(self) -> None:
        """Look at the logs later in this turn of the loop, or in the next one.

        So one look finds all of a burst, and a look at many partitions keeps nobody waiting.
        """
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._look, False)

    def expire(self) -> None:
        """Answer with what there is: the client's time is up, or the node leaves."""
        self._look(True)

    def _look(self, is_last: bool) -> None:
        self._is_due = False
        if self._is_over:
            return
        try:
            reply = self._answer(is_last)
        except Exception as problem:
            # Nobody above is concerned: this may be called for another connection's request.
            self.give_up()
            self.fail(problem)
            return
        if reply is not None:
            self.give_up()
            self.settle(reply)

    def _answer(self, is_last: bool) -> Reply | None:
        """Return the answer, ``None`` if there is not enough for one yet."""
        served, is_woken = self._served, self._is_woken
        self._is_woken = False
        reading = served.read(is_new=False) if is_woken or is_last else served.read_on()
        missing_bytes = served.request.min_bytes - reading.size_bytes
        if missing_bytes <= 0 or is_last or reading.must_answer or reading.tier_reads:
            # What was evicted while we waited comes back empty here, and is asked for again.
            return served.reply(reading)
        # What was appended between two looks of one round stays counted.
        self._missing_bytes = missing_bytes if is_woken else min(missing_bytes, self._missing_bytes)
        if reading.has_more:
            self.look_soon()
        return None

    def give_up(self) -> None:
        """Wait no more."""
        self._is_over = True
        self._timer.cancel()
        self._served.end_waiting(self)
        self._handler.forget(self)


def _terms_of(request: FetchRequest) -> tuple[int, bytes]:
    """Return what holds for every partition of a session, named or not."""
    return request.isolation_level, request.rack
