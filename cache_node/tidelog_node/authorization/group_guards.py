"""The guards of the APIs about groups, and about the offsets that they commit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode
from tidelog_core.security.acl import AclOperation, ResourceType
from tidelog_core.security.operations import OPERATIONS_NOT_REQUESTED, REFUSAL_CODES

from tidelog_node.authorization.guard import Denied, Guard, GuardedCall
from tidelog_node.authorization.refusals import NOTHING, element_class, refusal

_GROUP, _TOPIC = ResourceType.GROUP, ResourceType.TOPIC
_READ, _DESCRIBE, _DELETE = AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE
_GROUP_REFUSED = REFUSAL_CODES[_GROUP]
# A partition without an offset, as in OffsetFetch.
_NO_OFFSET = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


async def _as_member(call: GuardedCall) -> Any:
    """A classic group's member needs a right to the group alone."""
    if call.may_call(_GROUP, call.request.group_id):
        return await call.go_on()
    return call.refuse(_GROUP)


async def _heartbeat(call: GuardedCall) -> Any:
    """A member of a newer group also needs DESCRIBE of each topic that it subscribes to."""
    request = call.request
    if not call.may(_READ, _GROUP, request.group_id):
        return call.refuse(_GROUP)
    async for name in call.turn.each(request.subscribed_topic_names or ()):
        if not call.may(_DESCRIBE, _TOPIC, name):
            return call.refuse(_TOPIC)
    return await call.go_on()


async def _describe_groups(call: GuardedCall) -> Any:
    """DESCRIBE of each group. A group's operations are the client's."""
    request = call.request
    allowed, denied = await call.names_by(_DESCRIBE, _GROUP, request.groups)
    answer = await call.go_on(dataclasses.replace(request, groups=allowed))
    groups = [await _with_operations(call, group) async for group in call.turn.each(answer.groups)]
    added = await _refused_groups(call, denied, _GROUP)
    return dataclasses.replace(answer, groups=(*groups, *added))


async def _describe_newer_groups(call: GuardedCall) -> Any:
    """DESCRIBE of each group and of all of its members' topics, or nothing of the group."""
    request = call.request
    allowed, denied = await call.names_by(_DESCRIBE, _GROUP, request.group_ids)
    answer = await call.go_on(dataclasses.replace(request, group_ids=allowed))
    groups: list[Any] = []
    hidden: list[str] = []
    async for group in call.turn.each(answer.groups):
        if await _has_hidden_topic(call, group):
            hidden.append(group.group_id)
        else:
            groups.append(await _with_operations(call, group))
    groups += await _refused_groups(call, denied, _GROUP)
    groups += await _refused_groups(call, hidden, _TOPIC)
    return dataclasses.replace(answer, groups=tuple(groups))


async def _refused_groups(
    call: GuardedCall, names: Iterable[str], resource_type: ResourceType
) -> tuple[Any, ...]:
    return await call.refused_names(
        names, resource_type, "groups", "group_id", authorized_operations=OPERATIONS_NOT_REQUESTED
    )


async def _with_operations(call: GuardedCall, group: Any) -> Any:
    if not call.request.include_authorized_operations or group.error_code is not ErrorCode.none:
        return group
    return dataclasses.replace(group, authorized_operations=call.operations(_GROUP, group.group_id))


async def _has_hidden_topic(call: GuardedCall, group: Any) -> bool:
    seen: set[str] = set()
    async for member in call.turn.each(group.members):
        names = set(member.subscribed_topic_names)
        for field in ("assignment", "target_assignment"):
            assignment = getattr(member, field, None)
            if assignment is not None:
                names.update(topic.topic_name for topic in assignment.topic_partitions)
        async for name in call.turn.each(names - seen):
            if not call.may(_DESCRIBE, _TOPIC, name):
                return True
        seen |= names
    return False


async def _list_groups(call: GuardedCall) -> Any:
    """Show the groups that the client may describe; with DESCRIBE of the cluster, all."""
    answer = await call.go_on()
    if call.has_right_to_cluster(_DESCRIBE):
        return answer
    groups = [
        group async for group in call.turn.each(answer.groups) if call.sees(_GROUP, group.group_id)
    ]
    return dataclasses.replace(answer, groups=tuple(groups))


async def _delete_groups(call: GuardedCall) -> Any:
    request = call.request
    allowed, denied = await call.names_by(_DELETE, _GROUP, request.groups_names)
    added = await call.refused_names(denied, _GROUP, "results", "group_id")
    answer = await call.go_on(dataclasses.replace(request, groups_names=allowed))
    return dataclasses.replace(answer, results=(*answer.results, *added))


# -- offsets --


async def _commit_offsets(call: GuardedCall) -> Any:
    """READ of the group, and of each topic."""
    request = call.request
    if not call.may(_READ, _GROUP, request.group_id):
        return await call.refuse_each(_GROUP, request.topics, "topics")
    allowed, denied = await call.topics_by(_READ, request.topics)
    return await call.go_on_with(allowed, denied, asked="topics", answered="topics")


