"""ShareFetch: takes a member's acknowledgements, then gives it unacquired records (KIP-932).

The session is opened, found or closed at once; then come the acknowledgements, then the records
(``share.delivery``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog_core.errors import GroupAuthorizationFailed, InvalidRequest, TidelogError
from tidelog_core.security.acl import AclOperation, ResourceType

from tidelog_node.answers import Answer, Reply, TaskReply
from tidelog_node.authorization.access import Access
from tidelog_node.groups.share.delivery import RefusalOf, ShareDelivery
from tidelog_node.groups.share.service import ShareService
from tidelog_node.groups.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import HotRoute, RequestContext
from tidelog_node.requests.session import Session
from tidelog_node.throttling.counted_work import counted
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.wire import share_fetch
from tidelog_node.wire.share_fetch import (
    PartitionKey,
    ShareFetchRequest,
    ShareFetchResult,
    encode_share_fetch,
    parse_share_fetch,
)

if TYPE_CHECKING:
    from tidelog_node.audit.transfers import TransferRecorder

SHUTDOWN_SECONDS = 1.0  # for waiting requests to be answered


class ShareFetchHandler:
    """Serves ShareFetch on the partitions that this node leads."""

    def __init__(
        self,
        node: NodeContext,
        *,
        service: ShareService,
        access: Access | None,
        throttle: Throttle,
        record: TransferRecorder | None,
    ) -> None:
        """Without ``access`` every client may do everything. ``record`` records who consumes."""
        self._access = access
        self._record = record
        self._throttle = throttle
        self._counters = node.counters
        self._service = service
        self._delivery = ShareDelivery(service=service, node_config=node.config)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Reply]] = set()

    def hot_route(self) -> HotRoute:
        """Return the route."""
        return HotRoute(
            api_key=share_fetch.API_KEY,
            min_version=share_fetch.VERSION_MIN,
            max_version=share_fetch.VERSION_MAX,
            flexible_from=share_fetch.FLEXIBLE_FROM,
            parse=parse_share_fetch,
            handle=self.handle,
            advertised_min_version=share_fetch.VERSION_MIN,
        )

    async def close(self) -> None:
        """Answer waiting requests with the records found so far; cancel the reads from the tier."""
        self._delivery.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SHUTDOWN_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def handle(self, request: ShareFetchRequest, context: RequestContext) -> Answer:
        """Return the answer, or a reply that will have it."""
        context.session.is_sharing = True
        try:
            self._require_member(request, context.session)
            session = self._session(request, context.session)
        except TidelogError as error:
            self._counters.note_error(share_fetch.API_KEY, error.code)
            return encode_share_fetch(
                context.correlation_id,
                {},
                error_code=error.code,
                error_message=str(error),
                throttle_ms=self._count(context, {}),
            )
        answering = self._answer(session, request, context)
        if context.timer is not None:
            answering = counted(answering, context.timer)
        task = self._loop.create_task(answering)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return TaskReply(task)

    def _require_member(self, request: ShareFetchRequest, client: Session) -> None:
        """Raise ``GroupAuthorizationFailed`` unless the client may read for the group."""
        access, group_id = self._access, request.group_id
        if access is None or access.may(client, AclOperation.READ, ResourceType.GROUP, group_id):
            return
        raise GroupAuthorizationFailed(f"the client may not read for the group {group_id}")

    def _refusal_of(self, client: Session) -> RefusalOf:
        access = self._access
        if access is None:
            return lambda _: None
        return lambda key: access.read_refusal(client, key[0], is_id=True)

    def _session(self, request: ShareFetchRequest, client: Session) -> ShareSession:
        """Return the session that the request opens, continues or closes."""
        service = self._service
        group_id, member_id = request.group_id, request.member_id
        if request.session_epoch == INITIAL_EPOCH:
            if any(request.partitions.values()):
                raise InvalidRequest("the first request of a share session acknowledges nothing")
            session = service.open_session(group_id, member_id, request.partitions, client)
            client.on_close(service.end_connection)
            return session
        if request.renews and (request.max_bytes or request.min_bytes or request.records_max):
            raise InvalidRequest("a request that renews acquisitions fetches nothing")
        if request.session_epoch == FINAL_EPOCH:
            return service.follow_session(group_id, member_id, FINAL_EPOCH)
        return service.follow_session(
            group_id,
            member_id,
            request.session_epoch,
            added=request.partitions,
            forgotten=request.forgotten,
        )

    async def _answer(
        self, session: ShareSession, request: ShareFetchRequest, context: RequestContext
    ) -> Reply:
        refusal_of = self._refusal_of(context.session)
        refused = {
            key: refusal
            for key, acknowledged in request.partitions.items()
            if acknowledged and (refusal := refusal_of(key)) is not None
        }
        outcome = await self._service.acknowledge(
            session,
            {
                key: acknowledged
                for key, acknowledged in request.partitions.items()
                if key not in refused
            },
            may_renew=request.renews,
        )
        outcome |= refused
        results: dict[PartitionKey, ShareFetchResult] = {}
        if request.session_epoch == FINAL_EPOCH:
            await self._service.end_session(session)
        elif not request.renews:
            bounded = self._bounded(request, context.session)
            results = await self._delivery.deliver(session, bounded, refusal_of)
            self._note_consumed(context.session, results)
        if request.session_epoch == INITIAL_EPOCH:
            results = {key: results.get(key, ShareFetchResult()) for key in session.partitions}
        for key, error in outcome.items():
            result = results.get(key, ShareFetchResult())
            if error is not None:
                result = self._delivery.with_leader(key, result, error)._replace(
                    acknowledge_error_code=error.code, acknowledge_error_message=str(error)
                )
            results[key] = result
        leaders = self._service.replicas.leaders
        leader_ids = {result.leader_id for result in results.values()} - {-1}
        settings = self._service.partitions.settings(session.group_id)
        return encode_share_fetch(
            context.correlation_id,
            results,
            lock_ms=settings.share_record_lock_duration_ms,
            endpoints=leaders.endpoints(leader_ids, context.session.listener),
            throttle_ms=self._count(context, results),
        )

    def _note_consumed(
        self, client: Session, results: Mapping[PartitionKey, ShareFetchResult]
    ) -> None:
        led_by = self._service.replicas.led_by_id
        for (topic, partition), result in results.items():
            replica = led_by.get(topic, {}).get(partition)
            if result.records is not None and replica is not None:
                # Only acquired records are for the client; others may be in the same batches.
                count = sum(one.last_offset - one.first_offset + 1 for one in result.acquired)
                replica.traffic.note_fetched(result.records.size_bytes, count)
            if result.error_code:
                self._counters.note_error(share_fetch.API_KEY, result.error_code)
        if self._record is not None:
            for topic in {key[0] for key, result in results.items() if result.records is not None}:
                self._record.note(client, topic, is_id=True)

    def _bounded(self, request: ShareFetchRequest, client: Session) -> ShareFetchRequest:
        """Return the request for no more bytes than the client's quota allows at once."""
        if not self._throttle.is_active:
            return request
        bytes_max = self._throttle.fetch_bytes_max(client)
        if request.max_bytes <= bytes_max:
            return request
        return replace(request, max_bytes=bytes_max, min_bytes=min(request.min_bytes, bytes_max))

    def _count(
        self, context: RequestContext, results: Mapping[PartitionKey, ShareFetchResult]
    ) -> int:
        """Count the records of an answer; return how long the client must wait."""
        if not self._throttle.is_active:
            return 0
        size_bytes = sum(
            result.records.size_bytes for result in results.values() if result.records is not None
        )
        return self._throttle.delivered(context, size_bytes)
