"""Maps the errors of a failed change to the errors that administrators get."""

from __future__ import annotations

from tidelog_core.errors import ErrorCode, StoreUnavailable, TidelogError, VersionConflict


def admin_error_code(error: TidelogError) -> ErrorCode:
    """Return the error's code. For an unavailable or contended store it is a time-out.

    Kafka answers the same if its controllers cannot commit. Clients retry NOT_CONTROLLER by
    themselves, and would then repeat changes that succeeded for other topics.
    """
    if isinstance(error, StoreUnavailable | VersionConflict):
        return ErrorCode.request_timed_out
    return error.code
