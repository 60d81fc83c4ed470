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
    0: ApiNeeds("Produce", (_need(_WRITE, _T), _need(_WRITE, _X, When.TRANSACTIONAL))),
    1: ApiNeeds(
        "Fetch",
        (
            _need(_READ, _T, When.FROM_CONSUMER),
            _need(_CLUSTER_ACTION, _C, When.FROM_FOLLOWER),
        ),
    ),
    2: ApiNeeds("ListOffsets", (_need(_DESCRIBE, _T),)),
    3: ApiNeeds(
        "Metadata",
        (
            _SEE_TOPIC,
            Need((Permission(_CREATE, _C), Permission(_CREATE, _T)), When.CREATES_TOPIC),
            _CLUSTER_OPERATIONS,
        ),
    ),
    8: ApiNeeds("OffsetCommit", (_need(_READ, _G), _need(_READ, _T))),
    9: ApiNeeds("OffsetFetch", (_need(_DESCRIBE, _G), _SEE_TOPIC)),
    10: ApiNeeds(
        "FindCoordinator",
        (
            _need(_DESCRIBE, _G, When.ABOUT_GROUP),
            _need(_DESCRIBE, _X, When.ABOUT_TRANSACTIONAL_ID),
            _need(_CLUSTER_ACTION, _C, When.ABOUT_SHARE_STATE),
        ),
    ),
    11: ApiNeeds("JoinGroup", (_need(_READ, _G),)),
    12: ApiNeeds("Heartbeat", (_need(_READ, _G),)),
    13: ApiNeeds("LeaveGroup", (_need(_READ, _G),)),
    14: ApiNeeds("SyncGroup", (_need(_READ, _G),)),
    15: ApiNeeds("DescribeGroups", (_need(_DESCRIBE, _G),)),
    16: ApiNeeds(
        "ListGroups",
        (Need((Permission(_DESCRIBE, _C), Permission(_DESCRIBE, _G)), unmet=Unmet.HIDDEN),),
    ),
    17: ApiNeeds("SaslHandshake"),
    18: ApiNeeds("ApiVersions"),
    19: ApiNeeds(
        "CreateTopics",
        (
            Need((Permission(_CREATE, _C), Permission(_CREATE, _T))),
            _need(_DESCRIBE_CONFIGS, _T, When.ANSWERS_CONFIGS, unmet=Unmet.WITHHELD),
        ),
    ),
    20: ApiNeeds("DeleteTopics", (Need((Permission(_DELETE, _C), Permission(_DELETE, _T))),)),
    21: ApiNeeds("DeleteRecords", (_need(_DELETE, _T),)),
    22: ApiNeeds(
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
    23: ApiNeeds(
        "OffsetForLeaderEpoch",
        (Need((Permission(_CLUSTER_ACTION, _C), Permission(_DESCRIBE, _T))),),
    ),
    24: ApiNeeds(
        "AddPartitionsToTxn",
        (
            Need((Permission(_WRITE, _X),), max_version=3),
            Need((Permission(_WRITE, _T),), max_version=3),
            Need((Permission(_CLUSTER_ACTION, _C),), min_version=4),
        ),
    ),
    25: ApiNeeds("AddOffsetsToTxn", (_TRANSACTION, _need(_READ, _G))),
    26: ApiNeeds("EndTxn", (_TRANSACTION,)),
    27: ApiNeeds(
        "WriteTxnMarkers", (Need((Permission(_ALTER, _C), Permission(_CLUSTER_ACTION, _C))),)
    ),
    28: ApiNeeds("TxnOffsetCommit", (_TRANSACTION, _need(_READ, _G), _need(_READ, _T))),
    29: ApiNeeds("DescribeAcls", (_need(_DESCRIBE, _C),)),
    30: ApiNeeds("CreateAcls", (_need(_ALTER, _C),)),
    31: ApiNeeds("DeleteAcls", (_need(_ALTER, _C),)),
    32: ApiNeeds("DescribeConfigs", _configs(_DESCRIBE_CONFIGS)),
    33: ApiNeeds("AlterConfigs", _configs(_ALTER_CONFIGS)),
    34: ApiNeeds("AlterReplicaLogDirs", (_need(_ALTER, _C),)),
    35: ApiNeeds("DescribeLogDirs", (_need(_DESCRIBE, _C, unmet=Unmet.WITHHELD),)),
    36: ApiNeeds("SaslAuthenticate"),
    37: ApiNeeds("CreatePartitions", (_need(_ALTER, _T),)),
    38: ApiNeeds(
        "CreateDelegationToken",
        (_need(AclOperation.CREATE_TOKENS, ResourceType.USER, When.ABOUT_OTHERS),),
    ),
    # Those who may are named in the token: its owner and its renewers.
    39: ApiNeeds("RenewDelegationToken"),
    40: ApiNeeds("ExpireDelegationToken"),
    41: ApiNeeds(
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
    42: ApiNeeds("DeleteGroups", (_need(_DELETE, _G),)),
    43: ApiNeeds("ElectLeaders", (_need(_ALTER, _C),)),
    44: ApiNeeds("IncrementalAlterConfigs", _configs(_ALTER_CONFIGS)),
    45: ApiNeeds("AlterPartitionReassignments", (_need(_ALTER, _C),)),
    46: ApiNeeds("ListPartitionReassignments", (_need(_DESCRIBE, _C),)),
    47: ApiNeeds("OffsetDelete", (_need(_DELETE, _G), _need(_READ, _T))),
    48: ApiNeeds("DescribeClientQuotas", (_need(_DESCRIBE_CONFIGS, _C),)),
    49: ApiNeeds("AlterClientQuotas", (_need(_ALTER_CONFIGS, _C),)),
    50: ApiNeeds("DescribeUserScramCredentials", (_need(_DESCRIBE, _C),)),
    51: ApiNeeds("AlterUserScramCredentials", (_need(_ALTER, _C),)),
    55: ApiNeeds("DescribeQuorum", (_need(_DESCRIBE, _C),)),
    57: ApiNeeds("UpdateFeatures", (_need(_ALTER, _C),)),
    60: ApiNeeds("DescribeCluster", (_CLUSTER_OPERATIONS,)),
    61: ApiNeeds("DescribeProducers", (_need(_READ, _T),)),
    65: ApiNeeds("DescribeTransactions", (_need(_DESCRIBE, _X), _SEE_TOPIC)),
    66: ApiNeeds("ListTransactions", (_need(_DESCRIBE, _X, unmet=Unmet.HIDDEN),)),
    68: ApiNeeds(
        "ConsumerGroupHeartbeat",
        (
            _need(_READ, _G),
            _need(_DESCRIBE, _T),
            _need(_DESCRIBE, _T, When.MATCHES_PATTERN, unmet=Unmet.HIDDEN),
        ),
    ),
    # Kafka's documentation and KIP-848 said READ (CVE-2026-41115).
    69: ApiNeeds("ConsumerGroupDescribe", (_need(_DESCRIBE, _G), _need(_DESCRIBE, _T))),
    # Everyone: a client's metrics are its own.
    71: ApiNeeds("GetTelemetrySubscriptions"),
    72: ApiNeeds("PushTelemetry"),
    74: ApiNeeds("ListConfigResources", (_need(_DESCRIBE_CONFIGS, _C),)),
    75: ApiNeeds("DescribeTopicPartitions", (_SEE_TOPIC,)),
    76: ApiNeeds("ShareGroupHeartbeat", (_need(_READ, _G), _need(_DESCRIBE, _T))),
    77: ApiNeeds("ShareGroupDescribe", (_need(_DESCRIBE, _G), _need(_DESCRIBE, _T))),
    78: ApiNeeds("ShareFetch", (_need(_READ, _G), _need(_READ, _T))),
    79: ApiNeeds("ShareAcknowledge", (_need(_READ, _G), _need(_READ, _T))),
    90: ApiNeeds("DescribeShareGroupOffsets", (_need(_DESCRIBE, _G), _SEE_TOPIC)),
    91: ApiNeeds("AlterShareGroupOffsets", (_need(_READ, _G), _need(_READ, _T))),
    92: ApiNeeds("DeleteShareGroupOffsets", (_need(_DELETE, _G), _need(_READ, _T))),
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
