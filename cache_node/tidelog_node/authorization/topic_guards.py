"""The guards of the APIs about topics, the settings of resources, and the cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode
from tidelog_core.quota_messages import DESCRIBE_QUOTA_USE_KEY
from tidelog_core.role_messages import ALTER_ROLES_KEY, DESCRIBE_ROLES_KEY
from tidelog_core.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from tidelog_core.security.operations import REFUSAL_CODES

from tidelog_node.authorization.guard import (
    Denied,
    Guard,
    GuardedCall,
    each_to_cluster,
    each_topic,
    to_cluster,
    unguarded,
)
from tidelog_node.authorization.refusals import element_class, refusal
from tidelog_node.wire.messages import build

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_DESCRIBE, _ALTER = AclOperation.DESCRIBE, AclOperation.ALTER
_DELETE = AclOperation.DELETE
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
_TOPIC_REFUSED = REFUSAL_CODES[_TOPIC]

# The resources of the APIs of settings, by the protocol's numbers. All others are the cluster's.
_RESOURCES = {2: _TOPIC, 32: _GROUP}

_COORDINATED = {0: (_DESCRIBE, _GROUP), 1: (_DESCRIBE, ResourceType.TRANSACTIONAL_ID)}


async def _delete_topics(call: GuardedCall) -> Any:
    """DELETE of the cluster or of each topic, and DESCRIBE of one that is named by its id.

    A client that may describe the topic learns that it does not exist.
    """
    request = call.request
    may_delete_all = call.has_right_to_cluster(_DELETE)
    field = "topics" if hasattr(request, "topics") else "topic_names"
    inner = element_class(call.answer_class, "responses")
    allowed: list[Any] = []
    added: list[Any] = []
    async for topic in call.turn.each(getattr(request, field)):
        by_id = None if isinstance(topic, str) or topic.name is not None else topic.topic_id
        name = topic if isinstance(topic, str) else await call.name_of(topic)
        named = {"name": name} if by_id is None else {"name": None, "topic_id": by_id}
        if name is None:
            if by_id is None:
                allowed.append(topic)  # The handler says that nothing is named.
            else:
                added.append(refusal(inner, error_code=ErrorCode.unknown_topic_id, **named))
            continue
        is_covered = may_delete_all and not call.access.protects(name)
        may_delete = is_covered or call.may(_DELETE, _TOPIC, name)
        if may_delete and (by_id is None or call.may(_DESCRIBE, _TOPIC, name)):
            allowed.append(topic)
        else:
            added.append(refusal(inner, error_code=_undeletable(call, name), **named))
    if not added:
        return await call.go_on()
    if not allowed:
        return refusal(call.answer_class, responses=tuple(added))
    answer = await call.go_on(dataclasses.replace(request, **{field: tuple(allowed)}))
    return dataclasses.replace(answer, responses=(*answer.responses, *added))


def _undeletable(call: GuardedCall, name: str) -> ErrorCode:
    """Return the error of a topic that the client must not delete."""
    if name not in call.view.image.topics and call.may(_DESCRIBE, _TOPIC, name):
        return ErrorCode.unknown_topic_or_partition
    return _TOPIC_REFUSED


async def _epoch_ends(call: GuardedCall) -> Any:
    if call.has_right_to_cluster(AclOperation.CLUSTER_ACTION):
        return await call.go_on()
    return await each_topic()(call)


async def _elect_leaders(call: GuardedCall) -> Any:
    """ALTER of the cluster; without it each partition has the error, as in Kafka."""
    if call.may_to_cluster(_ALTER):
        return await call.go_on()
    code = REFUSAL_CODES[_CLUSTER]
    denied = [Denied(topic, code) for topic in call.request.topic_partitions or ()]
    results = await call.refused(denied, "replica_election_results")
    return call.refuse(_CLUSTER, replica_election_results=results)


def _settings(answered: str) -> Guard:
    """Return the guard that needs an operation on each topic, group, or the cluster."""

    async def guard(call: GuardedCall) -> Any:
        request = call.request
        allowed: list[Any] = []
        denied: list[Denied] = []
        async for resource in call.turn.each(request.resources):
            resource_type = _RESOURCES.get(resource.resource_type, _CLUSTER)
            name = CLUSTER_NAME if resource_type is _CLUSTER else resource.resource_name
            if call.may_call(resource_type, name):
                allowed.append(resource)
            else:
                denied.append(Denied(resource, REFUSAL_CODES[resource_type]))
        return await call.go_on_with(tuple(allowed), denied, asked="resources", answered=answered)

    return guard


async def _find_coordinator(call: GuardedCall) -> Any:
    """DESCRIBE of each group or transactional id."""
    request = call.request
    nowhere: dict[str, Any] = {"node_id": -1, "host": "", "port": -1}
    keys = (request.key,) if hasattr(request, "key") else request.coordinator_keys
    needed = _COORDINATED.get(request.key_type)
    if needed is not None:
        operation, resource_type = needed
        allowed, denied = await call.names_by(operation, resource_type, keys)
    else:  # The type is that of nodes, or an unknown one, which the handler refuses.
        resource_type = _CLUSTER
        may_ask = call.may_to_cluster(AclOperation.CLUSTER_ACTION)
        allowed, denied = (tuple(keys), []) if may_ask else ((), list(keys))
    if not denied:
        return await call.go_on()
    if hasattr(request, "key"):
        return call.refuse(resource_type, **nowhere)
    added = await call.refused_names(denied, resource_type, "coordinators", "key", **nowhere)
    answer = await call.go_on(dataclasses.replace(request, coordinator_keys=allowed))
    return dataclasses.replace(answer, coordinators=(*answer.coordinators, *added))


async def _describe_cluster(call: GuardedCall) -> Any:
    """Everyone sees the brokers; the operations need DESCRIBE of the cluster."""
    answer = await call.go_on()
    if not call.request.include_cluster_authorized_operations:
        return answer
    operations = call.operations(_CLUSTER) if call.has_right_to_cluster(_DESCRIBE) else 0
    return dataclasses.replace(answer, cluster_authorized_operations=operations)


async def _describe_log_dirs(call: GuardedCall) -> Any:
    if call.may_to_cluster(_DESCRIBE):
        return await call.go_on()
    return call.refuse(_CLUSTER)


async def _alter_log_dirs(call: GuardedCall) -> Any:
    """ALTER of the cluster. The answer is by topic, the request by folder."""
    if call.may_to_cluster(_ALTER):
        return await call.go_on()
    code = REFUSAL_CODES[_CLUSTER]
    denied: dict[str, Denied] = {}
    async for folder in call.turn.each(call.request.dirs):
        async for topic in call.turn.each(folder.topics):
            denied.setdefault(topic.name, Denied(_NamedPartitions(topic.name, []), code))
            denied[topic.name].element.partitions.extend(topic.partitions)
    added = await call.refused(denied.values(), "results")
    return refusal(call.answer_class, results=added)


class _NamedPartitions(NamedTuple):
    topic_name: str
    partitions: list[int]


async def _alter_scram_users(call: GuardedCall) -> Any:
    """ALTER of the cluster. Each user is named once in the answer."""
    if call.may_to_cluster(_ALTER):
        return await call.go_on()
    request = call.request
    names = dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
    results = await call.refused_names(names, _CLUSTER, "results", "user")
    return refusal(call.answer_class, results=results)


async def _describe_topic_partitions(call: GuardedCall) -> Any:
    """DESCRIBE of each topic; without names, of all of them: the others are left out."""
    request = call.request
    denied: list[Denied] = []
    if request.topics:
        allowed, denied = await call.topics_by(_DESCRIBE, request.topics)
    else:
        start = "" if request.cursor is None else request.cursor.topic_name
        named = element_class(type(request), "topics")
        allowed = tuple(
            [
                build(named, name=name)
                async for name in call.turn.each(tuple(call.view.image.topics))
                if name >= start and call.sees(_TOPIC, name)
            ]
        )
        if all(topic.name != start for topic in allowed):
            request = dataclasses.replace(request, cursor=None)  # Its topic is gone, or hidden.
    added = await call.refused(denied, "topics")
    if not allowed:  # The handler would describe all topics.
        return refusal(call.answer_class, topics=added, next_cursor=None)
    answer = await call.go_on(dataclasses.replace(request, topics=allowed))
    topics = []
    async for topic in call.turn.each(answer.topics):
        operations = call.operations(_TOPIC, topic.name)
        topics.append(dataclasses.replace(topic, topic_authorized_operations=operations))
    return dataclasses.replace(answer, topics=(*topics, *added))


TOPIC_GUARDS: Mapping[int, Guard] = {
    ApiKey.LIST_OFFSETS: each_topic(),
    # ``MetadataHandlers``: its answers are shared, and it creates topics
    ApiKey.METADATA: unguarded,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.SASL_HANDSHAKE: unguarded,
    ApiKey.API_VERSIONS: unguarded,
    ApiKey.CREATE_TOPICS: unguarded,  # ``TopicHandlers``: its answer is encoded topic by topic
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.DELETE_RECORDS: each_topic(),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _epoch_ends,
    ApiKey.DESCRIBE_ACLS: to_cluster,
    ApiKey.CREATE_ACLS: each_to_cluster(asked="creations", answered="results"),
    ApiKey.DELETE_ACLS: each_to_cluster(asked="filters", answered="filter_results"),
    ApiKey.DESCRIBE_CONFIGS: _settings("results"),
    ApiKey.ALTER_CONFIGS: _settings("responses"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: _describe_log_dirs,
    ApiKey.SASL_AUTHENTICATE: unguarded,
    ApiKey.CREATE_PARTITIONS: each_topic(answered="results"),
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _settings("responses"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: to_cluster,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: to_cluster,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: to_cluster,
    ApiKey.ALTER_CLIENT_QUOTAS: each_to_cluster(asked="entries", answered="entries"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: to_cluster,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram_users,
    ApiKey.DESCRIBE_QUORUM: to_cluster,
    ApiKey.UPDATE_FEATURES: to_cluster,
    ApiKey.DESCRIBE_CLUSTER: _describe_cluster,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: unguarded,
    ApiKey.PUSH_TELEMETRY: unguarded,
    ApiKey.LIST_CONFIG_RESOURCES: to_cluster,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
    DESCRIBE_ROLES_KEY: to_cluster,
    DESCRIBE_QUOTA_USE_KEY: to_cluster,
    ALTER_ROLES_KEY: each_to_cluster(asked="alterations", answered="results"),
}
