"""The errors of the SDK: one tree with the core's errors, each with its Kafka code.

A node's error code arrives as the class with that code (``error_for``), the same class
that the node raised. Codes without a class get a subclass of ``NodeError``, made on first
use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from kio.schema.errors import ErrorCode
from tidelog_core.errors import (
    AuthenticationFailed,
    BrokerIdNotRegistered,
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    CorruptRecordBatch,
    DelegationTokenAuthDisabled,
    DelegationTokenAuthorizationFailed,
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    DelegationTokenRequestNotAllowed,
    DuplicateResource,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    FencedLeaderEpoch,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    InvalidConfig,
    InvalidGroupId,
    InvalidPartitions,
    InvalidPrincipalType,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidRecordState,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidShareSessionEpoch,
    InvalidTimestamp,
    InvalidTopic,
    InvalidTxnState,
    LeaderNotAvailable,
    MessageTooLarge,
    NonEmptyGroup,
    NoReassignmentInProgress,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PolicyViolation,
    PreferredLeaderNotAvailable,
    RecordListTooLarge,
    RequestTimedOut,
    ResourceNotFound,
    SecurityDisabled,
    ShareSessionLimitReached,
    ShareSessionNotFound,
    StorageError,
    ThrottlingQuotaExceeded,
    TidelogError,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    TopicDeletionDisabled,
    TransactionalIdAuthorizationFailed,
    UnacceptableCredential,
    UnknownLeaderEpoch,
    UnknownProducerId,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedCompression,
    UnsupportedMagic,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
)
from tidelog_core.model import TopicPartition

__all__ = [
    "AuthenticationFailed",
    "BrokerIdNotRegistered",
    "BrokerNotAvailable",
    "BufferExhausted",
    "ClientClosed",
    "ClusterAuthorizationFailed",
    "CommitFailed",
    "ConnectionFailed",
    "CoordinatorNotAvailable",
    "CorruptRecordBatch",
    "DelegationTokenAuthDisabled",
    "DelegationTokenAuthorizationFailed",
    "DelegationTokenExpired",
    "DelegationTokenNotFound",
    "DelegationTokenOwnerMismatch",
    "DelegationTokenRequestNotAllowed",
    "DeliveryTimedOut",
    "DuplicateResource",
    "ElectionNotNeeded",
    "EligibleLeadersNotAvailable",
    "EntryNotAnswered",
    "ErrorCode",
    "FencedInstanceId",
    "FencedLeaderEpoch",
    "GroupAuthorizationFailed",
    "GroupIdNotFound",
    "GroupNotEmpty",
    "GroupSubscribedToTopic",
    "IllegalGeneration",
    "InvalidConfig",
    "InvalidGroupId",
    "InvalidPartitions",
    "InvalidPrincipalType",
    "InvalidProducerEpoch",
    "InvalidProducerIdMapping",
    "InvalidRecord",
    "InvalidRecordState",
    "InvalidRegularExpression",
    "InvalidReplicationFactor",
    "InvalidRequest",
    "InvalidRow",
    "InvalidShareSessionEpoch",
    "InvalidTimestamp",
    "InvalidTopic",
    "InvalidTransactionTimeout",
    "InvalidTxnState",
    "LeaderNotAvailable",
    "LogTruncation",
    "MalformedResponse",
    "MessageTooLarge",
    "NoOffsetForPartition",
    "NoReassignmentInProgress",
    "NodeError",
    "NonEmptyGroup",
    "NotAssigned",
    "NotCoordinator",
    "NotEnoughReplicas",
    "NotEnoughReplicasAfterAppend",
    "NotKafka",
    "NotLeaderOrFollower",
    "OffsetNotAvailable",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "PartitionNotKnown",
    "PolicyViolation",
    "PreferredLeaderNotAvailable",
    "ProducerFenced",
    "RebalanceInProgress",
    "RequestTimedOut",
    "ResourceNotFound",
    "SecurityDisabled",
    "SeveralFailed",
    "ShareSessionLimitReached",
    "ShareSessionNotFound",
    "ThrottlingQuotaExceeded",
    "TidelogError",
    "TokenNotFetched",
    "TopicAlreadyExists",
    "TopicAuthorizationFailed",
    "TopicDeletionDisabled",
    "TransactionAborted",
    "TransactionOutcomeUnknown",
    "TransactionalIdAuthorizationFailed",
    "UnacceptableCredential",
    "UnknownLeaderEpoch",
    "UnknownMemberId",
    "UnknownProducerId",
    "UnknownTopicId",
    "UnknownTopicOrPartition",
    "UnreleasedInstanceId",
    "UnsupportedSaslMechanism",
    "UnsupportedVersion",
    "error_for",
]


TLS = "TLS"  # a protocol of ``NotKafka``


class ClientClosed(TidelogError):
    """The producer, consumer or admin was closed before the call was answered."""

    code = ErrorCode.invalid_request


class ConnectionFailed(TidelogError):
    """No connection to the node, or the connection broke before the answer arrived."""

    code = ErrorCode.network_exception
    hint = "check that a node listens there; `tidelog up` starts one on this machine"


class TokenNotFetched(ConnectionFailed):
    """No token to log in with: its issuer cannot be reached, or has none now."""

    hint = "check that the issuer of tokens can be reached from this machine, and answers"


class NotKafka(ConnectionFailed):
    """A server answered that does not speak Kafka's protocol, or speaks it over TLS only."""

    hint = "check the port"

    @property
    def retriable(self) -> bool:
        """Whether another attempt may help: the port belongs to another server."""
        return False

    def __init__(self, address: object, protocol: str) -> None:
        super().__init__(f"{address} is not a Kafka port: it answered {protocol}")
        self.address, self.protocol = address, protocol
        if protocol == TLS:
            self.args = (f"{address} wants TLS",)
            self.hint = "set security.protocol to SSL or SASL_SSL, and ssl to a context"


