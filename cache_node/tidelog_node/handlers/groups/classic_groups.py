"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the requests about groups as a whole.

They only translate; ``coordinator`` decides. The place of an error in the response depends on
the version. Source: ``GroupCoordinatorService`` of Kafka.
"""

from __future__ import annotations

from datetime import timedelta

from kio.schema.delete_groups.v2 import request as delete_request
from kio.schema.delete_groups.v2 import response as delete_response
from kio.schema.describe_groups.v6 import request as describe_request
from kio.schema.describe_groups.v6 import response as describe_response
from kio.schema.heartbeat.v4 import request as heartbeat_request
from kio.schema.heartbeat.v4 import response as heartbeat_response
from kio.schema.join_group.v9 import request as join_request
from kio.schema.join_group.v9 import response as join_response
from kio.schema.leave_group.v2 import request as leave_request_v2
from kio.schema.leave_group.v2 import response as leave_response_v2
from kio.schema.leave_group.v5 import request as leave_request
from kio.schema.leave_group.v5 import response as leave_response
from kio.schema.list_groups.v5 import request as list_request
from kio.schema.list_groups.v5 import response as list_response
from kio.schema.sync_group.v5 import request as sync_request
from kio.schema.sync_group.v5 import response as sync_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.metadata.coordination.groups import GroupMember
from tidelog_core.security.operations import ON_GROUP, OPERATIONS_NOT_REQUESTED

from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.failures import error_code
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.groups.any_group import Group
from tidelog_node.groups.classic.classic_group import ClassicGroup, Phase
from tidelog_node.groups.classic_messages import (
    GroupCaller,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    SyncRequest,
)
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build

# Versions of JoinGroup.
MEMBER_ID_REQUIRED_FROM = 4  # a new member gets an id first, and joins with it (KIP-394)
NULL_PROTOCOL_NAME_FROM = 7  # earlier ones have an empty name instead
SKIPS_ASSIGNMENT_FROM = 9  # a returning static leader need not assign again (KIP-814)

SYNC_NAMES_FROM = 5  # of SyncGroup: protocol type and name are required (KIP-559)
NOT_FOUND_FROM = 6  # of DescribeGroups: before, an unknown group is a dead one (KIP-1043)

# The types of groups, by Kafka's names.
CLASSIC = "classic"
CONSUMER = "consumer"
SHARE = "share"

_MILLISECOND = timedelta(milliseconds=1)


class GroupHandlers:
    """Serves members of groups and administrators of groups."""

    def __init__(self, *, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.JOIN_GROUP, 0, 9, self.join_group),
            Route(ApiKey.SYNC_GROUP, 0, 5, self.sync_group),
            Route(ApiKey.HEARTBEAT, 0, 4, self.heartbeat),
            Route(ApiKey.LEAVE_GROUP, 0, 2, self.leave_group_alone),
            Route(ApiKey.LEAVE_GROUP, 3, 5, self.leave_group),
            Route(ApiKey.DESCRIBE_GROUPS, 0, 6, self.describe_groups),
            Route(ApiKey.LIST_GROUPS, 0, 5, self.list_groups),
            Route(ApiKey.DELETE_GROUPS, 0, 2, self.delete_groups),
        ]

    async def join_group(
        self, request: join_request.JoinGroupRequest, context: RequestContext
    ) -> join_response.JoinGroupResponse:
        """Add the client to the group or have it rejoin, once the rebalance permits."""
        join = self._join_request(request, context)
        try:
            answer = await self._coordinator.join(request.group_id, join)
        except TidelogError as error:
            answer = JoinAnswer(error=error_code(error), member_id=request.member_id)
        protocol_name = answer.protocol_name
        if protocol_name is None and context.api_version < NULL_PROTOCOL_NAME_FROM:
            protocol_name = ""
        members = [
            build(
                join_response.JoinGroupResponseMember,
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            async for member in RequestTurn().each(answer.members)
        ]
        return build(
            join_response.JoinGroupResponse,
            error_code=answer.error,
            generation_id=answer.generation,
            protocol_type=answer.protocol_type,
            protocol_name=protocol_name,
            leader=answer.leader,
            skip_assignment=answer.skip_assignment,
            member_id=answer.member_id,
            members=tuple(members),
        )

    def _join_request(
        self, request: join_request.JoinGroupRequest, context: RequestContext
    ) -> JoinRequest:
        """Return the request as groups take it, with a member id for a client that has none."""
        session_timeout_ms = request.session_timeout // _MILLISECOND
        rebalance_timeout_ms = request.rebalance_timeout // _MILLISECOND
        client_id = context.client_id or ""
        instance_id = request.group_instance_id
        return JoinRequest(
            number=self._coordinator.next_number(),
            member_id=request.member_id,
            group_instance_id=instance_id,
            new_member_id=self._coordinator.new_member_id(
                client_id if instance_id is None else instance_id
            ),
            client_id=client_id,
            client_host=f"/{context.session.client_host}",  # as Java prints an address
            protocol_type=request.protocol_type,
            protocols=tuple((p.name, p.metadata) for p in request.protocols),
            session_timeout_ms=session_timeout_ms,
            # Version 0 has no rebalance timeout: the session timeout counts.
            rebalance_timeout_ms=(
                session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms
            ),
            must_know_member_id=context.api_version >= MEMBER_ID_REQUIRED_FROM,
            can_skip_assignment=context.api_version >= SKIPS_ASSIGNMENT_FROM,
        )

    async def sync_group(
        self, request: sync_request.SyncGroupRequest, context: RequestContext
    ) -> sync_response.SyncGroupResponse:
        """Return the member's assignment once the group's leader has sent it."""
        names = (request.protocol_type, request.protocol_name)
        if context.api_version >= SYNC_NAMES_FROM and None in names:
            error = ErrorCode.inconsistent_group_protocol
            return build(sync_response.SyncGroupResponse, error_code=error)
        sync = SyncRequest(
            number=self._coordinator.next_number(),
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=tuple((a.member_id, a.assignment) for a in request.assignments),
        )
        try:
            answer = await self._coordinator.sync(request.group_id, sync)
        except TidelogError as error:
            return build(sync_response.SyncGroupResponse, error_code=error_code(error))
        return build(
            sync_response.SyncGroupResponse,
            error_code=answer.error,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            assignment=answer.assignment,
        )

    async def heartbeat(
        self, request: heartbeat_request.HeartbeatRequest, _: RequestContext
    ) -> heartbeat_response.HeartbeatResponse:
        """Renew the member's session and return whether it must rejoin."""
        try:
            caller = GroupCaller(
                request.member_id, request.group_instance_id, request.generation_id
            )
            error = await self._coordinator.heartbeat(request.group_id, caller)
        except TidelogError as problem:
            error = error_code(problem)
        return build(heartbeat_response.HeartbeatResponse, error_code=error)

    async def leave_group_alone(
        self, request: leave_request_v2.LeaveGroupRequest, _: RequestContext
    ) -> leave_response_v2.LeaveGroupResponse:
        """Remove one member: versions 0 to 2."""
        try:
            identities = [MemberIdentity(request.member_id)]
            (error,) = await self._coordinator.leave(request.group_id, identities)
        except TidelogError as problem:
            error = error_code(problem)
        return build(leave_response_v2.LeaveGroupResponse, error_code=error)

    async def leave_group(
        self, request: leave_request.LeaveGroupRequest, _: RequestContext
    ) -> leave_response.LeaveGroupResponse:
        """Remove members, each with an outcome of its own."""
        turn = RequestTurn()
        identities = [
            MemberIdentity(member.member_id, member.group_instance_id)
            async for member in turn.each(request.members)
        ]
        try:
            errors = await self._coordinator.leave(request.group_id, identities)
        except TidelogError as error:
            return build(leave_response.LeaveGroupResponse, error_code=error_code(error))
        return build(
            leave_response.LeaveGroupResponse,
            members=tuple(
                [
                    build(
                        leave_response.MemberResponse,
                        member_id=identity.member_id,
                        group_instance_id=identity.group_instance_id,
                        error_code=error,
                    )
                    async for identity, error in turn.each(zip(identities, errors, strict=True))
                ]
            ),
        )

    async def describe_groups(
        self, request: describe_request.DescribeGroupsRequest, context: RequestContext
    ) -> describe_response.DescribeGroupsResponse:
        """Return each group's state and members."""
        operations = ON_GROUP if request.include_authorized_operations else OPERATIONS_NOT_REQUESTED
        knows_not_found = context.api_version >= NOT_FOUND_FROM
        turn = RequestTurn()
        groups = [
            await self._describe(group_id, operations, turn, knows_not_found=knows_not_found)
            async for group_id in turn.each(request.groups)
        ]
        return build(describe_response.DescribeGroupsResponse, groups=tuple(groups))

    async def _describe(
        self, group_id: str, operations: int, turn: RequestTurn, *, knows_not_found: bool
    ) -> describe_response.DescribedGroup:
        try:
            group = await self._coordinator.describe(group_id)
        except TidelogError as error:
            return build(
                describe_response.DescribedGroup,
                group_id=group_id,
                error_code=error_code(error),
                error_message=str(error),
                authorized_operations=OPERATIONS_NOT_REQUESTED,
            )
        if not isinstance(group, ClassicGroup):
            problem = "not found" if group is None else "is not a classic group"
            return build(
                describe_response.DescribedGroup,
                group_id=group_id,
                group_state=Phase.DEAD.value,
                error_code=ErrorCode.group_id_not_found if knows_not_found else ErrorCode.none,
                error_message=f"Group {group_id} {problem}." if knows_not_found else None,
                authorized_operations=operations,
            )
        protocol_name = group.protocol_name if group.phase is Phase.STABLE else None
        # A copy: the group may change while the answer is built.
        members = [member.to_record() for member in group.roster]
        return build(
            describe_response.DescribedGroup,
            group_id=group_id,
            group_state=group.phase.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol_name or "",
            members=tuple(
                [_describe_member(each, protocol_name) async for each in turn.each(members)]
            ),
            authorized_operations=operations,
        )

    async def list_groups(
        self, request: list_request.ListGroupsRequest, _: RequestContext
    ) -> list_response.ListGroupsResponse:
        """List this node's groups, filtered by state and type."""
        states = {state.strip().lower() for state in request.states_filter}
        types = {type_.strip().lower() for type_ in request.types_filter}
        try:
            groups = await self._coordinator.list_groups()
        except TidelogError as error:
            return build(list_response.ListGroupsResponse, error_code=error_code(error))
        return build(
            list_response.ListGroupsResponse,
            groups=tuple(
                [
                    _listed(group)
                    async for group in RequestTurn().each(groups)
                    if (not states or group.phase.value.lower() in states)
                    and (not types or _type(group) in types)
                ]
            ),
        )

    async def delete_groups(
        self, request: delete_request.DeleteGroupsRequest, _: RequestContext
    ) -> delete_response.DeleteGroupsResponse:
        """Delete empty groups with their offsets."""
        results = []
        async for group_id in RequestTurn().each(dict.fromkeys(request.groups_names)):
            try:
                error = await self._coordinator.delete_group(group_id)
            except TidelogError as problem:
                error = error_code(problem)
            results.append(
                build(delete_response.DeletableGroupResult, group_id=group_id, error_code=error)
            )
        return build(delete_response.DeleteGroupsResponse, results=tuple(results))


def _describe_member(
    member: GroupMember, protocol_name: str | None
) -> describe_response.DescribedGroupMember:
    return build(
        describe_response.DescribedGroupMember,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=dict(member.protocols).get(protocol_name or "", b""),
        member_assignment=member.assignment,
    )


def _type(group: Group) -> str:
    if isinstance(group, ClassicGroup):
        return CLASSIC
    return CONSUMER if isinstance(group, ConsumerGroup) else SHARE


def _listed(group: Group) -> list_response.ListedGroup:
    return build(
        list_response.ListedGroup,
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.phase.value,
        group_type=_type(group),
    )
