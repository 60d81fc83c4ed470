"""One error tree. Every error carries its Kafka code and whether a retry may help.

Source: the error table of the Kafka protocol guide.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import ClassVar

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "TidelogError"]


class TidelogError(Exception):
    """The root of every error that Tidelog raises on purpose."""

    code: ClassVar[ErrorCode] = ErrorCode.unknown_server_error
    # The operator's next step. Empty if the message has it, or if nothing can be done.
    # An instance may have a hint of its own.
    hint: str = ""

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later without being changed."""
        return self.code.retriable


_CHECK_FIRST = "try again; if it was a change, check first whether it was made"
_START_REPLICAS = (
    "`tidelog topic describe` shows who is in sync: start the other nodes, or lower"
    " min.insync.replicas"
)


# -- any request --


class InvalidRequest(TidelogError):
    """The request contradicts itself or lacks a part."""

    code = ErrorCode.invalid_request


class UnsupportedVersion(TidelogError):
    """Client and server share no version of the API with the requested feature."""

    code = ErrorCode.unsupported_version
    hint = "update the older of the two"


class PolicyViolation(TidelogError):
    """A rule of this cluster forbids the change."""

    code = ErrorCode.policy_violation


class ThrottlingQuotaExceeded(TidelogError):
    """The client has created and deleted too many partitions, and must wait."""

    code = ErrorCode.throttling_quota_exceeded


class RequestTimedOut(TidelogError):
    """The caller's timeout has passed.

    On a node, this part of the request was not begun. For a client, no answer came: the
    request may still have been carried out.
    """

    code = ErrorCode.request_timed_out
    hint = _CHECK_FIRST


class OutcomeUnknown(TidelogError):
    """A write to a store may or may not have happened; read before trying again."""

    code = ErrorCode.request_timed_out
    hint = _CHECK_FIRST


class Interrupted(TidelogError):
    """The work has stopped at the end of a step, to be continued from there."""

    code = ErrorCode.request_timed_out
    hint = "run it again: it continues"


# -- messages and records --


class MalformedMessage(TidelogError, ValueError):
    """The bytes are no valid protocol message of the expected type.

    ``field`` is the path of the field at fault, from the message's name on.
    """

    code = ErrorCode.invalid_request

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field} {reason}")
        self.field, self.reason = field, reason


class TooManyElements(TidelogError):
    """A protocol message has more array elements than its reader allows.

    ``field`` is the array that begins before the limit and ends behind it.
    """

    code = ErrorCode.invalid_request

    def __init__(self, field: str, elements_max: int) -> None:
        super().__init__(f"{field} has more elements than the {elements_max} that are allowed")
        self.field, self.elements_max = field, elements_max


class OffsetOutOfRange(TidelogError):
    """The offset is outside the log's ``[start, end]``."""

    code = ErrorCode.offset_out_of_range

    def __init__(self, partition: object, offset: int, *, start: int, end: int) -> None:
        super().__init__(f"offset {offset} of {partition} is outside [{start}, {end}]")
        self.partition, self.offset, self.start, self.end = partition, offset, start, end


class CorruptRecordBatch(TidelogError):
    """Bytes that should be record batches are not: CRC, lengths or counts disagree."""

    code = ErrorCode.corrupt_message


class InvalidRecord(TidelogError):
    """The batch is whole, but the broker must not store it.

    ``record_indexes`` are the records at fault, if the broker checked records.
    """

    code = ErrorCode.invalid_record

    def __init__(self, problem: str, *, record_indexes: Sequence[int] = ()) -> None:
        super().__init__(problem)
        self.record_indexes = tuple(record_indexes)


class UnsupportedMagic(TidelogError):
    """The records are in a message format other than version 2."""

    code = ErrorCode.unsupported_for_message_format


class UnsupportedCompression(TidelogError):
    """The batch names a compression codec that does not exist or is not allowed here."""

    code = ErrorCode.unsupported_compression_type


