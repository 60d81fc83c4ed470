"""Where a location's objects lie as S3 and its events name them: bucket and key."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, and the prefix in it of the keys that Tidelog writes; slash included."""

    name: str
    prefix: str = ""

    def relative(self, key: str) -> str | None:
        """Return the key without the prefix, ``None`` for one of somebody else's."""
        return key.removeprefix(self.prefix) if key.startswith(self.prefix) else None


def bucket_of(objects_url: str) -> Bucket:
    """Return the bucket of an object store's URL; a folder is one, named by its path."""
    parts = urlsplit(objects_url)
    if parts.scheme != "s3":
        return Bucket(unquote(parts.path))
    prefix = parts.path.strip("/")
    return Bucket(parts.netloc, f"{prefix}/" if prefix else "")
