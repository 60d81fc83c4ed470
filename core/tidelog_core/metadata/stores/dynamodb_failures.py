"""Maps failed calls to DynamoDB to Tidelog's errors.

Source: the error tables of the DynamoDB developer guide, «Error handling» and
«TransactWriteItems».
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from aiohttp import ClientConnectorError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
)


class Outcome(Enum):
    """The known outcome of a failed call."""

    CONDITION_FAILED = auto()  # nothing written: an item was not as expected
    NOT_NOW = auto()  # nothing written: contention or throttling, worth another try
    UNREACHABLE = auto()  # nothing sent, worth another try
    EXPIRED = auto()  # nothing written; a retry with new credentials may succeed
    UNKNOWN = auto()  # it may have been written
    REFUSED = auto()  # nothing written, and trying again will not help


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call. ``failed_actions`` are the indexes whose condition did not hold."""

    outcome: Outcome
    reason: str
    failed_actions: tuple[int, ...] = ()


_NOT_NOW = frozenset(
    {
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "Throttling",
        "TransactionConflictException",
    }
)
# Reasons besides a failed condition for one action of a canceled transaction.
_NOT_NOW_REASONS = frozenset(
    {"ProvisionedThroughputExceeded", "ThrottlingError", "TransactionConflict"}
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException"})
_UNKNOWN = frozenset(
    {
        "InternalServerError",
        "InternalFailure",
        "ServiceUnavailable",
        # An earlier request with this token is under way; probably our own.
        "TransactionInProgressException",
    }
)


def classify(error: ClientError | BotoCoreError) -> Failure:
    """Return the meaning of the error."""
    if isinstance(error, ClientError):
        return _classify_answer(error)
    reason = str(error)
    if isinstance(error, ConnectTimeoutError) or _could_not_connect(error):
        return Failure(Outcome.UNREACHABLE, reason)
    if isinstance(error, CredentialRetrievalError):
        return Failure(Outcome.EXPIRED, reason)
    if isinstance(error, HTTPClientError | ConnectionClosedError | EndpointConnectionError):
        return Failure(Outcome.UNKNOWN, reason)
    return Failure(Outcome.REFUSED, reason)  # no credentials, no region, a bad parameter


def _could_not_connect(error: BotoCoreError) -> bool:
    """Whether there was no connection to send the request on.

    aiobotocore reports a connection that was reset in the middle of a call with the same
    class, and then the request may have been carried out.
    """
    if not isinstance(error, EndpointConnectionError):
        return False
    cause = error.kwargs.get("error")
    return cause is None or isinstance(cause, ClientConnectorError | socket.gaierror)


def _classify_answer(error: ClientError) -> Failure:
    details = error.response.get("Error", {})
    code, reason = details.get("Code", ""), f"{details.get('Code')}: {details.get('Message')}"
    if code == "ConditionalCheckFailedException":
        return Failure(Outcome.CONDITION_FAILED, reason)
    if code == "TransactionCanceledException":
        reasons = error.response.get("CancellationReasons", [])
        return _classify_cancellation([r.get("Code") or "None" for r in reasons], reason)
    if code in _NOT_NOW:
        return Failure(Outcome.NOT_NOW, reason)
    if code in _EXPIRED:
        return Failure(Outcome.EXPIRED, reason)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _UNKNOWN or status >= 500:
        return Failure(Outcome.UNKNOWN, reason)
    return Failure(Outcome.REFUSED, reason)


def _classify_cancellation(codes: Sequence[str], reason: str) -> Failure:
    failed = tuple(i for i, code in enumerate(codes) if code == "ConditionalCheckFailed")
    if failed:
        return Failure(Outcome.CONDITION_FAILED, reason, failed)
    if any(code in _NOT_NOW_REASONS for code in codes):
        return Failure(Outcome.NOT_NOW, reason)
    return Failure(Outcome.REFUSED, reason)