class MessageTooLarge(TidelogError):
    """A batch is larger than ``max.message.bytes``."""

    code = ErrorCode.message_too_large
    hint = "send smaller batches, or raise the topic's max.message.bytes"


class RecordListTooLarge(TidelogError):
    """A batch is larger than one segment may be."""

    code = ErrorCode.record_list_too_large


class InvalidTimestamp(TidelogError):
    """A record's timestamp is further from the broker's clock than the topic allows."""

    code = ErrorCode.invalid_timestamp


# -- producers and transactions --


class OutOfOrderSequence(TidelogError):
    """An idempotent producer's batch does not follow its last one."""

    code = ErrorCode.out_of_order_sequence_number


class InvalidProducerEpoch(TidelogError):
    """A newer incarnation of the same producer has written."""

    code = ErrorCode.invalid_producer_epoch


class UnknownProducerId(TidelogError):
    """The request needs a known producer id, and this one is unknown."""

    code = ErrorCode.unknown_producer_id


class InvalidProducerIdMapping(TidelogError):
    """The transactional id belongs to no producer, or to another one."""

    code = ErrorCode.invalid_producer_id_mapping


class InvalidTxnState(TidelogError):
    """The transaction is not in a state that allows this."""

    code = ErrorCode.invalid_txn_state


# -- partitions and their leaders --


class NotLeaderOrFollower(TidelogError):
    """This node does not lead (or follow) the partition."""

    code = ErrorCode.not_leader_or_follower


class LeaderNotAvailable(TidelogError):
    """The partition has no leader just now."""

    code = ErrorCode.leader_not_available
    hint = "`tidelog topic describe` names the nodes that have it: start one that is in sync"


class OffsetNotAvailable(TidelogError):
    """A new leader does not know yet up to which offset the partition is committed."""

    code = ErrorCode.offset_not_available


class NotEnoughReplicas(TidelogError):
    """Fewer replicas are in sync than ``min.insync.replicas``; nothing was written."""

    code = ErrorCode.not_enough_replicas
    hint = _START_REPLICAS


class NotEnoughReplicasAfterAppend(TidelogError):
    """The records were written, but fewer replicas than ``min.insync.replicas`` have them."""

    code = ErrorCode.not_enough_replicas_after_append
    hint = _START_REPLICAS


class FencedLeaderEpoch(TidelogError):
    """The caller's leader epoch is older than ours."""

    code = ErrorCode.fenced_leader_epoch


class UnknownLeaderEpoch(TidelogError):
    """The caller's leader epoch is newer than ours."""

    code = ErrorCode.unknown_leader_epoch


class NoReassignmentInProgress(TidelogError):
    """There is no reassignment of the partition to cancel."""

    code = ErrorCode.no_reassignment_in_progress


class ElectionNotNeeded(TidelogError):
    """The partition is led as the election would have it."""

    code = ErrorCode.election_not_needed


class PreferredLeaderNotAvailable(TidelogError):
    """The first replica is dead or not in sync."""

    code = ErrorCode.preferred_leader_not_available


class EligibleLeadersNotAvailable(TidelogError):
    """No live replica may lead."""

    code = ErrorCode.eligible_leaders_not_available


# -- topics, settings and brokers --


class UnknownTopicOrPartition(TidelogError):
    """No such topic or partition."""

    code = ErrorCode.unknown_topic_or_partition
    hint = "`tidelog topic list` shows the topics there are"
    topic: str | None = None  # its name, if the error is about one topic or its partition

    @classmethod
    def of_topic(cls, name: str, known: Collection[str]) -> UnknownTopicOrPartition:
        """Return the error for a topic that is none of the known ones; names a similar one."""
        error = cls(f"there is no topic {name!r}")
        error.topic = name
        near = difflib.get_close_matches(name, sorted(known), n=1)
        if near:
            error.hint = f"did you mean {near[0]!r}?"
        return error


class UnknownTopicId(TidelogError):
    """No topic has this id."""

    code = ErrorCode.unknown_topic_id


class TopicAlreadyExists(TidelogError):
    """A topic of this name is there already."""

    code = ErrorCode.topic_already_exists
    hint = "`tidelog topic alter` changes its settings and adds partitions"


