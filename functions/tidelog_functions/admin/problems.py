"""Error answers in the form of RFC 9457."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from tidelog_core.admin.failures import admin_error_code
from tidelog_core.errors import (
    CorruptItem,
    CorruptObject,
    CorruptRecordBatch,
    ErrorCode,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    VersionConflict,
)

RETRY_AFTER_SECONDS = 1

_STATUS: Mapping[ErrorCode, int] = {
    ErrorCode.topic_deletion_disabled: 403,
    ErrorCode.topic_authorization_failed: 403,
    ErrorCode.group_authorization_failed: 403,
    ErrorCode.cluster_authorization_failed: 403,
    ErrorCode.unknown_topic_or_partition: 404,
    ErrorCode.unknown_topic_id: 404,
    ErrorCode.group_id_not_found: 404,
    ErrorCode.broker_id_not_registered: 404,
    ErrorCode.no_reassignment_in_progress: 404,
    ErrorCode.resource_not_found: 404,
    ErrorCode.topic_already_exists: 409,
    ErrorCode.throttling_quota_exceeded: 409,
    ErrorCode.non_empty_group: 409,
}


class HttpProblem(TidelogError):
    """The request does not match the contract, or HTTP rules out an answer."""

    code = ErrorCode.invalid_request

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = dict(headers or {})


class Unauthorized(HttpProblem):
    """API Gateway has passed on no IAM identity."""

    code = ErrorCode.cluster_authorization_failed

    def __init__(self) -> None:
        super().__init__(
            401, "The request has no IAM identity: sign it with AWS Signature Version 4."
        )


class Misconfigured(HttpProblem):
    """The function's environment lacks something that only this request needs."""

    code = ErrorCode.unknown_server_error

    def __init__(self, detail: str) -> None:
        super().__init__(500, detail)


def status_of(error: TidelogError) -> int:
    """Return the error's HTTP status: 4xx for the caller's errors, 5xx for ours."""
    if isinstance(error, HttpProblem):
        return error.status
    if isinstance(error, StoreUnavailable | VersionConflict | OutcomeUnknown | ObjectNotFound):
        return 503
    if isinstance(error, CorruptItem | CorruptObject | CorruptRecordBatch):
        return 500
    return _STATUS.get(error.code, 422)


def problem_of(error: TidelogError) -> dict[str, Any]:
    """Return the body that describes the error."""
    status = status_of(error)
    code = admin_error_code(error)
    detail = str(error)
    if isinstance(error, OutcomeUnknown):
        detail = f"The outcome is unknown, so check it before trying again: {detail}"
    body = problem(status, code, detail, is_retriable=status == 503)
    return {**body, "hint": error.hint} if error.hint else body


def problem(
    status: int, code: ErrorCode, detail: str, *, is_retriable: bool = False
) -> dict[str, Any]:
    """Return a problem's body."""
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "error": code.name.upper(),
        "code": int(code.value),
        "retriable": is_retriable,
    }


def headers_of(error: TidelogError) -> dict[str, str]:
    """Return the answer's headers for the error."""
    if isinstance(error, HttpProblem):
        return error.headers
    return {"retry-after": str(RETRY_AFTER_SECONDS)} if status_of(error) == 503 else {}
