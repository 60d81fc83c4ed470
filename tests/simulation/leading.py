"""How a simulated leader serves its followers' fetches: the node's own handler, with its sessions.

Simulated is what is around it: the event loop's timers, one partition, and a log in memory, of
which a record counts as one byte. Requests and answers stay values: the codec has its own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog_core.config import TopicConfig
from tidelog_core.errors import (
    ErrorCode,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StorageError,
    TidelogError,
)
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.model import TopicPartition
from tidelog_node.answers import PendingReply
from tidelog_node.disk.data_disk import DataDisk
from tidelog_node.handlers.fetch.fetch_sessions import FetchSessions
from tidelog_node.handlers.fetch.handler import FetchHandler
from tidelog_node.handlers.fetch.serving import FetchServing
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica, ReplicaWaiter
from tidelog_node.requests.routes import RequestContext
from tidelog_node.wire.fetch import FetchRequest
from tidelog_node.wire.fetch_answer import FetchResult

from tests.simulation.world import World
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import Alone, node_context
from tests.support.request_contexts import context_of
from tests.support.sim_log import Entry

if TYPE_CHECKING:
    from tests.simulation.node import SimNode

PARTITION = TopicPartition("t", 0)
TOPIC_ID = UUID(int=7)
FETCH_VERSION = 15  # names topics by their ids, and followers by their registration
SESSION_IDS = 4  # so few that another life of the leader gives the same ones


@dataclass(frozen=True, slots=True)
class FetchedAnswer:
    """The answer to one request."""

    error: ErrorCode
    session_id: int
    results: tuple[FetchResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Records:
    """What stands for a slice of a log file."""

    base_offset: int
    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        return len(self.entries)


class Waiters(dict[ReplicaWaiter, None]):
    """In the order in which they came, so that a run is the same every time."""

    def add(self, waiter: ReplicaWaiter) -> None:
        """Have it told from now on."""
        self[waiter] = None

    def discard(self, waiter: ReplicaWaiter) -> None:
        """Tell it no more."""
        self.pop(waiter, None)


class SimTimer:
    """A call that is to come."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do not make it."""
        self.is_cancelled = True


