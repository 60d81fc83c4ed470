"""The error of a table that the job may not write, and the permission that it lacks."""

from __future__ import annotations

import errno

from tidelog_core.errors import ErrorCode, TidelogError

# As in the texts of Arrow's and delta-rs's errors, which have no class for it.
_TEXTS = (
    *("ACCESS_DENIED", "AccessDenied", "Access Denied", "Forbidden", "PermissionDenied"),
    *("ReadOnlyFilesystem", "Read-only file system"),
)
_NUMBERS = (errno.EACCES, errno.EPERM, errno.EROFS)
_PERMISSIONS = {
    "write": "s3:PutObject and s3:AbortMultipartUpload on its objects in S3, or write permission"
    " on its folder",
    "delete": "s3:DeleteObject on its objects in S3, or write permission on its folder",
}


class TableAccessDenied(TidelogError):
    """The job may not do this with the table. Nothing of the run is in the table."""

    code = ErrorCode.cluster_authorization_failed


class named_permission:  # used as a function
    """Raises ``TableAccessDenied`` for errors of access to the table, which name the permission.

    ``action`` is write or delete. ``foreign`` are errors of a library that tell it in their text.
    No generator: that could not raise errors again that are immutable, as those of thrift.
    """

    def __init__(self, table: str, action: str, *foreign: type[Exception]) -> None:
        self._table, self._action = table, action
        self._caught: tuple[type[Exception], ...] = (OSError, *foreign)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if not isinstance(error, self._caught):
            return
        is_denied = any(one in str(error) for one in _TEXTS)
        # A folder's store has the system's error as its cause.
        numbers = {getattr(one, "errno", None) for one in (error, error.__cause__)}
        if not is_denied and numbers.isdisjoint(_NUMBERS):
            return
        reason = " ".join(str(error).split())[:500]
        needed = _PERMISSIONS[self._action]
        raise TableAccessDenied(
            f"the job may not {self._action} {self._table}: it needs {needed}, and the key of KMS"
            f" if there is one; grant that and run it again: no record is lost or twice ({reason})"
        ) from None
