"""Opens object stores by URL.

s3://bucket/prefix      S3; endpoint, region and credentials from the AWS environment. The prefix is
                        that of the keys as it is: nothing in it is decoded
file:///absolute/path   a folder on this machine, which the nodes make
memory:                 this process's memory; tests and trials
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidelog_core.errors import InvalidConfig
from tidelog_core.objects.store import ObjectStore

MULTIPART_THRESHOLD_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """The parts of an object store's URL."""

    scheme: str  # s3, file or memory
    name: str  # the bucket, or the folder's absolute path; empty for memory
    prefix: str = ""  # of the keys in the bucket, slash at its end included

    @property
    def has_own_clock(self) -> bool:
        """Whether the times of objects are by a clock that is not this machine's."""
        return self.scheme == "s3"

    @property
    def has_price(self) -> bool:
        """Whether requests to it cost money."""
        return self.scheme == "s3"

    def relative(self, key: str) -> str | None:
        """Return the bucket's key without the store's prefix, ``None`` if it lacks the prefix."""
        return key.removeprefix(self.prefix) if key.startswith(self.prefix) else None


def parse_object_location(url: str) -> ObjectLocation:
    """Return the parsed URL. Raises ``InvalidConfig`` with the allowed forms."""
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise InvalidConfig([f"object store {url!r} must have no query and no fragment"])
    match parts.scheme:
        case "s3" if parts.netloc:
            prefix = parts.path.strip("/")
            if prefix and not {"", ".", ".."}.isdisjoint(prefix.split("/")):
                raise InvalidConfig(
                    [f"object store {url!r} must have no part that is empty, '.' or '..'"]
                )
            return ObjectLocation("s3", parts.netloc, f"{prefix}/" if prefix else "")
        case "file" if parts.path.startswith("/") and not parts.netloc:
            return ObjectLocation("file", unquote(parts.path))
        case "memory" if not parts.path and not parts.netloc:
            return ObjectLocation("memory", "")
    raise InvalidConfig(
        [f"object store {url!r} must be s3://bucket/prefix, file:///absolute/path or memory:"]
    )


def make_local_folder(url: str) -> None:
    """Make the folder of a store on this machine; do nothing for others. Raises ``OSError``.

    A missing folder is a wrong path to all that only read, and the first object may come late.
    """
    location = parse_object_location(url)
    if location.scheme == "file":
        Path(location.name).mkdir(parents=True, exist_ok=True)


def require_object_store(url: str) -> None:
    """Raise as ``open_object_store`` if the store is one of this machine and cannot be opened."""
    location = parse_object_location(url)
    if location.scheme == "file":
        from tidelog_core.objects.folder import require_folder

        require_folder(Path(location.name))


def open_object_store(
    url: str, *, may_be_new: bool = False, multipart_threshold: int = MULTIPART_THRESHOLD_BYTES
) -> ObjectStore:
    """Return the store of the URL. Raises ``InvalidConfig`` with the allowed forms.

    Raises ``StoreNotFound`` for a folder that is missing, unless the store ``may_be_new``: then it
    is empty, and the first write makes the folder. Raises ``StoreUnavailable`` for a folder that
    this process may not see.
    """
    location = parse_object_location(url)
    match location.scheme:
        case "s3":
            try:
                from tidelog_core.objects.s3 import S3ObjectStore
            except ModuleNotFoundError as error:
                needed = f"object store {url!r} needs `pip install tidelog[aws]`: {error}"
                raise InvalidConfig([needed]) from error
            return S3ObjectStore(
                location.name, prefix=location.prefix, multipart_threshold=multipart_threshold
            )
        case "file":
            from tidelog_core.objects.folder import FolderObjectStore, require_folder

            folder = Path(location.name)
            if not may_be_new:
                require_folder(folder)
            return FolderObjectStore(folder)
        case _:
            from tidelog_core.objects.memory import MemoryObjectStore

            return MemoryObjectStore()


@asynccontextmanager
async def opened_object_store(url: str, *, may_be_new: bool = False) -> AsyncIterator[ObjectStore]:
    """Open the store for the length of the block. Raises as ``open_object_store``."""
    store = open_object_store(url, may_be_new=may_be_new)
    try:
        yield store
    finally:
        await store.close()
