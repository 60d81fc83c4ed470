"""Fetch: reads the available records, and waits without polling if there are too few.

A request that finds enough is answered from the call itself. Otherwise it becomes a long poll: it
counts the bytes appended to its partitions, and reads again when there are enough or its time is
up. Evicted offsets are read through the tier, all of a request's at once, in a task of their own,
so that the loop serves other clients in the meantime. Logs that are not open since the start of the
node are opened on another thread first.

``ServedFetch`` reads and answers a request. A request belongs to a session from its arrival on:
here a session takes in the partitions that its request names. A full request that its connection
repeats is served from a kept list (``fetch_lists``).

Source: KIP-74 (size limits), KIP-227 (sessions).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tidelog_core.errors import ErrorCode
from tidelog_core.fetch_epochs import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION

from tidelog_node.answers import Answer, PendingReply, Reply, TaskReply
from tidelog_node.authorization.access import Access
from tidelog_node.handlers.fetch.fetch_lists import FetchLists, FullList, RecalledFetch
from tidelog_node.handlers.fetch.fetch_sessions import FetchSession, may_keep
from tidelog_node.handlers.fetch.full_fetch import FullFetch, terms_of
from tidelog_node.handlers.fetch.listed_fetch import ListedFetch
from tidelog_node.handlers.fetch.reading import READ_COMMITTED, ClosestReplica, Reading
from tidelog_node.handlers.fetch.served_fetch import ServedFetch
from tidelog_node.handlers.fetch.serving import FetchServing
from tidelog_node.handlers.fetch.session_fetch import SessionFetch
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import HotRoute, RequestContext
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.tier.remote_reads import wait_for_all
from tidelog_node.wire import fetch
from tidelog_node.wire.fetch import FetchRequest, FetchTopic, parse_fetch

if TYPE_CHECKING:
    from tidelog_node.audit.transfers import TransferRecorder

COMMITS_APART_SECONDS = 0.02  # of answers that tell a follower what a chain has committed


class FetchHandler:
    """Serves Fetch on the partitions that this node leads."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        closest: ClosestReplica | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        make_serving: Callable[..., FetchServing] = FetchServing,
        access: Access | None = None,
        throttle: Throttle | None = None,
        record: TransferRecorder | None = None,
    ) -> None:
        """``loop`` times the long polls; the default is the running one. ``make_serving`` makes
        the ``FetchServing``; one other than the node's may answer with values.
        Without ``access`` every client may read, without ``throttle`` at any rate. ``record``
        records who consumes what.
        """
        self._loop = loop or asyncio.get_running_loop()
        self._tracer = node.tracer
        self._replicas = replicas
        self.serving = make_serving(
            node,
            replicas=replicas,
            closest=closest,
            access=access,
            throttle=throttle,
            record=record,
        )
        self._reader = self.serving.reader
        self.sessions = self.serving.sessions
        self.lists = FetchLists(self.sessions)
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
            weigh=self.weigh,
            recall=self.lists.recall,
        )

    async def close(self) -> None:
        """Answer every long poll with the records found so far; cancel the reads from the tier."""
        for poll in tuple(self._polls):
            poll.expire()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def weigh(self, request: FetchRequest) -> int:
        """Return how many partitions and topics the node must check for the request."""
        if isinstance(request, RecalledFetch):
            listed = request.listed
            assert listed is not None
            return len(listed.dirty if self.serving.can_serve() else listed.listed)
        session = None
        if request.session_epoch > 0:
            session = self.sessions.find(request.session_id)
        if session is None:
            return request.element_count
        if session.terms != terms_of(request) or not self.serving.can_serve():
            return request.element_count + len(session.partitions)
        return request.element_count + len(session.dirty)

    def handle(self, request: FetchRequest, context: RequestContext) -> Answer:
        """Return the answer, or a reply that will have it."""
        serving, epoch, version = self.serving, request.session_epoch, context.api_version
        if 0 <= request.replica_id != context.session.node_id:
            return serving.refuse_follower(request, context)
        topics = request.topics
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._close_session(request)
            listed = self._list_of(request, context)
            if listed is not None:
                topics = [(partition.topic, [partition.wanted]) for partition in listed.dirty]
                served: ServedFetch = ListedFetch(serving, request, context, listed)
            else:
                served = FullFetch(serving, request, context, opens_session=epoch == INITIAL_EPOCH)
        else:
            session = self._session_of(request, version)
            if not isinstance(session, FetchSession):
                return serving.refuse(context, session)
            if session.is_ended:  # It has no partitions left.
                served = FullFetch(serving, request, context, opens_session=False)
            else:
                served = SessionFetch(serving, request, context, session)
        unopened = self._unopened(topics, request, version)
        if unopened:
            return self._start(self._answer_opened(unopened, served))
        return self._answer(served)

    # -- sessions and lists --

    def _list_of(self, request: FetchRequest, context: RequestContext) -> FullList | None:
        """Return the kept list that serves a request without a session, if there is one."""
        if request.session_epoch != FINAL_EPOCH or request.session_id != NO_SESSION:
            return None
        now_ms = self.serving.now_ms()
        if not isinstance(request, RecalledFetch):
            return self.lists.keep(request, context.api_version, context.session, now_ms)
        assert request.listed is not None
        self.sessions.touch(request.listed, now_ms)
        return request.listed

    def _session_of(self, request: FetchRequest, version: int) -> FetchSession | int:
        """Return the session with the request's changes, or the request's error.

        A session without partitions is ended.
        """
        session = self.sessions.find(request.session_id)
        if session is None or session.replica_id != request.replica_id:
            return ErrorCode.fetch_session_id_not_found
        error_code = self._refusal(session, request, version)
        if error_code:
            return error_code
        before = session.poll
        if isinstance(before, _LongPoll):
            before.expire()  # Its client has sent the next request.
        now_ms = self.serving.now_ms()
        if session.contact is not None:
            session.contact.last_fetch_ms = now_ms
        self.sessions.touch(session, now_ms)
        if not may_keep(request.topics, request.rack) or not self.sessions.may_grow(
            session, request.topics, now_ms
        ):
            # The client opens another session, is refused one, and sends full requests.
            self.sessions.close(session)
            return ErrorCode.fetch_session_id_not_found
        session.add(request.topics)
        if request.forgotten:
            self._end_contacts(session, request)
            session.forget(request.forgotten)
        if not session.partitions:
            self.sessions.close(session)
            return session
        terms = terms_of(request)
        if session.terms != terms:
            session.terms = terms
            session.mark_all()
        if len(session.partitions) != session.size:
            self.sessions.touch(session, now_ms)
        session.advance()
        return session

    def _refusal(self, session: FetchSession, request: FetchRequest, version: int) -> int:
        """Return the error for the request of the session's owner, 0 for none."""
        if session.next_epoch != request.session_epoch:
            return ErrorCode.invalid_fetch_session_epoch
        if session.uses_ids != (version >= fetch.TOPIC_ID_FROM):
            return ErrorCode.fetch_session_topic_id_error
        if session.replica_epoch != request.replica_epoch:
            # Positions reported before the broker registered again do not count (KIP-903).
            self.sessions.close(session)
            return ErrorCode.fetch_session_id_not_found
        return 0

    def _end_contacts(self, session: FetchSession, request: FetchRequest) -> None:
        if session.contact is None:
            return
        led_by = self._reader.led(has_ids=session.uses_ids)
        for name, indexes in request.forgotten:
            led = led_by.get(name, {})
            for index in indexes:
                replica = led.get(index)
                leader = None if replica is None else replica.leader
                if leader is not None:
                    leader.end_contact(session.replica_id, session.contact)

    def _close_session(self, request: FetchRequest) -> None:
        session = self.sessions.find(request.session_id)
        if session is not None and session.replica_id == request.replica_id:
            self.sessions.close(session)

    # -- answering --

    def _unopened(
        self, topics: list[FetchTopic], request: FetchRequest, version: int
    ) -> list[Replica]:
        """Return the replicas of a consumer's request whose logs are not open."""
        if request.replica_id >= 0:
            return []  # Logs with several replicas are open.
        led_by = self._reader.led(has_ids=version >= fetch.TOPIC_ID_FROM)
        return [
            replica
            for name, partitions in topics
            if (led := led_by.get(name)) is not None
            for wanted in partitions
            if (replica := led.get(wanted.partition)) is not None and replica.opened_log is None
        ]

    async def _answer_opened(self, unopened: list[Replica], served: ServedFetch) -> Reply:
        """Open logs on another thread, since each takes a dozen small reads; then answer."""
        await self._replicas.open_logs(unopened)
        answer = self._answer(served)
        return await answer if isinstance(answer, PendingReply) else answer

    def _start(self, work: Coroutine[Any, Any, Reply]) -> TaskReply:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return TaskReply(task)

    def _answer(self, served: ServedFetch) -> Answer:
        overtaken = served.overtaken()
        if overtaken is not None:
            return overtaken  # Its session's wake-ups belong to the later request.
        reading = served.read(is_new=True)
        if reading.pending:
            return self._start(self._read_remote(reading, served))
        request = served.request
        if (
            reading.ready_bytes >= served.min_bytes
            or request.max_wait_ms <= 0
            or reading.must_answer
        ):
            return served.reply(reading)
        poll = _LongPoll(self._loop, self._polls, served, reading.ready_bytes)
        if reading.has_more:
            poll.read_soon()
        return poll

    async def _read_remote(self, reading: Reading, served: ServedFetch) -> Reply:
        """Read the records that are not on this node's disk, all partitions at once, and answer."""
        began = self._loop.time()
        found = await wait_for_all([pending.read for pending in reading.pending], self._tracer)
        self.serving.counters.cold_reads.observe(self._loop.time() - began)
        is_committed_only = served.request.isolation_level == READ_COMMITTED
        for pending, read in zip(reading.pending, found, strict=True):
            # Again: the client may have lost its right during the read.
            refusal = self._reader.refusal(reading, pending.topic)
            code = pending.fill_in(refusal or read, is_committed_only=is_committed_only)
            if code:
                self.serving.counters.note_error(fetch.API_KEY, code)
        return served.reply(reading)


