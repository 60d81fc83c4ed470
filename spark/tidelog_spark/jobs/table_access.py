"""The error of a table that the job may not write, and the permission that it lacks."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def named_permission(table: str, action: str, *foreign: type[Exception]) -> Iterator[None]:
    """Raise ``TableAccessDenied`` for errors of access to the table, which name the permission.

    ``action`` is write or delete. ``foreign`` are errors of a library that tell it in their text.
    """
    caught: tuple[type[Exception], ...] = (OSError, *foreign)
    try:
        yield
    except caught as error:
        is_denied = any(one in str(error) for one in _TEXTS)
        if not is_denied and getattr(error, "errno", None) not in _NUMBERS:
            raise
        reason = " ".join(str(error).split())[:500]
        raise TableAccessDenied(
            f"the job may not {action} {table}: it needs {_PERMISSIONS[action]}, and the key of KMS"
            f" if there is one; grant that and run it again: no record is lost or twice ({reason})"
        ) from None
