"""Maps the errors of a failed change to the errors that administrators get."""

from __future__ import annotations

from tidelog_core.errors import ErrorCode, StoreUnavailable, TidelogError, VersionConflict


def admin_error_code(error: TidelogError) -> ErrorCode:
    """Return the error's code; a store that is away or contended is a time-out.

    So Kafka answers where its controllers cannot commit. NOT_CONTROLLER, which clients
    retry by themselves, would have them repeat what succeeded for other topics.
    """
    if isinstance(error, StoreUnavailable | VersionConflict):
        return ErrorCode.request_timed_out
    return error.code
