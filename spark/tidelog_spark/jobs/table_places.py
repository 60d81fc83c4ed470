"""The location of a table must not be among the segments, nor they below it.

What is below the segments' prefix and no segment is an orphan, which is collected; and programs
that clean up a table's folder (``remove_orphan_files``, ``VACUUM``) would delete segments in it.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from tidelog_core.errors import InvalidConfig

_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "": "file"}


def require_apart(location: str, segments: str | None) -> None:
    """Raise ``InvalidConfig`` if one of the URLs is within the other. ``None`` is nowhere."""
    if segments is None:
        return
    table, objects = _place(location), _place(segments)
    if table[:2] != objects[:2]:
        return
    if table[2].is_relative_to(objects[2]) or objects[2].is_relative_to(table[2]):
        raise InvalidConfig(
            [
                f"the table would be at {location}, among the segments ({segments}): its files"
                " would be collected as orphans, or segments deleted with the table; give it"
                " a location that is apart from them"
            ]
        )


def _place(url: str) -> tuple[str, str, PurePosixPath]:
    """Return scheme, bucket and path of a URL, or of a path of this machine."""
    parts = urlsplit(url)
    scheme = _SAME_SCHEME.get(parts.scheme, parts.scheme)
    path = parts.path if scheme == "s3" else unquote(parts.path)
    if scheme == "file":
        path = os.path.realpath(path)
    return scheme, parts.netloc, PurePosixPath("/", path.lstrip("/"))