class InvalidTopic(TidelogError):
    """The topic's name is not allowed, or it is reserved."""

    code = ErrorCode.invalid_topic_exception


class InvalidPartitions(TidelogError):
    """The number of partitions is not allowed."""

    code = ErrorCode.invalid_partitions


class InvalidReplicationFactor(TidelogError):
    """The replication factor is not possible with the live brokers."""

    code = ErrorCode.invalid_replication_factor
    hint = "start more nodes, or ask for fewer replicas"


class InvalidReplicaAssignment(TidelogError):
    """The assignment of replicas names unknown brokers, repeats one, or has gaps."""

    code = ErrorCode.invalid_replica_assignment


class TopicDeletionDisabled(TidelogError):
    """``delete.topic.enable`` is false."""

    code = ErrorCode.topic_deletion_disabled
    hint = "set delete.topic.enable to true on the nodes"


class InvalidConfig(TidelogError):
    """One or more settings are unknown or out of bounds; all are reported together."""

    code = ErrorCode.invalid_config

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class ClusterNotFound(TidelogError):
    """The store has no cluster, not the requested one, or several and none was requested."""

    code = ErrorCode.inconsistent_cluster_id


class BrokerNotAvailable(TidelogError):
    """The broker cannot be reached by other nodes."""

    code = ErrorCode.broker_not_available
    hint = "stop it, and start it with the program that the other nodes run"


class BrokerIdNotRegistered(TidelogError):
    """No broker of this id has ever been part of the cluster."""

    code = ErrorCode.broker_id_not_registered


# -- groups --


class NotCoordinator(TidelogError):
    """Another node coordinates this group."""

    code = ErrorCode.not_coordinator


class CoordinatorNotAvailable(TidelogError):
    """The group's coordinator is not known just now."""

    code = ErrorCode.coordinator_not_available


class InvalidGroupId(TidelogError):
    """The group id is empty or too long."""

    code = ErrorCode.invalid_group_id


class GroupIdNotFound(TidelogError):
    """There is no such group."""

    code = ErrorCode.group_id_not_found
    hint = "`tidelog group list` shows the groups there are"


class NonEmptyGroup(TidelogError):
    """The group has members, which would not learn of the change."""

    code = ErrorCode.non_empty_group
    hint = "stop its members, and try again"


class InvalidRecordState(TidelogError):
    """The member has not acquired the records that it acknowledges, or has lost them."""

    code = ErrorCode.invalid_record_state


class ShareSessionNotFound(TidelogError):
    """There is no such share session: it was closed, or never opened."""

    code = ErrorCode.share_session_not_found


class InvalidShareSessionEpoch(TidelogError):
    """The request does not follow the last one of its share session."""

    code = ErrorCode.invalid_share_session_epoch


class ShareSessionLimitReached(TidelogError):
    """This node keeps as many share sessions as it may."""

    code = ErrorCode.share_session_limit_reached


# -- logins and rights --


class AuthenticationFailed(TidelogError):
    """The client has not proved who it is.

    The message is for the client and does not show whether the user exists. ``reason`` is for
    the node's log; neither has any part of the client's data.
    """

    code = ErrorCode.sasl_authentication_failed

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class UnsupportedSaslMechanism(TidelogError):
    """There is no such mechanism, or it may not be used here."""

    code = ErrorCode.unsupported_sasl_mechanism


class UnacceptableCredential(TidelogError):
    """The credential must not be stored: its user or its numbers are not allowed."""

    code = ErrorCode.unacceptable_credential


class ResourceNotFound(TidelogError):
    """There is nothing of this name."""

    code = ErrorCode.resource_not_found


class DuplicateResource(TidelogError):
    """A request names something twice."""

    code = ErrorCode.duplicate_resource


class SecurityDisabled(TidelogError):
    """The cluster has no authorizer, so it has no ACLs."""

    code = ErrorCode.security_disabled


