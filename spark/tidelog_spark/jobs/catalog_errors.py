"""Maps the errors of an Iceberg catalog to those that a caller can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.exceptions import (
    CommitStateUnknownException,
    ForbiddenError,
    OAuthError,
    ServerError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from requests.exceptions import ConnectionError as NoConnection
from requests.exceptions import RequestException
from tidelog_core.errors import OutcomeUnknown, StoreUnavailable

from tidelog_spark.jobs.table_access import TableAccessDenied, named_permission


@contextmanager
def mapped_errors(name: str) -> Iterator[None]:
    """Raise the catalog's and the files' errors of access as ``TableAccessDenied``.

    Raise others of the catalog as ``StoreUnavailable`` and ``OutcomeUnknown``.

    After ``OutcomeUnknown`` a commit may be in the table or not: the next run reads which.
    """
    try:
        with named_permission(name, "write"):
            yield
    except (UnauthorizedError, ForbiddenError, OAuthError) as error:
        raise TableAccessDenied(
            f"the Iceberg catalog does not let the job change {name}: {_text(error)}; its"
            " user needs the rights to create the table and to commit to it"
        ) from None
    except CommitStateUnknownException as error:
        raise OutcomeUnknown(f"the commit to {name} may have happened: {_text(error)}") from None
    except (ServiceUnavailableError, ServerError, NoConnection) as error:
        raise StoreUnavailable(f"the Iceberg catalog does not answer: {_text(error)}") from None
    except RequestException as error:
        raise StoreUnavailable(f"the Iceberg catalog failed: {_text(error)}") from None


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
