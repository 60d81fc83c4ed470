"""Opens metadata stores by URL.

sqlite:///var/lib/tidelog/metadata.db     an absolute path
sqlite:metadata.db                        a path relative to the working directory
dynamodb://table                          region and credentials from the environment
dynamodb://table?region=eu-central-1&endpoint=http://127.0.0.1:8000
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tidelog_core.errors import InvalidConfig, StoreNotFound, StoreUnavailable
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

FORMS = "sqlite:///path or dynamodb://table?region=…&endpoint=…"


def open_metadata_store(url: str, *, may_be_new: bool = False) -> MetadataStore:
    """Return the store of the URL, not yet connected. Raises ``InvalidConfig``.

    Raises ``StoreNotFound`` for a file that is missing, unless the store ``may_be_new``: then it is
    empty, and the first call makes the file. Raises ``StoreUnavailable`` for a file that this
    process may not see.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "sqlite":
            path = _sqlite_path(url, host=parts.netloc, path=parts.path, query=parts.query)
            if not may_be_new:
                _require_file(path)
            return SqliteMetadataStore(path)
        case "dynamodb":
            return _open_dynamodb(url, table=parts.netloc, path=parts.path, query=parts.query)
    raise InvalidConfig([f"metadata store {url!r}: must be {FORMS}"])


def require_metadata_store(url: str) -> None:
    """Raise as ``open_metadata_store`` if the store is one of this machine and cannot be opened."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        _require_file(_sqlite_path(url, host=parts.netloc, path=parts.path, query=parts.query))


@asynccontextmanager
async def opened_metadata_store(
    url: str, *, may_be_new: bool = False
) -> AsyncIterator[MetadataStore]:
    """Open the store for the length of the block. Raises as ``open_metadata_store``."""
    store = open_metadata_store(url, may_be_new=may_be_new)
    try:
        yield store
    finally:
        await store.close()


def never_lost() -> bool:
    """Return that the store was not lost: for stores that cannot be deleted while open."""
    return False


def loss_of(store: MetadataStore) -> Callable[[], bool]:
    """Return a check, for any thread, of whether the open store was deleted or replaced."""
    return store.is_lost if isinstance(store, SqliteMetadataStore) else never_lost


def _sqlite_path(url: str, *, host: str, path: str, query: str) -> Path:
    if host or query or not path.strip("/"):
        raise InvalidConfig([f"metadata store {url!r}: must be sqlite:///path"])
    return Path(unquote(path))


def _require_file(path: Path) -> None:
    try:
        is_there = path.exists()
    except OSError as error:
        raise StoreUnavailable(f"the metadata store's file cannot be seen: {error}") from error
    if not is_there:
        raise StoreNotFound("metadata store", path)


def _open_dynamodb(url: str, *, table: str, path: str, query: str) -> MetadataStore:
    options = parse_qs(query, keep_blank_values=True)
    problems = [f"unknown option {name!r}" for name in options if name not in _DYNAMODB_OPTIONS]
    problems += [
        f"option {name!r} must be given once, with a value"
        for name, values in options.items()
        if name in _DYNAMODB_OPTIONS and (len(values) > 1 or not values[0])
    ]
    if not table or path.strip("/"):
        problems.append("must be dynamodb://table?region=…&endpoint=…")
    if problems:
        raise InvalidConfig([f"metadata store {url!r}: {problem}" for problem in problems])
    try:
        from tidelog_core.metadata.stores.dynamodb import DynamoDbMetadataStore
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            [f"metadata store {url!r} needs `pip install tidelog[aws]`: {error}"]
        ) from error
    given = {name: values[0] for name, values in options.items()}
    return DynamoDbMetadataStore(
        unquote(table), region=given.get("region"), endpoint=given.get("endpoint")
    )


_DYNAMODB_OPTIONS = frozenset({"region", "endpoint"})