class _LongPoll(PendingReply):
    """A fetch that waits for bytes or for its time to be up."""

    __slots__ = (
        "_began",
        "_delayed",
        "_is_due",
        "_is_over",
        "_is_woken",
        "_loop",
        "_missing_bytes",
        "_polls",
        "_served",
        "_timer",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        polls: set[_LongPoll],
        served: ServedFetch,
        ready_bytes: int,
    ) -> None:
        """It is in ``polls`` while it waits."""
        super().__init__()
        self._loop = loop
        self._polls = polls
        polls.add(self)
        self._served = served
        self._began = loop.time()
        self._delayed: asyncio.TimerHandle | None = None  # a read that tells of commits
        self._missing_bytes = served.min_bytes - ready_bytes
        self._is_due = False  # a read of the logs is scheduled
        self._is_woken = False  # by appends: that read begins with the first partition again
        self._is_over = False  # answered or cancelled
        served.begin_waiting(self)
        self._timer = self._loop.call_later(served.request.max_wait_ms / 1000, self.expire)

    def on_append(self, size_bytes: int) -> None:
        """Count bytes that can now be read."""
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.wake()

    def on_change(self) -> None:
        """Continue to wait for records, even while the leader is in doubt: the next read checks it.

        The last read is at the end of the waiting time. A change of leader calls ``wake``.
        """

    def on_commit(self) -> None:
        """Schedule a read, but not before the follower has waited for a while.

        A folder makes an object every few milliseconds: one answer tells of several. Appends to
        other partitions do not wait for that.
        """
        self._is_woken = True
        due = self._began + COMMITS_APART_SECONDS
        if due <= self._loop.time():
            self.read_soon()
        elif self._delayed is None:
            self._delayed = self._loop.call_at(due, self.read_soon)

    def wake(self) -> None:
        """Schedule a read of the logs, from the first partition on."""
        self._is_woken = True
        self.read_soon()

    def read_soon(self) -> None:
        """Schedule a read of the logs for this turn of the loop or the next one.

        So one read finds all appends of a burst, and many partitions do not hold up other clients.
        """
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._read_and_answer, False)

    def expire(self) -> None:
        """Answer with the records found so far: the client's time is up, or the node shuts down."""
        self._read_and_answer(True)

    def _read_and_answer(self, is_last: bool) -> None:
        self._is_due = False
        if self._is_over:
            return
        timer = self._served.context.timer
        if timer is not None:
            timer.resume()
        try:
            reply = self._answer(is_last)
        except Exception as problem:
            # The caller must not see it: it may be serving another connection's request.
            self.give_up()
            self.fail(problem)
            return
        finally:
            if timer is not None:
                timer.pause()
        if reply is not None:
            self.give_up()
            self.settle(reply)

    def _answer(self, is_last: bool) -> Reply | None:
        """Return the answer, ``None`` if there are too few records yet."""
        served, is_woken = self._served, self._is_woken
        self._is_woken = False
        reading = served.read(is_new=False) if is_woken or is_last else served.read_on()
        missing_bytes = served.min_bytes - reading.ready_bytes
        if missing_bytes <= 0 or is_last or reading.must_answer or reading.pending:
            # Records evicted during the wait come back empty; the client asks again.
            return served.reply(reading)
        # Bytes appended between two reads of one round stay counted.
        self._missing_bytes = missing_bytes if is_woken else min(missing_bytes, self._missing_bytes)
        if reading.has_more:
            self.read_soon()
        return None

    def give_up(self) -> None:
        """Stop waiting."""
        self._is_over = True
        self._timer.cancel()
        if self._delayed is not None:
            self._delayed.cancel()
        self._served.end_waiting(self)
        self._polls.discard(self)
