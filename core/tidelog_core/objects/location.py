"""Where objects lie, as one URL.

s3://bucket/prefix      S3; endpoint, region and credentials from the AWS environment
file:///absolute/path   a folder on this machine
memory:                 this process's memory; tests and trials
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidelog_core.errors import InvalidConfig
from tidelog_core.objects.store import ObjectStore

MULTIPART_THRESHOLD_BYTES = 1 << 30


def open_object_store(
    url: str, *, multipart_threshold: int = MULTIPART_THRESHOLD_BYTES
) -> ObjectStore:
    """Return the store that the URL names. Raises ``InvalidConfig`` saying what is allowed."""
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise InvalidConfig([f"object store {url!r} must have no query and no fragment"])
    match parts.scheme:
        case "s3" if parts.netloc:
            from tidelog_core.objects.s3 import S3ObjectStore

            return S3ObjectStore(
                parts.netloc, prefix=parts.path, multipart_threshold=multipart_threshold
            )
        case "file" if parts.path.startswith("/") and not parts.netloc:
            from tidelog_core.objects.folder import FolderObjectStore

            return FolderObjectStore(Path(unquote(parts.path)))
        case "memory" if not parts.path and not parts.netloc:
            from tidelog_core.objects.memory import MemoryObjectStore

            return MemoryObjectStore()
    raise InvalidConfig(
        [f"object store {url!r} must be s3://bucket/prefix, file:///absolute/path or memory:"]
    )
