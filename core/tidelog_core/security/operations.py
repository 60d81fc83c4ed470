"""The operations that a client needs for each API, as data.

A request needs every ``Need`` of its API that applies to it, and one of the permissions of each.
An API that is not in ``OPERATIONS`` must not be served to clients. Source: Kafka's ``KafkaApis``,
``ControllerApis``, ``ConfigHelper`` and ``AclApis``, where they differ from Kafka's documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode
from tidelog_core.quota_messages import DESCRIBE_QUOTA_USE_KEY
from tidelog_core.role_messages import ALTER_ROLES_KEY, DESCRIBE_ROLES_KEY
from tidelog_core.security.acl import AclOperation, ResourceType

VERSION_MAX = 2**15 - 1


class Permission(NamedTuple):
    """An operation on a resource of a type: the one that the request names, or the cluster."""

    operation: AclOperation
    resource_type: ResourceType


class Unmet(Enum):
    """The consequence of a need that a client does not meet."""

    REFUSED = "refused"  # with the resource's code, for the whole request or for one element
    HIDDEN = "hidden"  # the element is left out, as if it were not there
    WITHHELD = "withheld"  # a part of the answer is empty


class When(Enum):
    """The requests, or elements of a request, that have a need."""

    ALWAYS = "always"
    TRANSACTIONAL = "it has a transactional id, or a transactional batch"
    NOT_TRANSACTIONAL = "it has no transactional id"
    TWO_PHASE_COMMIT = "it asks for two-phase commit"
    FROM_CONSUMER = "a consumer sends it"
    FROM_FOLLOWER = "a follower sends it"
    CREATES_TOPIC = "the topic is not there and would be created"
    ABOUT_TOPIC = "it is about a topic"
    ABOUT_GROUP = "it is about a group"
    ABOUT_TRANSACTIONAL_ID = "it is about a transactional id"
    ABOUT_SHARE_STATE = "it is about the coordinator of a share partition"
    ABOUT_CLUSTER = "it is about a broker, its loggers or client metrics"
    MATCHES_PATTERN = "the topic matches the member's pattern"
    ASKS_FOR_OPERATIONS = "it asks for the authorized operations"
    ANSWERS_CONFIGS = "the answer has the settings of the topic"
    ABOUT_OTHERS = "it is about a token of another user"


@dataclass(frozen=True, slots=True)
class Need:
    """One condition: the client may do one of the operations."""

    any_of: tuple[Permission, ...]
    when: When = When.ALWAYS
    unmet: Unmet = Unmet.REFUSED
    min_version: int = 0
    max_version: int = VERSION_MAX  # included


class ApiNeeds(NamedTuple):
    """The needs of one API; with none, every client may call it."""

    name: str
    needs: tuple[Need, ...] = ()


_T, _G, _C = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_X = ResourceType.TRANSACTIONAL_ID
_READ, _WRITE = AclOperation.READ, AclOperation.WRITE
_CREATE, _DELETE = AclOperation.CREATE, AclOperation.DELETE
_ALTER, _DESCRIBE = AclOperation.ALTER, AclOperation.DESCRIBE
_CLUSTER_ACTION = AclOperation.CLUSTER_ACTION
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS


def _need(
    operation: AclOperation,
    resource_type: ResourceType,
    when: When = When.ALWAYS,
    *,
    unmet: Unmet = Unmet.REFUSED,
) -> Need:
    return Need((Permission(operation, resource_type),), when, unmet)


def _configs(operation: AclOperation) -> tuple[Need, ...]:
    """Return the needs of an API about the settings of resources."""
    return (
        _need(operation, _T, When.ABOUT_TOPIC),
        _need(operation, _G, When.ABOUT_GROUP),
        _need(operation, _C, When.ABOUT_CLUSTER),
    )


_SEE_TOPIC = _need(_DESCRIBE, _T, unmet=Unmet.HIDDEN)
_TRANSACTION = _need(_WRITE, _X)
_CLUSTER_OPERATIONS = _need(
    _DESCRIBE, _C, When.ASKS_FOR_OPERATIONS, unmet=Unmet.WITHHELD
)  # the bit field is 0

OPERATIONS: Mapping[int, ApiNeeds] = {
    ApiKey.PRODUCE: ApiNeeds("Produce", (_need(_WRITE, _T), _need(_WRITE, _X, When.TRANSACTIONAL))),
    ApiKey.FETCH: ApiNeeds(
        "Fetch",
        (
            _need(_READ, _T, When.FROM_CONSUMER),
            _need(_CLUSTER_ACTION, _C, When.FROM_FOLLOWER),
        ),
    ),
    ApiKey.LIST_OFFSETS: ApiNeeds("ListOffsets", (_need(_DESCRIBE, _T),)),
    ApiKey.METADATA: ApiNeeds(
        "Metadata",
        (
            _SEE_TOPIC,
            Need((Permission(_CREATE, _C), Permission(_CREATE, _T)), When.CREATES_TOPIC),
            _CLUSTER_OPERATIONS,
        ),
    ),
    ApiKey.OFFSET_COMMIT: ApiNeeds("OffsetCommit", (_need(_READ, _G), _need(_READ, _T))),
    ApiKey.OFFSET_FETCH: ApiNeeds("OffsetFetch", (_need(_DESCRIBE, _G), _SEE_TOPIC)),
    ApiKey.FIND_COORDINATOR: ApiNeeds(
        "FindCoordinator",
        (
            _need(_DESCRIBE, _G, When.ABOUT_GROUP),
            _need(_DESCRIBE, _X, When.ABOUT_TRANSACTIONAL_ID),
            _need(_CLUSTER_ACTION, _C, When.ABOUT_SHARE_STATE),
        ),
    ),
    ApiKey.JOIN_GROUP: ApiNeeds("JoinGroup", (_need(_READ, _G),)),
    ApiKey.HEARTBEAT: ApiNeeds("Heartbeat", (_need(_READ, _G),)),
    ApiKey.LEAVE_GROUP: ApiNeeds("LeaveGroup", (_need(_READ, _G),)),
    ApiKey.SYNC_GROUP: ApiNeeds("SyncGroup", (_need(_READ, _G),)),
    ApiKey.DESCRIBE_GROUPS: ApiNeeds("DescribeGroups", (_need(_DESCRIBE, _G),)),
    ApiKey.LIST_GROUPS: ApiNeeds(
        "ListGroups",
        (Need((Permission(_DESCRIBE, _C), Permission(_DESCRIBE, _G)), unmet=Unmet.HIDDEN),),
    ),
    ApiKey.SASL_HANDSHAKE: ApiNeeds("SaslHandshake"),
    ApiKey.API_VERSIONS: ApiNeeds("ApiVersions"),
    ApiKey.CREATE_TOPICS: ApiNeeds(
        "CreateTopics",
        (
            Need((Permission(_CREATE, _C), Permission(_CREATE, _T))),
            _need(_DESCRIBE_CONFIGS, _T, When.ANSWERS_CONFIGS, unmet=Unmet.WITHHELD),
        ),
    ),
    ApiKey.DELETE_TOPICS: ApiNeeds(
        "DeleteTopics", (Need((Permission(_DELETE, _C), Permission(_DELETE, _T))),)
    ),
    ApiKey.DELETE_RECORDS: ApiNeeds("DeleteRecords", (_need(_DELETE, _T),)),
    ApiKey.INIT_PRODUCER_ID: ApiNeeds(
        "InitProducerId",
        (
            _need(_WRITE, _X, When.TRANSACTIONAL),
            _need(AclOperation.TWO_PHASE_COMMIT, _X, When.TWO_PHASE_COMMIT),
            # WRITE of any topic: ``Authorizer.decide_any`` (KIP-679).
            Need(
                (Permission(AclOperation.IDEMPOTENT_WRITE, _C), Permission(_WRITE, _T)),
                When.NOT_TRANSACTIONAL,
            ),
        ),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiNeeds(
        "OffsetForLeaderEpoch",
        (Need((Permission(_CLUSTER_ACTION, _C), Permission(_DESCRIBE, _T))),),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiNeeds(
        "AddPartitionsToTxn",
        (
            Need((Permission(_WRITE, _X),), max_version=3),
            Need((Permission(_WRITE, _T),), max_version=3),
            Need((Permission(_CLUSTER_ACTION, _C),), min_version=4),
        ),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiNeeds("AddOffsetsToTxn", (_TRANSACTION, _need(_READ, _G))),
    ApiKey.END_TXN: ApiNeeds("EndTxn", (_TRANSACTION,)),
    ApiKey.WRITE_TXN_MARKERS: ApiNeeds(
        "WriteTxnMarkers", (Need((Permission(_ALTER, _C), Permission(_CLUSTER_ACTION, _C))),)
    ),
    ApiKey.TXN_OFFSET_COMMIT: ApiNeeds(
        "TxnOffsetCommit", (_TRANSACTION, _need(_READ, _G), _need(_READ, _T))
    ),
    ApiKey.DESCRIBE_ACLS: ApiNeeds("DescribeAcls", (_need(_DESCRIBE, _C),)),
    ApiKey.CREATE_ACLS: ApiNeeds("CreateAcls", (_need(_ALTER, _C),)),
    ApiKey.DELETE_ACLS: ApiNeeds("DeleteAcls", (_need(_ALTER, _C),)),
    ApiKey.DESCRIBE_CONFIGS: ApiNeeds("DescribeConfigs", _configs(_DESCRIBE_CONFIGS)),
    ApiKey.ALTER_CONFIGS: ApiNeeds("AlterConfigs", _configs(_ALTER_CONFIGS)),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ApiNeeds("AlterReplicaLogDirs", (_need(_ALTER, _C),)),
    ApiKey.DESCRIBE_LOG_DIRS: ApiNeeds(
        "DescribeLogDirs", (_need(_DESCRIBE, _C, unmet=Unmet.WITHHELD),)
    ),
    ApiKey.SASL_AUTHENTICATE: ApiNeeds("SaslAuthenticate"),
    ApiKey.CREATE_PARTITIONS: ApiNeeds("CreatePartitions", (_need(_ALTER, _T),)),
    ApiKey.CREATE_DELEGATION_TOKEN: ApiNeeds(
        "CreateDelegationToken",
        (_need(AclOperation.CREATE_TOKENS, ResourceType.USER, When.ABOUT_OTHERS),),
    ),
    # Those who may are named in the token: its owner and its renewers.
    ApiKey.RENEW_DELEGATION_TOKEN: ApiNeeds("RenewDelegationToken"),
    ApiKey.EXPIRE_DELEGATION_TOKEN: ApiNeeds("ExpireDelegationToken"),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ApiNeeds(
        "DescribeDelegationToken",
        (
            Need(
                (
                    Permission(_DESCRIBE, ResourceType.DELEGATION_TOKEN),
                    Permission(AclOperation.DESCRIBE_TOKENS, ResourceType.USER),
                ),
                When.ABOUT_OTHERS,
                Unmet.HIDDEN,
            ),
        ),
    ),
    ApiKey.DELETE_GROUPS: ApiNeeds("DeleteGroups", (_need(_DELETE, _G),)),
    ApiKey.ELECT_LEADERS: ApiNeeds("ElectLeaders", (_need(_ALTER, _C),)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiNeeds("IncrementalAlterConfigs", _configs(_ALTER_CONFIGS)),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ApiNeeds(
        "AlterPartitionReassignments", (_need(_ALTER, _C),)
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiNeeds(
        "ListPartitionReassignments", (_need(_DESCRIBE, _C),)
    ),
    ApiKey.OFFSET_DELETE: ApiNeeds("OffsetDelete", (_need(_DELETE, _G), _need(_READ, _T))),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ApiNeeds(
        "DescribeClientQuotas", (_need(_DESCRIBE_CONFIGS, _C),)
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: ApiNeeds("AlterClientQuotas", (_need(_ALTER_CONFIGS, _C),)),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiNeeds(
        "DescribeUserScramCredentials", (_need(_DESCRIBE, _C),)
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ApiNeeds(
        "AlterUserScramCredentials", (_need(_ALTER, _C),)
    ),
    ApiKey.DESCRIBE_QUORUM: ApiNeeds("DescribeQuorum", (_need(_DESCRIBE, _C),)),
    ApiKey.UPDATE_FEATURES: ApiNeeds("UpdateFeatures", (_need(_ALTER, _C),)),
    ApiKey.DESCRIBE_CLUSTER: ApiNeeds("DescribeCluster", (_CLUSTER_OPERATIONS,)),
    ApiKey.DESCRIBE_PRODUCERS: ApiNeeds("DescribeProducers", (_need(_READ, _T),)),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiNeeds(
        "DescribeTransactions", (_need(_DESCRIBE, _X), _SEE_TOPIC)
    ),
    ApiKey.LIST_TRANSACTIONS: ApiNeeds(
        "ListTransactions", (_need(_DESCRIBE, _X, unmet=Unmet.HIDDEN),)
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ApiNeeds(
        "ConsumerGroupHeartbeat",
        (
            _need(_READ, _G),
            _need(_DESCRIBE, _T),
            _need(_DESCRIBE, _T, When.MATCHES_PATTERN, unmet=Unmet.HIDDEN),
        ),
    ),
    # Kafka's documentation and KIP-848 said READ (CVE-2026-41115).
    ApiKey.CONSUMER_GROUP_DESCRIBE: ApiNeeds(
        "ConsumerGroupDescribe", (_need(_DESCRIBE, _G), _need(_DESCRIBE, _T))
    ),
    # Everyone: a client's metrics are its own.
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: ApiNeeds("GetTelemetrySubscriptions"),
    ApiKey.PUSH_TELEMETRY: ApiNeeds("PushTelemetry"),
    ApiKey.LIST_CONFIG_RESOURCES: ApiNeeds("ListConfigResources", (_need(_DESCRIBE_CONFIGS, _C),)),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ApiNeeds("DescribeTopicPartitions", (_SEE_TOPIC,)),
    ApiKey.SHARE_GROUP_HEARTBEAT: ApiNeeds(
        "ShareGroupHeartbeat", (_need(_READ, _G), _need(_DESCRIBE, _T))
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: ApiNeeds(
        "ShareGroupDescribe", (_need(_DESCRIBE, _G), _need(_DESCRIBE, _T))
    ),
    ApiKey.SHARE_FETCH: ApiNeeds("ShareFetch", (_need(_READ, _G), _need(_READ, _T))),
    ApiKey.SHARE_ACKNOWLEDGE: ApiNeeds("ShareAcknowledge", (_need(_READ, _G), _need(_READ, _T))),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ApiNeeds(
        "DescribeShareGroupOffsets", (_need(_DESCRIBE, _G), _SEE_TOPIC)
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: ApiNeeds(
        "AlterShareGroupOffsets", (_need(_READ, _G), _need(_READ, _T))
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: ApiNeeds(
        "DeleteShareGroupOffsets", (_need(_DELETE, _G), _need(_READ, _T))
    ),
    # Tidelog's own.
    DESCRIBE_ROLES_KEY: ApiNeeds("DescribeRoles", (_need(_DESCRIBE, _C),)),
    ALTER_ROLES_KEY: ApiNeeds("AlterRoles", (_need(_ALTER, _C),)),
    DESCRIBE_QUOTA_USE_KEY: ApiNeeds("DescribeQuotaUse", (_need(_DESCRIBE_CONFIGS, _C),)),
}


def _sole_operations() -> Mapping[tuple[int, ResourceType], AclOperation]:
    found: dict[tuple[int, ResourceType], set[AclOperation]] = {}
    for api_key, api in OPERATIONS.items():
        for need in api.needs:
            for operation, resource_type in need.any_of:
                found.setdefault((api_key, resource_type), set()).add(operation)
    return {key: min(some) for key, some in found.items() if len(some) == 1}


_SOLE_OPERATIONS = _sole_operations()


def operation_needed(api_key: int, resource_type: ResourceType) -> AclOperation:
    """Return the operation that the API needs on resources of the type.

    Raises ``KeyError`` if it needs none of them, or one of several.
    """
    return _SOLE_OPERATIONS[api_key, resource_type]


REFUSAL_CODES: Mapping[ResourceType, ErrorCode] = {
    _T: ErrorCode.topic_authorization_failed,
    _G: ErrorCode.group_authorization_failed,
    _C: ErrorCode.cluster_authorization_failed,
    _X: ErrorCode.transactional_id_authorization_failed,
    ResourceType.DELEGATION_TOKEN: ErrorCode.delegation_token_authorization_failed,
    ResourceType.USER: ErrorCode.delegation_token_authorization_failed,  # about their tokens
}

# Kafka's ``AclEntry.supportedOperations``: the others have no effect on a resource of the type.
SUPPORTED_OPERATIONS: Mapping[ResourceType, frozenset[AclOperation]] = {
    _T: frozenset(
        {_READ, _WRITE, _CREATE, _DESCRIBE, _DELETE, _ALTER, _DESCRIBE_CONFIGS, _ALTER_CONFIGS}
    ),
    _G: frozenset({_READ, _DESCRIBE, _DELETE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS}),
    _C: frozenset(
        {
            *(_CREATE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _CLUSTER_ACTION),
            AclOperation.IDEMPOTENT_WRITE,
        }
    ),
    _X: frozenset({_DESCRIBE, _WRITE, AclOperation.TWO_PHASE_COMMIT}),
    ResourceType.DELEGATION_TOKEN: frozenset({_DESCRIBE}),
    ResourceType.USER: frozenset({AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS}),
}


def _bits_of(resource_type: ResourceType) -> int:
    return sum(1 << operation for operation in SUPPORTED_OPERATIONS[resource_type])


# The operations that a client may do on a node without ACLs, as answers show them: bit
# ``1 << operation``.
ON_TOPIC = _bits_of(ResourceType.TOPIC)
ON_CLUSTER = _bits_of(ResourceType.CLUSTER)
ON_GROUP = _bits_of(ResourceType.GROUP)
OPERATIONS_NOT_REQUESTED = -(2**31)