class TopicAuthorizationFailed(TidelogError):
    """The caller may not do this with the topic."""

    code = ErrorCode.topic_authorization_failed


class GroupAuthorizationFailed(TidelogError):
    """The caller may not do this with the group."""

    code = ErrorCode.group_authorization_failed


class ClusterAuthorizationFailed(TidelogError):
    """The caller may not do this with the cluster."""

    code = ErrorCode.cluster_authorization_failed


class TransactionalIdAuthorizationFailed(TidelogError):
    """The caller may not use the transactional id, or gave none although one is needed."""

    code = ErrorCode.transactional_id_authorization_failed


class InvalidPrincipalType(TidelogError):
    """Only users own and renew delegation tokens."""

    code = ErrorCode.invalid_principal_type


class DelegationTokenAuthDisabled(TidelogError):
    """The cluster has no delegation tokens."""

    code = ErrorCode.delegation_token_auth_disabled
    hint = "set delegation.token.secret.key of the nodes, the same for all"


class DelegationTokenNotFound(TidelogError):
    """There is no delegation token with this HMAC: it was removed, has expired or never was."""

    code = ErrorCode.delegation_token_not_found


class DelegationTokenOwnerMismatch(TidelogError):
    """The client is neither the owner nor a renewer of the delegation token."""

    code = ErrorCode.delegation_token_owner_mismatch


class DelegationTokenRequestNotAllowed(TidelogError):
    """The client has not proved who it is, or has by a delegation token."""

    code = ErrorCode.delegation_token_request_not_allowed
    hint = "log in as a user, by a password or a certificate"


class DelegationTokenAuthorizationFailed(TidelogError):
    """The client may not make tokens of another user."""

    code = ErrorCode.delegation_token_authorization_failed
    hint = "`tidelog acl add --user-principal User:NAME --operation CreateTokens` allows it"


class DelegationTokenExpired(TidelogError):
    """The delegation token has expired."""

    code = ErrorCode.delegation_token_expired


# -- disks and stores --

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class StorageError(TidelogError):
    """The local disk failed; the partition is offline on this node until it is repaired."""

    code = ErrorCode.kafka_storage_error
    hint = "docs/operations.md says what a node does about its disk, and what is left to you"

    def __init__(self, message: str = "", *, errno: int | None = None) -> None:
        """``errno`` is the operating system's, if it reported the error."""
        super().__init__(message)
        self.errno = errno


class StoreUnavailable(TidelogError):
    """The metadata or object store did not answer; nothing was written.

    The code is one that a consumer retries: it may have asked for tiered records.
    """

    code = ErrorCode.kafka_storage_error
    hint = "check the store's address, its credentials and the network, and try again"


class StoreFull(StoreUnavailable):
    """The metadata store's disk is full; nothing was written."""

    hint = "make room on its disk, and try again"


class VersionConflict(TidelogError):
    """A conditional write lost: the item is not at the version it was read at."""

    code = ErrorCode.invalid_update_version

    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        super().__init__(f"changed by another writer: {', '.join('/'.join(key) for key in keys)}")
        self.keys = tuple(keys)


class CommitTooLarge(TidelogError):
    """The items of one commit are together larger than the stores allow."""

    code = ErrorCode.policy_violation

    def __init__(self, size_bytes: int, *, limit: int) -> None:
        super().__init__(f"the commit's items are {size_bytes} bytes, the limit is {limit}")
        self.size_bytes, self.limit = size_bytes, limit


class ItemTooLarge(TidelogError):
    """A metadata item would be larger than the stores take."""

    code = ErrorCode.policy_violation

    def __init__(self, key: tuple[str, str], size_bytes: int, *, limit: int) -> None:
        super().__init__(f"item {'/'.join(key)} would be {size_bytes} bytes, the limit is {limit}")
        self.key, self.size_bytes, self.limit = key, size_bytes, limit


class CorruptItem(TidelogError):
    """A metadata item's body does not match its record."""

    code = ErrorCode.unknown_server_error
    hint = "docs/restore.md says which value is used until then, and how to repair an item"

    def __init__(self, key: tuple[str, str], problem: str) -> None:
        super().__init__(f"metadata item {'/'.join(key)} is corrupt: {problem}")
        self.key, self.problem = key, problem


