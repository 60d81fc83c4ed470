"""Reads the changes that a request asked for from the request and its answer.

An answer names each topic, group, user and so on with its error, sometimes with one for each
partition; then the first error counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tidelog_core.admin.settings.config_resources import ConfigResourceType
from tidelog_core.api_keys import ApiKey
from tidelog_core.audit.events import Activity, Resource
from tidelog_core.errors import ErrorCode
from tidelog_core.role_messages import ALTER_ROLES_KEY, CHANGE, CREATE, DELETE
from tidelog_core.security.acl import AclOperation, AclPermission, PatternType, ResourceType
from tidelog_core.security.delegation_tokens import token_digest
from tidelog_core.security.scram_credentials import ScramMechanism

_CONFIG_RESOURCES = {
    ConfigResourceType.TOPIC: "Topic",
    ConfigResourceType.BROKER: "Broker",
    ConfigResourceType.BROKER_LOGGER: "BrokerLogger",
    ConfigResourceType.CLIENT_METRICS: "ClientMetrics",
    ConfigResourceType.GROUP: "Group",
}
_ROLE_OPERATIONS = {CREATE: "create", DELETE: "delete", CHANGE: "change"}
_DIGEST_DIGITS = 32  # of a delegation token's HMAC: they tell tokens apart, and log nobody in
# The values of their settings are no secrets. Those of a node may be.
_SHOWN_CONFIGS = frozenset(
    {ConfigResourceType.TOPIC, ConfigResourceType.CLIENT_METRICS, ConfigResourceType.GROUP}
)


class Change(NamedTuple):
    """A resource of a request, and how its change ended: ``none`` is success."""

    resource: Resource
    error: ErrorCode


Changes = Callable[[Any, Any], Iterable[Change]]
"""Returns the changes of a request and its answer, both of the route's newest classes."""


class ChangingApi(NamedTuple):
    """An API whose requests are recorded."""

    name: str
    activity: Activity
    changes: Changes


def _error_of(element: Any) -> ErrorCode:
    """Return the element's error, or the first one of its partitions."""
    for field in ("partitions", "partition_result", "topics"):
        for part in getattr(element, field, None) or ():
            if (error := _error_of(part)) is not ErrorCode.none:
                return error
    error = getattr(element, "error_code", ErrorCode.none)
    return ErrorCode(error)


def _named(kind: str, field: str, name: str) -> Changes:
    """Return the changes of an answer whose elements, in ``field``, have their name in ``name``."""

    def changes(_: Any, answer: Any) -> Iterator[Change]:
        for element in getattr(answer, field):
            found = getattr(element, name)
            if found is None:
                found = getattr(element, "topic_id", "")
            yield Change(Resource(kind, str(found)), _error_of(element))
        if _error_of_whole(answer) is not ErrorCode.none:
            yield Change(Resource("Cluster", "kafka-cluster"), _error_of_whole(answer))

    return changes


def _error_of_whole(answer: Any) -> ErrorCode:
    return ErrorCode(getattr(answer, "error_code", ErrorCode.none))


def _created_topics(request: Any, answer: Any) -> Iterator[Change]:
    configs = {
        topic.name: {config.name: config.value for config in topic.configs}
        for topic in request.topics
    }
    for topic in answer.topics:
        yield Change(Resource("Topic", topic.name, configs.get(topic.name, {})), topic.error_code)


def _configs(request: Any, answer: Any) -> Iterator[Change]:
    """Return the changes of settings, without the values of a broker's."""
    configs = {
        (one.resource_type, one.resource_name): {
            config.name: config.value if one.resource_type in _SHOWN_CONFIGS else None
            for config in one.configs
        }
        for one in request.resources
    }
    for one in answer.responses:
        kind = _CONFIG_RESOURCES.get(one.resource_type, str(one.resource_type))
        data = configs.get((one.resource_type, one.resource_name), {})
        yield Change(Resource(kind, one.resource_name, data), one.error_code)


def _created_acls(request: Any, answer: Any) -> Iterator[Change]:
    for acl, result in zip(request.creations, answer.results, strict=False):
        yield Change(_acl(acl, acl.resource_pattern_type), result.error_code)


def _deleted_acls(_: Any, answer: Any) -> Iterator[Change]:
    for result in answer.filter_results:
        for acl in result.matching_acls:
            yield Change(_acl(acl, acl.pattern_type), acl.error_code)
        if result.error_code is not ErrorCode.none:
            yield Change(Resource("Acl", ""), result.error_code)


def _acl(acl: Any, pattern_type: int) -> Resource:
    data = {
        "resource_type": _member(ResourceType, acl.resource_type),
        "pattern_type": _member(PatternType, pattern_type),
        "principal": acl.principal,
        "host": acl.host,
        "operation": _member(AclOperation, acl.operation),
        "permission": _member(AclPermission, acl.permission_type),
    }
    return Resource("Acl", acl.resource_name, data)


def _member(enum: Any, value: int) -> str:
    try:
        name: str = enum(value).name
    except ValueError:
        return str(value)
    return name


def _roles(request: Any, answer: Any) -> Iterator[Change]:
    data = {
        one.name: {
            "operation": _ROLE_OPERATIONS.get(one.operation, str(one.operation)),
            "added": ", ".join(one.added),
            "removed": ", ".join(one.removed),
        }
        for one in request.alterations
    }
    for result in answer.results:
        yield Change(Resource("Role", result.name, data.get(result.name, {})), result.error_code)