class PartitionNotKnown(RequestTimedOut):
    """The topic did not get the partition within ``max_block_ms``."""

    hint = "`tidelog topic alter` gives a topic more partitions"

    def __init__(
        self, topic: str, partition: int, *, partition_count: int, timeout_s: float
    ) -> None:
        super().__init__(
            f"topic {topic!r} has partitions 0 to {partition_count - 1} "
            f"and did not get {partition} within {timeout_s:g} s"
        )
        self.topic, self.partition, self.partition_count = topic, partition, partition_count


class MalformedResponse(TidelogError):
    """The node's answer cannot be decoded."""

    code = ErrorCode.network_exception


class EntryNotAnswered(MalformedResponse):
    """The node's answer lacks something that was asked for; a change may be made or not.

    ``entries`` are the names of what it lacks.
    """

    hint = "try again; if it was a change, check first whether it was made"

    def __init__(self, entries: Iterable[object], *, about: str) -> None:
        self.entries = tuple(sorted(map(str, entries)))
        first, more = self.entries[0], len(self.entries) - 1
        others = f" and {more} more" if more else ""
        answer = f"{about}: the node's answer" if about else "the node's answer"
        super().__init__(f"{answer} lacks {first}{others}")


class InvalidRegularExpression(TidelogError):
    """The pattern is not a valid RE2 expression, or is too large."""

    code = ErrorCode.invalid_regular_expression


class SeveralFailed(TidelogError):
    """Several of the requested changes failed, each with its own error; the others are done."""

    def __init__(self, errors: Mapping[str, TidelogError]) -> None:
        hints = {error.hint for error in errors.values()}
        is_shared = len(hints) == 1
        super().__init__(
            "; ".join(
                f"{error} ({error.hint})" if error.hint and not is_shared else str(error)
                for error in errors.values()
            )
        )
        self.errors = dict(errors)
        self.hint = hints.pop() if is_shared else ""


class NodeError(TidelogError):
    """The node answered with a code that has no class of its own; see ``code``."""


class BufferExhausted(TidelogError):
    """The producer's buffer stayed full for ``max_block_ms``; the record was not buffered."""

    code = ErrorCode.request_timed_out
    hint = "raise buffer_memory_bytes or max_block_ms, or send more slowly"


class DeliveryTimedOut(TidelogError):
    """The record was not acknowledged within ``delivery_timeout_ms``.

    ``may_be_written`` is false only if the record certainly is not in the log.
    """

    code = ErrorCode.request_timed_out

    def __init__(self, message: str, *, may_be_written: bool) -> None:
        super().__init__(message)
        self.may_be_written = may_be_written