async def _delete_offsets(call: GuardedCall) -> Any:
    """DELETE of the group, READ of each topic. The group is checked without topics, too."""
    request = call.request
    if not call.may(_DELETE, _GROUP, request.group_id):
        return call.refuse(_GROUP)
    allowed, denied = await call.topics_by(_READ, request.topics)
    if not denied:
        return await call.go_on()
    answer = await call.go_on(dataclasses.replace(request, topics=allowed))
    if answer.error_code is not ErrorCode.none:
        return answer
    added = await call.refused(denied, "topics")
    return dataclasses.replace(answer, topics=(*answer.topics, *added))


async def _fetch_offsets(call: GuardedCall) -> Any:
    """DESCRIBE of the group, and of each topic. Of a group's topics, the others are left out."""
    request = call.request
    if hasattr(request, "groups"):
        return await _offsets_of_groups(call, _NO_OFFSET)
    if not call.may(_DESCRIBE, _GROUP, request.group_id):
        # Version 1 has no error for the group, but for each partition.
        topics = request.topics if call.context.api_version == 1 else ()
        denied = [Denied(topic, _GROUP_REFUSED) for topic in topics or ()]
        named = await call.refused(denied, "topics", _NO_OFFSET)
        return refusal(call.answer_class, error_code=_GROUP_REFUSED, topics=named)
    if request.topics is None:
        answer = await call.go_on()
        shown = await call.visible(answer.topics)
        return dataclasses.replace(answer, topics=shown)
    allowed, denied = await call.topics_by(_DESCRIBE, request.topics)
    if not denied:
        return await call.go_on()
    hidden = await call.refused(denied, "topics", _NO_OFFSET)
    answer = await call.go_on(dataclasses.replace(request, topics=allowed))
    return dataclasses.replace(answer, topics=(*answer.topics, *hidden))


async def _offsets_of_groups(call: GuardedCall, others: Mapping[str, object] = NOTHING) -> Any:
    """DESCRIBE of each group and topic; of all of a group's topics, the others are left out.

    ``others`` are the values of a refused partition without an offset.
    """
    request = call.request
    inner = element_class(call.answer_class, "groups")
    topic_class = element_class(inner, "topics")
    asked, refused_groups = [], []
    hidden: dict[str, list[Denied]] = {}
    async for group in call.turn.each(request.groups):
        if not call.may(_DESCRIBE, _GROUP, group.group_id):
            refused_group = refusal(inner, group_id=group.group_id, error_code=_GROUP_REFUSED)
            refused_groups.append(refused_group)
        elif group.topics is None:
            asked.append(group)
        else:
            allowed, hidden[group.group_id] = await call.topics_by(_DESCRIBE, group.topics)
            asked.append(dataclasses.replace(group, topics=allowed))
    if not asked:
        return refusal(call.answer_class, groups=tuple(refused_groups))
    answer = await call.go_on(dataclasses.replace(request, groups=tuple(asked)))
    groups = []
    async for group in call.turn.each(answer.groups):
        shown = await call.visible(group.topics)
        denied = hidden.get(group.group_id, [])
        added = await call.refused_as(topic_class, denied, others)
        groups.append(dataclasses.replace(group, topics=(*shown, *added)))
    return dataclasses.replace(answer, groups=(*groups, *refused_groups))


# -- share groups --


async def _acknowledge(call: GuardedCall) -> Any:
    """READ of the group and of each topic. The handler is asked in any case: it ends sessions."""
    request = call.request
    if not call.may(_READ, _GROUP, request.group_id or ""):
        return call.refuse(_GROUP)
    allowed, denied = await call.topics_by(_READ, request.topics)
    answer = await call.go_on(dataclasses.replace(request, topics=allowed))
    if answer.error_code:
        return answer  # of the whole request
    added = await call.refused(denied, "responses")
    return dataclasses.replace(answer, responses=(*answer.responses, *added))


async def _share_offsets(call: GuardedCall) -> Any:
    request = call.request
    if not call.may_call(_GROUP, request.group_id):
        return call.refuse(_GROUP)
    allowed, denied = await call.topics_by(call.needed(_TOPIC), request.topics)
    return await call.go_on_with(allowed, denied, asked="topics", answered="responses")


GROUP_GUARDS: Mapping[int, Guard] = {
    ApiKey.OFFSET_COMMIT: _commit_offsets,
    ApiKey.OFFSET_FETCH: _fetch_offsets,
    ApiKey.JOIN_GROUP: _as_member,
    ApiKey.HEARTBEAT: _as_member,
    ApiKey.LEAVE_GROUP: _as_member,
    ApiKey.SYNC_GROUP: _as_member,
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.LIST_GROUPS: _list_groups,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.OFFSET_DELETE: _delete_offsets,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _describe_newer_groups,
    ApiKey.SHARE_GROUP_HEARTBEAT: _heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: _describe_newer_groups,
    ApiKey.SHARE_ACKNOWLEDGE: _acknowledge,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _offsets_of_groups,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _share_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _share_offsets,
}
