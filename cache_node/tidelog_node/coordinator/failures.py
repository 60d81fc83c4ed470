"""Maps a coordinator's failures to the errors that members get."""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from tidelog_core.errors import (
    ItemTooLarge,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    VersionConflict,
)


def error_code(error: TidelogError) -> ErrorCode:
    """Return the code that makes clients retry, or look up the coordinator again.

    Source: ``appendGroupMetadataErrorToResponseError`` of Kafka.
    """
    if isinstance(error, StoreUnavailable | OutcomeUnknown):
        return ErrorCode.coordinator_not_available
    if isinstance(error, VersionConflict):
        # Another coordinator of the shard has written, or an administrator's tool directly.
        return ErrorCode.not_coordinator
    if isinstance(error, ItemTooLarge):
        return ErrorCode.unknown_server_error
    return error.code


def offset_fetch_error_code(error: TidelogError) -> ErrorCode:
    """Return the code for OffsetFetch: consumers before 3.9 give up on some others."""
    code = error_code(error)
    if code is ErrorCode.coordinator_not_available:
        return ErrorCode.not_coordinator
    return code


def offset_commit_error_code(error: TidelogError) -> ErrorCode:
    """Return the code for OffsetCommit: a page is too large only because of long metadata."""
    if isinstance(error, ItemTooLarge):
        return ErrorCode.offset_metadata_too_large
    return error_code(error)