class ProducerFenced(TidelogError):
    """Another producer has the ``transactional_id``, or this one's transaction took too long.

    The coordinator fences a producer whose transaction is open for ``transaction_timeout_ms``;
    in a cluster with KIP-890 it only aborts the transaction. This producer can only be closed.
    """

    code = ErrorCode.producer_fenced
    hint = "close this producer and make a new one"


class TransactionAborted(TidelogError):
    """The transaction cannot be committed; readers of committed data see nothing of it.

    ``cause`` is the first error. The producer can begin another transaction.
    """

    code = ErrorCode.transaction_abortable

    def __init__(self, message: str, *, cause: TidelogError | None = None) -> None:
        super().__init__(message if cause is None else f"{message}: {cause}")
        self.cause = cause
        if cause is not None:
            self.hint = cause.hint


class TransactionOutcomeUnknown(TidelogError):
    """The commit was not answered: either all of the transaction is committed, or nothing.

    The next transaction of this producer waits for the outcome.
    """

    code = ErrorCode.request_timed_out


class InvalidTransactionTimeout(TidelogError):
    """The node does not allow such a long ``transaction_timeout_ms``."""

    code = ErrorCode.invalid_transaction_timeout
    hint = "lower it, or raise transaction.max.timeout.ms on the nodes"


class NoOffsetForPartition(TidelogError):
    """The partition has no committed offset and ``auto_offset_reset`` is ``none``."""

    code = ErrorCode.offset_out_of_range
    hint = "seek, or set auto_offset_reset to earliest or latest"


class InvalidRow(InvalidRecord):
    """A row of a table cannot become a record."""


class MissingRecords(TidelogError):
    """The bucket should have these offsets, and neither its tier nor a chain does."""

    code = ErrorCode.offset_out_of_range
    hint = "`tidelog verify` names what is damaged or missing; read from the end of the gap on"

    def __init__(self, partition: TopicPartition, start: int, end: int) -> None:
        super().__init__(f"offsets [{start}, {end}) of {partition} are missing in the bucket")
        self.partition, self.start, self.end = partition, start, end


class LogTruncation(TidelogError):
    """Records that were read are no longer in the log, and ``auto_offset_reset`` is ``none``.

    ``divergent_offset`` is the first offset that differs, None if the leader does not know
    it. Raised by every poll until ``seek``. Source: KIP-320.
    """

    code = ErrorCode.offset_out_of_range
    hint = "seek to an offset, or set auto_offset_reset to earliest or latest"

    def __init__(
        self, partition: TopicPartition, fetch_offset: int, *, divergent_offset: int | None
    ) -> None:
        where = "an unknown offset" if divergent_offset is None else f"{divergent_offset}"
        super().__init__(
            f"{partition}: the log was truncated; it differs from {where} on, "
            f"and the next offset to fetch was {fetch_offset}"
        )
        self.partition, self.fetch_offset = partition, fetch_offset
        self.divergent_offset = divergent_offset


class NotAssigned(TidelogError):
    """The partition is not assigned to this consumer."""

    code = ErrorCode.invalid_request


class CommitFailed(TidelogError):
    """The group has moved on: the partitions may belong to another member now."""

    code = ErrorCode.illegal_generation


class FencedInstanceId(TidelogError):
    """Another consumer has joined with the same ``group_instance_id``."""

    code = ErrorCode.fenced_instance_id
    hint = "give each consumer its own group_instance_id"


class UnreleasedInstanceId(TidelogError):
    """Another consumer with the same ``group_instance_id`` is a member and has not left."""

    code = ErrorCode.unreleased_instance_id
    hint = "stop the other consumer, or wait for its session to expire"


class UnknownMemberId(TidelogError):
    """The coordinator no longer has this consumer as a member."""

    code = ErrorCode.unknown_member_id


class IllegalGeneration(TidelogError):
    """The group has rebalanced without this consumer."""

    code = ErrorCode.illegal_generation


class RebalanceInProgress(TidelogError):
    """The group is being rebalanced; the call may succeed after the next poll."""

    code = ErrorCode.rebalance_in_progress


class GroupSubscribedToTopic(TidelogError):
    """A member of the group is subscribed to the topic."""

    code = ErrorCode.group_subscribed_to_topic
    hint = "stop the members that are subscribed, and try again"


