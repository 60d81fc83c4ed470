"""Maps the errors of an Iceberg catalog to those that a caller can act on.

A catalog is reached through the library of its kind: requests (REST), botocore (Glue, DynamoDB),
SQLAlchemy (SQL) or thrift (Hive). Only an error that asking again cannot mend is no
``StoreUnavailable``: the job tries those again, and ends for others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitStateUnknownException,
    DynamoDbError,
    ForbiddenError,
    NotInstalledError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
    WaitingForLockException,
)
from requests.exceptions import RequestException
from tidelog_core.errors import (
    ErrorCode,
    InvalidConfig,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
)

from tidelog_spark.jobs.tables.table_access import TableAccessDenied, named_permission

# Answers of AWS's services. Source: their API references, common errors.
_DENIED = (
    *("AccessDenied", "Unauthorized", "NotAuthorized", "AuthFailure", "UnrecognizedClient"),
    *("InvalidClientTokenId", "InvalidSignature", "SignatureDoesNotMatch"),
)
_PASSING = (
    *("Throttl", "TooManyRequests", "LimitExceeded", "ThroughputExceeded", "Timeout"),
    *("ExpiredToken", "RequestExpired", "ConcurrentModification", "ResourceNotReady"),
    *("InternalService", "InternalServer", "TransactionConflict"),
)

_CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")
_DENYING = (UnauthorizedError, ForbiddenError, OAuthError)
_AWAY = (
    *(ServiceUnavailableError, ServerError, TooManyRequestsError, AuthorizationExpiredError),
    *(RequestException, DynamoDbError, WaitingForLockException),
)


class CatalogRefused(TidelogError):
    """The catalog does not do what it is asked, now or later. Nothing was changed."""

    code = ErrorCode.invalid_request
    hint = "check the properties of the catalog and the table's name"


class mapped_errors:  # used as a function
    """Raises the catalog's and the files' errors of access as ``TableAccessDenied``.

    Raises others of the catalog as ``StoreUnavailable`` if they may pass, else as
    ``CatalogRefused`` or ``InvalidConfig``. ``is_commit``: as ``OutcomeUnknown`` if they may pass.

    After ``OutcomeUnknown`` a commit may be in the table or not: the next run reads which.
    No generator: that could not raise errors again that are immutable, as those of thrift.
    """

    def __init__(self, name: str, *, is_commit: bool = False) -> None:
        self._name, self._is_commit = name, is_commit
        self._access = named_permission(name, "write")

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if not isinstance(error, Exception):
            return
        self._access.__exit__(kind, error, trace)
        mapped = _mapped(self._name, error, is_commit=self._is_commit)
        if mapped is not None:
            raise mapped from None


def _mapped(name: str, error: Exception, *, is_commit: bool) -> TidelogError | None:
    """Return the error to raise instead, ``None`` for one that is no catalog's."""
    mappings: tuple[tuple[tuple[type[Exception], ...], Callable[[], TidelogError]], ...] = (
        (_DENYING, lambda: _denied(name, error)),
        (
            (CommitStateUnknownException,),
            lambda: OutcomeUnknown(f"the commit to {name} may have happened: {text_of(error)}"),
        ),
        (_AWAY, lambda: _away(name, error, is_commit=is_commit)),
        ((RESTError,), lambda: _refused(name, error)),
        (
            (NotInstalledError, ImportError),
            lambda: InvalidConfig([f"the catalog needs a package: {text_of(error)}"]),
        ),
        (
            _loaded("botocore.exceptions", "BotoCoreError", "ClientError"),
            lambda: _of_aws(name, error, is_commit=is_commit),
        ),
        (
            _loaded("sqlalchemy.exc", "SQLAlchemyError"),
            lambda: _of_database(name, error, is_commit=is_commit),
        ),
        (
            _loaded("thrift.Thrift", "TException"),
            lambda: _of_hive(name, error, is_commit=is_commit),
        ),
    )
    return next((of() for classes, of in mappings if isinstance(error, classes)), None)


def _of_aws(name: str, error: Exception, *, is_commit: bool) -> TidelogError:
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):  # ClientError: the service has answered.
        code = str(answer.get("Error", {}).get("Code", ""))
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code.startswith(_DENIED):
            return _denied(name, error)
        if status >= 500 or status == 429 or any(one in code for one in _PASSING):
            return _away(name, error, is_commit=is_commit)
        return _refused(name, error)
    credentials = _loaded("botocore.exceptions", "NoCredentialsError", "PartialCredentialsError")
    if isinstance(error, credentials):
        return _denied(name, error)
    passing = (
        *("HTTPClientError", "ConnectionError"),
        *("CredentialRetrievalError", "MetadataRetrievalError"),
    )
    if isinstance(error, _loaded("botocore.exceptions", *passing)):
        return _away(name, error, is_commit=is_commit)
    return InvalidConfig([f"the Iceberg catalog cannot be used: {text_of(error)}"])


def _of_database(name: str, error: Exception, *, is_commit: bool) -> TidelogError:
    """Of SQLAlchemy's classes, those of a database that is away, locked, or loses a connection."""
    passing = ("OperationalError", "InterfaceError", "InternalError", "TimeoutError")
    if isinstance(error, _loaded("sqlalchemy.exc", *passing)):
        return _away(name, error, is_commit=is_commit)
    if getattr(error, "connection_invalidated", False):
        return _away(name, error, is_commit=is_commit)
    return _refused(name, error)


def _of_hive(name: str, error: Exception, *, is_commit: bool) -> TidelogError:
    """A ``MetaException`` is the metastore's word for anything, such as its database being away."""
    is_away = isinstance(error, _loaded("thrift.transport.TTransport", "TTransportException"))
    if is_away or type(error).__name__ == "MetaException":
        return _away(name, error, is_commit=is_commit)
    return _refused(name, error)


def _refused(name: str, error: Exception) -> CatalogRefused:
    return CatalogRefused(f"the Iceberg catalog refuses {name}: {text_of(error)}")


def _denied(name: str, error: Exception) -> TableAccessDenied:
    return TableAccessDenied(
        f"the Iceberg catalog does not let the job change {name}: {text_of(error)}; its"
        " user needs the rights to create the table and to commit to it"
    )


def _away(name: str, error: Exception, *, is_commit: bool) -> TidelogError:
    if is_commit:
        return OutcomeUnknown(
            f"the Iceberg catalog does not answer, so the commit to {name} may have happened:"
            f" {text_of(error)}"
        )
    return StoreUnavailable(f"the Iceberg catalog does not answer: {text_of(error)}")


def _loaded(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Return classes of a module if it is loaded: otherwise nothing can have raised them."""
    found = sys.modules.get(module)
    return () if found is None else tuple(getattr(found, name) for name in names)


def text_of(error: Exception) -> str:
    """Return the error's text, without users and passwords of URLs."""
    text = _CREDENTIALS.sub("", " ".join(str(error).split()))
    return text[:500] or type(error).__name__