class SimLoop:
    """What a handler asks of an event loop, in the world's time and for one life of a node."""

    def __init__(self, world: World, node: SimNode) -> None:
        self._world = world
        self._node = node
        self._incarnation = node.incarnation

    def call_soon(self, callback: Callable[..., None], *args: Any) -> SimTimer:
        """Call back after all that is due now."""
        return self.call_later(0.0, callback, *args)

    def time(self) -> float:
        """Return the world's time, in seconds."""
        return self._world.now_ms / 1000

    def call_at(self, when_s: float, callback: Callable[..., None], *args: Any) -> SimTimer:
        """Call back at that time, unless the process has ended by then."""
        return self.call_later(max(0.0, when_s - self.time()), callback, *args)

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> SimTimer:
        """Call back later, unless the process has ended by then."""
        timer = SimTimer()
        self._world.after(delay_s * 1000, self._node.deliver, self._call, (timer, callback, args))
        return timer

    def _call(self, timer: SimTimer, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not timer.is_cancelled and self._node.incarnation == self._incarnation:
            callback(*args)


class ServedLog:
    """A node's log as fetches read it, whichever one the node has just now."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.on_moved: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node.log, name)

    @property
    def last_stable_offset(self) -> int:
        return self._node.log.high_watermark

    @property
    def is_offline(self) -> bool:
        return self._node.is_log_broken

    def check_online(self) -> None:
        """Raise where the log is broken."""
        if self.is_offline:
            raise StorageError("the log is offline")

    def read(
        self, offset: int, *, max_bytes: int, up_to: int, min_one_batch: bool
    ) -> SimpleNamespace:
        """Return records as ``LocalLog.read`` does."""
        self.check_online()
        log = self._node.log
        if not log.local_log_start_offset <= offset <= log.log_end_offset:
            start, end = log.local_log_start_offset, log.log_end_offset
            raise OffsetOutOfRange(PARTITION, offset, start=start, end=end)
        entries = tuple(log.read(offset, up_to, max(max_bytes, int(min_one_batch))))
        return SimpleNamespace(
            slice=Records(offset, entries) if entries else None,
            high_watermark=log.high_watermark,
            last_stable_offset=log.high_watermark,
            log_start_offset=log.log_start_offset,
        )


class SimRole:
    """Ties a replica to what its node knows as the leader."""

    def __init__(self, node: SimNode) -> None:
        self._node = node

    @property
    def leader(self) -> Any:
        return self._node.state.leader

    def require_leader(self) -> Any:
        """Return the leader's state. Raises ``NotLeaderOrFollower`` where it may not answer."""
        leader = self._node.state.leader
        if leader is None or not leader.is_serving:
            raise NotLeaderOrFollower("the partition is changing its leader")
        return leader

    def on_fetch(self, _: Any, follower_id: int, fetch_offset: int, **more: Any) -> None:
        """Note what a follower has."""
        self.require_leader().on_fetch(follower_id, fetch_offset, now_ms=self._node.now(), **more)
        self._node.after_change()


class SimReplicas:
    """What a fetch handler asks of ``ReplicaManager``."""

    def __init__(self, node: SimNode, replica: Replica) -> None:
        self._node = node
        self._led = {TOPIC_ID.bytes: {PARTITION.partition: replica}}
        self._replica = replica
        self.leaders = self
        self.clock_ms = node.now

    @property
    def led_by_id(self) -> Mapping[bytes, Mapping[int, Replica]]:
        leader = self._node.state.leader
        if leader is None or not self._node.is_ready:
            return {}
        self._replica.is_leader, self._replica.leader_epoch = True, leader.leader_epoch
        return self._led

    def refusal(self, *_: object, **__: object) -> TidelogError:
        """Return why a partition is not served here."""
        return NotLeaderOrFollower("another broker leads")

    def replica_epoch(self, broker_id: int) -> int | None:
        """Return the version of a broker's registration, as this node knows it."""
        broker = self._node.brokers.get(broker_id)
        return None if broker is None else broker.version


class SimServing(FetchServing):
    """Answers with values."""

    def encode(self, context: Any, topics: Any, *, session_id: int, has_errors: bool) -> Any:
        results = tuple(result for _, found in topics for result in found)
        return FetchedAnswer(ErrorCode.none, session_id, results)

    def refuse(self, context: RequestContext, error_code: int, *, session_id: int = 0) -> Any:
        return FetchedAnswer(ErrorCode(error_code), session_id)


class FetchSide:
    """Serves fetches of one life of a node."""

    def __init__(
        self,
        node: SimNode,
        *,
        world: World,
        random: Random,
        slots_max: int,
        handler: type[FetchHandler],
        sessions: type[FetchSessions],
    ) -> None:
        self._random = random
        self.replica = Replica(
            PARTITION,
            TOPIC_ID,
            config=TopicConfig(),
            log_start_offset=0,
            open_log=lambda _: ServedLog(node),  # type: ignore[arg-type,return-value]
            changed=set(),
            troubled=set(),
            disk=DataDisk(),
            on_trouble=lambda _: None,
            on_offline=lambda _: None,
            on_exchanged=lambda _: None,
        )
        self.replica.role = SimRole(node)  # type: ignore[assignment]
        self.replica.follower_waiters = Waiters()  # type: ignore[assignment]
        self.replica.open()
        self.sessions = sessions(
            slots_max=slots_max,
            partitions_max=1_000,
            session_partitions_max=1_000,
            draw=lambda _: random.choice((0, 0, 0, *range(SESSION_IDS))),
        )

        def make_serving(context: NodeContext, **given: Any) -> FetchServing:
            serving = SimServing(context, **given)
            serving.sessions = self.sessions
            return serving

        store = MemoryMetadataStore()  # nothing of a fetch asks it
        self._handler = handler(
            node_context(store, ClusterView(store), membership=Alone(can_serve=node.may_act)),
            replicas=SimReplicas(node, self.replica),  # type: ignore[arg-type]
            loop=SimLoop(world, node),  # type: ignore[arg-type]
            make_serving=make_serving,
        )

    def serve(self, request: FetchRequest, answer: Callable[[FetchedAnswer], None]) -> None:
        """Answer the request, now or later."""
        reply: Any = self._handler.handle(
            request, context_of(FETCH_VERSION, node_id=request.replica_id)
        )
        if not isinstance(reply, PendingReply):
            answer(reply)
            return

        def on_settled() -> None:
            if reply.problem is not None:
                raise reply.problem
            answer(reply.reply)  # type: ignore[arg-type]

        reply.on_settled = on_settled

    def on_append(self) -> None:
        """Tell the followers that wait of a record."""
        for waiter in tuple(self.replica.follower_waiters):
            waiter.on_append(1)

    def evict(self) -> None:
        """End some of the sessions, as where they are too many."""
        for session_id in range(1, SESSION_IDS + 1):
            session = self.sessions.find(session_id)
            if session is not None and self._random.random() < 0.7:
                self.sessions.close(session)