GroupNotEmpty = NonEmptyGroup  # the former name, for programs that catch it

_CLASSES: dict[ErrorCode, type[TidelogError]] = {
    cls.code: cls
    for cls in (
        AuthenticationFailed,
        BrokerIdNotRegistered,
        BrokerNotAvailable,
        ClusterAuthorizationFailed,
        CoordinatorNotAvailable,
        CorruptRecordBatch,
        DelegationTokenAuthDisabled,
        DelegationTokenAuthorizationFailed,
        DelegationTokenExpired,
        DelegationTokenNotFound,
        DelegationTokenOwnerMismatch,
        DelegationTokenRequestNotAllowed,
        DuplicateResource,
        ElectionNotNeeded,
        EligibleLeadersNotAvailable,
        FencedInstanceId,
        FencedLeaderEpoch,
        GroupAuthorizationFailed,
        GroupIdNotFound,
        GroupSubscribedToTopic,
        IllegalGeneration,
        InvalidGroupId,
        InvalidPartitions,
        InvalidPrincipalType,
        InvalidProducerEpoch,
        InvalidProducerIdMapping,
        InvalidRecord,
        InvalidRecordState,
        InvalidRegularExpression,
        InvalidReplicaAssignment,
        InvalidReplicationFactor,
        InvalidRequest,
        InvalidShareSessionEpoch,
        InvalidTimestamp,
        InvalidTopic,
        InvalidTransactionTimeout,
        InvalidTxnState,
        LeaderNotAvailable,
        MessageTooLarge,
        NoReassignmentInProgress,
        NonEmptyGroup,
        NotCoordinator,
        NotEnoughReplicas,
        NotEnoughReplicasAfterAppend,
        NotLeaderOrFollower,
        OffsetNotAvailable,
        OutOfOrderSequence,
        PolicyViolation,
        PreferredLeaderNotAvailable,
        ProducerFenced,
        RebalanceInProgress,
        RecordListTooLarge,
        RequestTimedOut,
        ResourceNotFound,
        SecurityDisabled,
        ShareSessionLimitReached,
        ShareSessionNotFound,
        StorageError,
        ThrottlingQuotaExceeded,
        TopicAlreadyExists,
        TopicAuthorizationFailed,
        TopicDeletionDisabled,
        TransactionalIdAuthorizationFailed,
        UnacceptableCredential,
        UnknownLeaderEpoch,
        UnknownMemberId,
        UnknownProducerId,
        UnknownTopicId,
        UnknownTopicOrPartition,
        UnreleasedInstanceId,
        UnsupportedCompression,
        UnsupportedMagic,
        UnsupportedSaslMechanism,
        UnsupportedVersion,
    )
}


@contextmanager
def needing_arrow() -> Iterator[None]:
    """Raise ``InvalidConfig`` if an import of the block lacks pyarrow or numba."""
    try:
        yield
    except ImportError as error:
        problem = f"Arrow needs an extra: pip install 'tidelog[arrow]' ({error})"
        raise InvalidConfig([problem]) from None


def error_for(code: ErrorCode, message: str | None, *, about: object = None) -> TidelogError:
    """Return the error with a node's ``code``.

    ``about`` names the subject of the answer (a topic, a partition, a group); the node's
    ``message`` follows it, or the code's name.
    """
    text = message or code.name.replace("_", " ")
    if about is not None:
        text = f"{about}: {text}"
    if code is ErrorCode.invalid_config:
        return InvalidConfig([text])
    cls = _CLASSES.get(code)
    error = cls(text) if cls is not None else _node_error(code)(text)
    if isinstance(error, UnknownTopicOrPartition) and isinstance(about, TopicPartition):
        error.topic = about.topic
    return error


def topic_error(code: ErrorCode, message: str | None, *, topic: str) -> TidelogError:
    """Return the error with a node's ``code`` about a topic."""
    error = error_for(code, message, about=f"topic {topic!r}")
    if isinstance(error, UnknownTopicOrPartition):
        return UnknownTopicOrPartition.of_topic(topic, ())
    return error


@cache
def _node_error(code: ErrorCode) -> type[NodeError]:
    name = "".join(part.capitalize() for part in code.name.split("_"))
    return type(name, (NodeError,), {"code": code, "__doc__": code.name})
