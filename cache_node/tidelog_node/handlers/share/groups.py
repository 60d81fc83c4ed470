"""ShareGroupHeartbeat and ShareGroupDescribe (KIP-932).

They check and translate requests; ``coordinator`` decides.
Source: ``throwIfShareGroupHeartbeatRequestIsInvalid`` of Kafka 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from kio.schema.share_group_describe.v1 import request as describe_request
from kio.schema.share_group_describe.v1 import response as describe_response
from kio.schema.share_group_heartbeat.v1 import request as heartbeat_request
from kio.schema.share_group_heartbeat.v1 import response as heartbeat_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.metadata.coordination.share_groups import ShareMember
from tidelog_core.security.operations import ON_GROUP, OPERATIONS_NOT_REQUESTED

from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.failures import error_code
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.groups.assignment.simple_assignor import SIMPLE_ASSIGNOR
from tidelog_node.groups.heartbeat_answer import JOIN_EPOCH, LEAVE_EPOCH
from tidelog_node.groups.share.heartbeat import ShareHeartbeat
from tidelog_node.groups.share.share_group import ShareGroup
from tidelog_node.handlers.groups.member_messages import (
    DescriptionMessages,
    HeartbeatMessages,
    is_blank,
)
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build

_HEARTBEAT = HeartbeatMessages(
    heartbeat_response, lambda: heartbeat_response.ShareGroupHeartbeatResponse
)
_DESCRIPTION = DescriptionMessages(describe_response)


class ShareGroupHandlers:
    """Serves members of share groups and their administrators."""

    def __init__(self, *, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, self.heartbeat),
            Route(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, self.describe),
        ]

    async def heartbeat(
        self, request: heartbeat_request.ShareGroupHeartbeatRequest, context: RequestContext
    ) -> heartbeat_response.ShareGroupHeartbeatResponse:
        """Renew the member's session and return its partitions."""
        problem = next(_problems(request), None)
        if problem is not None:
            return _HEARTBEAT.refused(ErrorCode.invalid_request, problem)
        names = request.subscribed_topic_names
        heartbeat = ShareHeartbeat(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            rack_id=request.rack_id,
            subscribed_topics=None if names is None else tuple(names),
            client_id=context.client_id or "",
            client_host=f"/{context.session.client_host}",  # as Java prints an address
        )
        try:
            answer = await self._coordinator.share_heartbeat(request.group_id, heartbeat)
        except TidelogError as error:
            return _HEARTBEAT.refused(error_code(error), str(error))
        return _HEARTBEAT.answered(answer)

    async def describe(
        self, request: describe_request.ShareGroupDescribeRequest, _: RequestContext
    ) -> describe_response.ShareGroupDescribeResponse:
        """Return each group's epochs, and each member's partitions."""
        operations = ON_GROUP if request.include_authorized_operations else OPERATIONS_NOT_REQUESTED
        groups = [
            await self._describe(group_id, operations)
            async for group_id in RequestTurn().each(request.group_ids)
        ]
        return build(describe_response.ShareGroupDescribeResponse, groups=tuple(groups))

    async def _describe(self, group_id: str, operations: int) -> describe_response.DescribedGroup:
        try:
            group = await self._coordinator.describe(group_id)
        except TidelogError as error:
            return _DESCRIPTION.not_described(group_id, error_code(error), str(error))
        if not isinstance(group, ShareGroup):
            problem = "not found" if group is None else "is not a share group"
            return _DESCRIPTION.not_described(
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
            assignment=_DESCRIPTION.assigned(member.assigned, self._coordinator.topic_name),
        )


def _problems(request: heartbeat_request.ShareGroupHeartbeatRequest) -> Iterator[str]:
    """Yield the request's own problems; the first is the answer."""
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
