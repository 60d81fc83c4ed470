"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848).

They check and translate requests; ``coordinator`` decides.
Source: ``throwIfConsumerGroupHeartbeatRequestIsInvalid`` of Kafka 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from uuid import UUID

from kio.schema.consumer_group_describe.v1 import request as describe_request
from kio.schema.consumer_group_describe.v1 import response as describe_response
from kio.schema.consumer_group_heartbeat.v1 import request as heartbeat_request
from kio.schema.consumer_group_heartbeat.v1 import response as heartbeat_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.metadata.coordination.consumer_groups import (
    LEFT_FOR_NOW_EPOCH,
    ConsumerMember,
    Partitions,
    TopicIdPartition,
)
from tidelog_core.security.operations import ON_GROUP, OPERATIONS_NOT_REQUESTED

from tidelog_node.authorization.access import Access
from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.failures import error_code
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.consumer.heartbeat import ConsumerHeartbeat
from tidelog_node.groups.heartbeat_answer import JOIN_EPOCH, LEAVE_EPOCH
from tidelog_node.handlers.groups.member_messages import (
    DescriptionMessages,
    HeartbeatMessages,
    is_blank,
)
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build

CLIENT_MAKES_MEMBER_ID_FROM = 1
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1

_MILLISECOND = timedelta(milliseconds=1)

_HEARTBEAT = HeartbeatMessages(
    heartbeat_response, lambda: heartbeat_response.ConsumerGroupHeartbeatResponse
)
_DESCRIPTION = DescriptionMessages(describe_response)


class ConsumerGroupHandlers:
    """Serves members of consumer groups and their administrators."""

    def __init__(self, *, coordinator: GroupCoordinator, access: Access | None) -> None:
        """With ``access``, members' patterns match only topics that they may describe."""
        self._coordinator = coordinator
        self._access = access

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, self.heartbeat),
            Route(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, self.describe),
        ]

    async def heartbeat(
        self, request: heartbeat_request.ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> heartbeat_response.ConsumerGroupHeartbeatResponse:
        """Renew the member's session and return its assignment."""
        problem = next(_problems(request, context.api_version), None)
        if problem is not None:
            return _HEARTBEAT.refused(ErrorCode.invalid_request, problem)
        assignors = self._coordinator.assignors
        if request.server_assignor is not None and request.server_assignor not in assignors:
            return _HEARTBEAT.refused(
                ErrorCode.unsupported_assignor,
                f"ServerAssignor {request.server_assignor} is not supported. Supported assignors:"
                f" {', '.join(assignors)}.",
            )
        try:
            answer = await self._coordinator.consumer_heartbeat(
                request.group_id, self._heartbeat(request, context)
            )
        except TidelogError as error:
            return _HEARTBEAT.refused(error_code(error), str(error))
        return _HEARTBEAT.answered(answer)

    async def describe(
        self, request: describe_request.ConsumerGroupDescribeRequest, _: RequestContext
    ) -> describe_response.ConsumerGroupDescribeResponse:
        """Return each group's epochs, and each member's partitions."""
        operations = ON_GROUP if request.include_authorized_operations else OPERATIONS_NOT_REQUESTED
        turn = RequestTurn()
        groups = [
            await self._describe(group_id, operations, turn)
            async for group_id in turn.each(request.group_ids)
        ]
        return build(describe_response.ConsumerGroupDescribeResponse, groups=tuple(groups))

    def _heartbeat(
        self, request: heartbeat_request.ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerHeartbeat:
        rebalance_timeout_ms = request.rebalance_timeout // _MILLISECOND
        names = request.subscribed_topic_names
        return ConsumerHeartbeat(
            # In version 0 a member without an id gets one.
            member_id=request.member_id or self._coordinator.new_member_id(None),
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=None if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
            subscribed_topics=None if names is None else tuple(names),
            subscribed_pattern=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=_owned(request.topic_partitions),
            client_id=context.client_id or "",
            client_host=f"/{context.session.client_host}",  # as Java prints an address
            viewer=None if self._access is None else self._access.viewer(context.session),
        )

    async def _describe(
        self, group_id: str, operations: int, turn: RequestTurn
    ) -> describe_response.DescribedGroup:
        try:
            group = await self._coordinator.describe(group_id)
        except TidelogError as error:
            return _DESCRIPTION.not_described(group_id, error_code(error), str(error))
        if group is None:
            return _DESCRIPTION.not_described(
                group_id, ErrorCode.group_id_not_found, f"Group {group_id} not found."
            )
        if not isinstance(group, ConsumerGroup):
            return _DESCRIPTION.not_described(
                group_id,
                ErrorCode.group_id_not_found,
                f"Group {group_id} is not a consumer group.",
            )
        members = tuple(group.roster)  # a copy: the group may change between turns
        return build(
            describe_response.DescribedGroup,
            group_id=group_id,
            group_state=group.phase.value,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=self._coordinator.preferred_assignor(group),
            members=tuple([self._member(member) async for member in turn.each(members)]),
            authorized_operations=operations,
        )

    def _member(self, member: ConsumerMember) -> describe_response.Member:
        return build(
            describe_response.Member,
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.subscribed_topics,
            subscribed_topic_regex=member.subscribed_pattern or None,
            assignment=_DESCRIPTION.assigned(member.assigned, self._coordinator.topic_name),
            target_assignment=_DESCRIPTION.assigned(member.target, self._coordinator.topic_name),
            member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
        )


def _problems(
    request: heartbeat_request.ConsumerGroupHeartbeatRequest, version: int
) -> Iterator[str]:
    """Yield the request's own problems; the first is the answer."""
    epoch = request.member_epoch
    must_have_id = version >= CLIENT_MAKES_MEMBER_ID_FROM or epoch > 0 or epoch == LEAVE_EPOCH
    if must_have_id and is_blank(request.member_id):
        yield "MemberId can't be empty."
    for name, value in (
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and is_blank(value):
            yield f"{name} can't be empty."
    if epoch < LEFT_FOR_NOW_EPOCH:
        yield "MemberEpoch is invalid."
    if epoch == LEFT_FOR_NOW_EPOCH and request.instance_id is None:
        yield "InstanceId can't be null."
    if epoch != JOIN_EPOCH:
        return
    if request.rebalance_timeout // _MILLISECOND == -1:
        yield "RebalanceTimeoutMs must be provided in first request."
    if request.topic_partitions is None or request.topic_partitions:
        yield "TopicPartitions must be empty when (re-)joining."
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        yield (
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
            " (re-)joining."
        )


def _owned(
    topics: Sequence[heartbeat_request.TopicPartitions] | None,
) -> Partitions | None:
    if topics is None:
        return None
    return frozenset(
        TopicIdPartition(topic.topic_id or UUID(int=0), partition)
        for topic in topics
        for partition in topic.partitions
    )
