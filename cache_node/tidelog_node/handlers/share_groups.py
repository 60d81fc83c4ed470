"""ShareGroupHeartbeat and ShareGroupDescribe (KIP-932).

These check what a request says of itself and translate; what happens is decided in
``coordinator``. Source: ``throwIfShareGroupHeartbeatRequestIsInvalid`` of Kafka 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from kio.schema.share_group_describe.v1 import request as describe_request
from kio.schema.share_group_describe.v1 import response as describe_response
from kio.schema.share_group_heartbeat.v1 import request as heartbeat_request
from kio.schema.share_group_heartbeat.v1 import response as heartbeat_response
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.metadata.consumer_groups import Partitions
from tidelog_core.metadata.share_groups import ShareMember

from tidelog_node.coordinator.consumer_events import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatAnswer
from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.failures import error_code
from tidelog_node.coordinator.share_events import ShareHeartbeat
from tidelog_node.coordinator.share_group import ShareGroup
from tidelog_node.coordinator.simple_assignor import SIMPLE_ASSIGNOR
from tidelog_node.handlers.authorized_operations import NOT_REQUESTED, ON_GROUP
from tidelog_node.handlers.heartbeat_fields import by_topic_id, is_blank
from tidelog_node.routes import RequestContext, Route
from tidelog_node.wire.messages import build

SHARE_GROUP_HEARTBEAT_KEY = 76
SHARE_GROUP_DESCRIBE_KEY = 77


class ShareGroupHandlers:
    """Serves members of share groups and those who look at them."""

    def __init__(self, *, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(SHARE_GROUP_HEARTBEAT_KEY, 1, 1, self.heartbeat),
            Route(SHARE_GROUP_DESCRIBE_KEY, 1, 1, self.describe),
        ]

    async def heartbeat(
        self, request: heartbeat_request.ShareGroupHeartbeatRequest, context: RequestContext
    ) -> heartbeat_response.ShareGroupHeartbeatResponse:
        """Renew the member's session and tell it what it may read."""
        problem = next(_problems(request), None)
        if problem is not None:
            return _refused(ErrorCode.invalid_request, problem)
        names = request.subscribed_topic_names
        heartbeat = ShareHeartbeat(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            rack_id=request.rack_id,
            subscribed_topics=None if names is None else tuple(names),
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",  # as Java prints an address
        )
        try:
            answer = await self._coordinator.share_heartbeat(request.group_id, heartbeat)
        except TidelogError as error:
            return _refused(error_code(error), str(error))
        if answer.error is not ErrorCode.none:
            return _refused(answer.error, answer.message)
        return _accepted(answer)

    async def describe(
        self, request: describe_request.ShareGroupDescribeRequest, _: RequestContext
    ) -> describe_response.ShareGroupDescribeResponse:
        """Tell each group's epochs, and each member's partitions."""
        operations = ON_GROUP if request.include_authorized_operations else NOT_REQUESTED
        groups = [await self._describe(group_id, operations) for group_id in request.group_ids]
        return build(describe_response.ShareGroupDescribeResponse, groups=tuple(groups))

    async def _describe(self, group_id: str, operations: int) -> describe_response.DescribedGroup:
        try:
            group = await self._coordinator.describe(group_id)
        except TidelogError as error:
            return _not_described(group_id, error_code(error), str(error))
        if not isinstance(group, ShareGroup):
            problem = "not found" if group is None else "is not a share group"
            return _not_described(
                group_id, ErrorCode.group_id_not_found, f"Group {group_id} {problem}."
            )
        return build(
            describe_response.DescribedGroup,
            group_id=group_id,
            group_state=group.phase.value,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=SIMPLE_ASSIGNOR,
            members=tuple(self._member(member) for member in group.members),
            authorized_operations=operations,
        )

    def _member(self, member: ShareMember) -> describe_response.Member:
        return build(
            describe_response.Member,
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.subscribed_topics,
            assignment=self._assignment(member.assigned),
        )

    def _assignment(self, partitions: Partitions) -> describe_response.Assignment:
        named = [
            build(
                describe_response.TopicPartitions,
                topic_id=topic_id,
                topic_name=name,
                partitions=numbers,
            )
            for topic_id, numbers in by_topic_id(partitions)
            if (name := self._coordinator.topic_name(topic_id)) is not None
        ]
        return build(describe_response.Assignment, topic_partitions=tuple(named))


def _problems(request: heartbeat_request.ShareGroupHeartbeatRequest) -> Iterator[str]:
    """Yield what is wrong with the request by itself; the first is the answer."""
    if is_blank(request.member_id):
        yield "MemberId can't be empty."
    if is_blank(request.group_id):
        yield "GroupId can't be empty."
    if request.rack_id is not None and is_blank(request.rack_id):
        yield "RackId can't be empty."
    if request.member_epoch < LEAVE_EPOCH:
        yield "MemberEpoch is invalid."
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        yield "SubscribedTopicNames must be set in first request."


def _refused(
    error: ErrorCode, message: str | None
) -> heartbeat_response.ShareGroupHeartbeatResponse:
    return build(
        heartbeat_response.ShareGroupHeartbeatResponse, error_code=error, error_message=message
    )


def _accepted(answer: HeartbeatAnswer) -> heartbeat_response.ShareGroupHeartbeatResponse:
    assignment = None
    if answer.assigned is not None:
        assignment = build(
            heartbeat_response.Assignment,
            topic_partitions=tuple(
                build(heartbeat_response.TopicPartitions, topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in by_topic_id(answer.assigned)
            ),
        )
    return build(
        heartbeat_response.ShareGroupHeartbeatResponse,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=timedelta(milliseconds=answer.heartbeat_interval_ms),
        assignment=assignment,
    )


def _not_described(
    group_id: str, error: ErrorCode, message: str
) -> describe_response.DescribedGroup:
    return build(
        describe_response.DescribedGroup,
        group_id=group_id,
        error_code=error,
        error_message=message,
        authorized_operations=NOT_REQUESTED,
    )