def _scram_users(request: Any, answer: Any) -> Iterator[Change]:
    """Return the changed users, with nothing of their passwords."""
    data: dict[str, dict[str, str | None]] = {}
    for one in request.upsertions:
        data.setdefault(one.name, {})[_mechanism(one.mechanism)] = "set"
    for one in request.deletions:
        data.setdefault(one.name, {})[_mechanism(one.mechanism)] = "removed"
    for result in answer.results:
        resource = Resource("User", result.user, data.get(result.user, {}))
        yield Change(resource, result.error_code)


def _mechanism(number: int) -> str:
    names = (one.value for one in ScramMechanism if one.number == number)
    return next(names, str(number))


def _created_token(_: Any, answer: Any) -> Iterator[Change]:
    data = {
        "owner": f"{answer.principal_type}:{answer.principal_name}",
        "token_id": answer.token_id,
    }
    yield Change(_token(answer.hmac, data), answer.error_code)


def _renewed_token(request: Any, answer: Any) -> Iterator[Change]:
    yield Change(_token(request.hmac, {}), answer.error_code)


def _token(token_hmac: bytes, data: dict[str, str | None]) -> Resource:
    """Return a delegation token: requests to renew one have nothing but its HMAC, a secret."""
    name = token_digest(token_hmac).hex()[:_DIGEST_DIGITS] if token_hmac else ""
    return Resource("DelegationToken", name, data)


def _quotas(request: Any, answer: Any) -> Iterator[Change]:
    data = {
        _entity(entry): {op.key: None if op.remove else str(op.value) for op in entry.ops}
        for entry in request.entries
    }
    for entry in answer.entries:
        entity = _entity(entry)
        yield Change(Resource("Quota", entity, data.get(entity, {})), entry.error_code)


def _entity(entry: Any) -> str:
    parts = sorted((one.entity_type, one.entity_name or "<default>") for one in entry.entity)
    return ", ".join(f"{kind} {name}" for kind, name in parts)


def _offsets(field: str, name: str) -> Changes:
    """Return the changes of a group's offsets: the group, with the topics."""

    def changes(request: Any, answer: Any) -> Iterator[Change]:
        topics = getattr(answer, field)
        by_error: dict[ErrorCode, list[str]] = {}
        for topic in topics:
            by_error.setdefault(_error_of(topic), []).append(getattr(topic, name))
        if not topics:
            by_error[_error_of_whole(answer)] = []
        for error, names in by_error.items():
            data = {"topics": ", ".join(names)}
            yield Change(Resource("Group", request.group_id, data), error)

    return changes


def _markers(request: Any, answer: Any) -> Iterator[Change]:
    del request
    for marker in answer.markers:
        resource = Resource("Producer", str(marker.producer_id))
        yield Change(resource, _error_of(marker))


_CREATE, _UPDATE, _DELETE = Activity.CREATE, Activity.UPDATE, Activity.DELETE

CHANGING_APIS: dict[int, ChangingApi] = {
    ApiKey.CREATE_TOPICS: ChangingApi("CreateTopics", _CREATE, _created_topics),
    ApiKey.DELETE_TOPICS: ChangingApi(
        "DeleteTopics", _DELETE, _named("Topic", "responses", "name")
    ),
    ApiKey.DELETE_RECORDS: ChangingApi("DeleteRecords", _DELETE, _named("Topic", "topics", "name")),
    ApiKey.WRITE_TXN_MARKERS: ChangingApi("WriteTxnMarkers", _UPDATE, _markers),
    ApiKey.CREATE_ACLS: ChangingApi("CreateAcls", _CREATE, _created_acls),
    ApiKey.DELETE_ACLS: ChangingApi("DeleteAcls", _DELETE, _deleted_acls),
    ApiKey.ALTER_CONFIGS: ChangingApi("AlterConfigs", _UPDATE, _configs),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ChangingApi(
        "AlterReplicaLogDirs", _UPDATE, _named("Topic", "results", "topic_name")
    ),
    ApiKey.CREATE_PARTITIONS: ChangingApi(
        "CreatePartitions", _UPDATE, _named("Topic", "results", "name")
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: ChangingApi("CreateDelegationToken", _CREATE, _created_token),
    ApiKey.RENEW_DELEGATION_TOKEN: ChangingApi("RenewDelegationToken", _UPDATE, _renewed_token),
    ApiKey.EXPIRE_DELEGATION_TOKEN: ChangingApi("ExpireDelegationToken", _UPDATE, _renewed_token),
    ApiKey.DELETE_GROUPS: ChangingApi(
        "DeleteGroups", _DELETE, _named("Group", "results", "group_id")
    ),
    ApiKey.ELECT_LEADERS: ChangingApi(
        "ElectLeaders", _UPDATE, _named("Topic", "replica_election_results", "topic")
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ChangingApi("IncrementalAlterConfigs", _UPDATE, _configs),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ChangingApi(
        "AlterPartitionReassignments", _UPDATE, _named("Topic", "responses", "name")
    ),
    ApiKey.OFFSET_DELETE: ChangingApi("OffsetDelete", _DELETE, _offsets("topics", "name")),
    ApiKey.ALTER_CLIENT_QUOTAS: ChangingApi("AlterClientQuotas", _UPDATE, _quotas),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ChangingApi(
        "AlterUserScramCredentials", _UPDATE, _scram_users
    ),
    ApiKey.UPDATE_FEATURES: ChangingApi(
        "UpdateFeatures", _UPDATE, _named("Feature", "results", "feature")
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: ChangingApi(
        "AlterShareGroupOffsets", _UPDATE, _offsets("responses", "topic_name")
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: ChangingApi(
        "DeleteShareGroupOffsets", _DELETE, _offsets("responses", "topic_name")
    ),
    ALTER_ROLES_KEY: ChangingApi("AlterRoles", _UPDATE, _roles),
}
