"""What all Fetch requests of a node share: reader, sessions, limits, and the encoded answer.

Source: KIP-951 (leaders in the answer).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tidelog_core.errors import ErrorCode
from tidelog_core.fetch_epochs import NO_SESSION
from tidelog_core.replication.leader.follower_progress import FollowerContact

from tidelog_node.answers import Reply
from tidelog_node.authorization.access import Access
from tidelog_node.handlers.fetch.fetch_sessions import FetchSession, FetchSessions
from tidelog_node.handlers.fetch.reading import ClosestReplica, PartitionReader, Reading
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext
from tidelog_node.throttling.throttle import NO_LIMIT_BYTES, Throttle
from tidelog_node.wire import fetch
from tidelog_node.wire.fetch import FetchRequest
from tidelog_node.wire.fetch_answer import LEADERS_FROM, FetchResult, encode_fetch
from tidelog_node.wire.produce import Endpoint

if TYPE_CHECKING:
    from tidelog_node.audit.transfers import TransferRecorder

_LEADER_ERRORS = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)

Topics = list[tuple[bytes, list[FetchResult]]]


class FetchServing:
    """The shared means of serving requests: the reader, the sessions, and leaders' endpoints."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        closest: ClosestReplica | None,
        access: Access | None,
        throttle: Throttle | None,
        record: TransferRecorder | None,
    ) -> None:
        self.throttle = throttle
        self.counters = node.counters
        self.can_serve = node.membership.can_serve  # whether this node may answer now
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
        context: RequestContext,
        topics: Topics,
        *,
        session_id: int,
        has_errors: bool,
    ) -> Reply:
        """Return the response, with the leaders of partitions that other nodes lead."""
        version = context.api_version
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