class MetadataSetBack(TidelogError):
    """The bucket has acknowledged records of a partition that its item does not cover.

    The metadata store was set back to an earlier time. A leader would now assign the offsets of
    these records to other records.
    """

    code = ErrorCode.kafka_storage_error
    hint = "stop all nodes, and run `tidelog restore` into an empty metadata store"

    def __init__(self, partition: object, *, known: object, found: str) -> None:
        super().__init__(
            f"the metadata store was set back: its last leader epoch of {partition} is {known},"
            f" but the bucket has {found}"
        )
        self.partition, self.known, self.found = partition, known, found


class StoreNotEmpty(TidelogError):
    """The metadata store holds something already, so no cluster is restored into it."""

    code = ErrorCode.invalid_request
    hint = "name a store that is empty"

    def __init__(self, problem: str) -> None:
        super().__init__(f"the metadata store is not empty: {problem}")
        self.problem = problem


class StoreNotFound(StoreUnavailable):
    """A store on this machine is not there: nodes make it when they start."""

    hint = ""  # The message has it, for programs that show no hints.

    def __init__(self, what: str, path: Path) -> None:
        super().__init__(f"no {what} at {path}: check the path, and that this machine has it")
        self.path = path


class WrongObjectStore(StoreUnavailable):
    """The object store is not the one that the cluster writes; nothing was written to it."""

    hint = (
        "mount the file system or correct the address; if the objects are lost for good, accept"
        " this store with 'tidelog tier accept-store'"
    )


class ObjectNotFound(TidelogError):
    """The object store holds no object of this key."""

    code = ErrorCode.kafka_storage_error

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key!r} is not there")
        self.key = key


class ObjectExists(TidelogError):
    """The object store already holds an object of this key."""

    code = ErrorCode.kafka_storage_error

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key!r} is already there")
        self.key = key


class CorruptObject(TidelogError):
    """An object's bytes do not match its format or its metadata."""

    code = ErrorCode.kafka_storage_error
    hint = "`tidelog verify` names every object that is damaged or missing"

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"object {key!r} is corrupt: {problem}")
        self.key, self.problem = key, problem


class InvalidObjectKey(TidelogError):
    """No object may have this key."""

    code = ErrorCode.invalid_request

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"object key {key!r} is not allowed: {problem}")
        self.key, self.problem = key, problem


class TierUnavailable(TidelogError):
    """The tier worker cannot serve just now (it is starting, restarting or overloaded)."""

    code = ErrorCode.kafka_storage_error
    hint = "try again in a few seconds"


class TierRewritten(TidelogError):
    """A partition's tiered segments were replaced every time they were read.

    The segments that were read may lack records that the tier has.
    """

    code = ErrorCode.kafka_storage_error
    hint = "try again"


class SchemasMovedOn(TidelogError):
    """The bucket's journal of schemas does not continue the schemas of this metadata store.

    The store was set back, or the journal was restored into another one. An id that was given out
    now could have been given to another schema.
    """

    code = ErrorCode.kafka_storage_error
    hint = "stop all nodes, and run `tidelog restore` into an empty metadata store"

    def __init__(self, problem: str) -> None:
        super().__init__(f"no schema can be changed: {problem}")
        self.problem = problem


class SchemaJournalDamaged(TidelogError):
    """An entry of the registry's journal is lost, and is not written again yet."""

    code = ErrorCode.kafka_storage_error
    hint = "put the object back from an older version of the bucket, or see docs/schema-registry.md"

    def __init__(self, key: str) -> None:
        super().__init__(f"entry {key!r} of the schema journal is damaged or missing")
        self.key = key


def is_out_of_resources(error: Exception) -> bool:
    """Whether this process, or its machine, lacked descriptors or memory.

    That often passes within seconds.
    """
    return isinstance(error, StorageError | OSError) and error.errno in _OUT_OF_RESOURCES
