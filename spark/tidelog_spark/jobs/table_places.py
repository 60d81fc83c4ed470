"""Locations of tables: which one a table may have, and the file system that it is in.

A location is absolute, not among the segments, nor they below it.

An object below the segments' prefix that is no segment is an orphan, which is collected. Programs
that clean up a table's folder (``remove_orphan_files``, ``VACUUM``) would delete segments in it.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from pyarrow import fs
from tidelog_core.errors import InvalidConfig

_OF_HADOOP = {"s3a": "s3", "s3n": "s3"}  # its names of S3, which catalogs may have in locations
_SAME_SCHEME = {**_OF_HADOOP, "": "file"}


def table_url(place: str) -> str:
    """Return a table's URL; a path of this machine becomes one, but not an empty text."""
    return place if not place or urlsplit(place).scheme else Path(place).absolute().as_uri()


def plain_url(url: str) -> str:
    """Return the URL with the scheme that programs other than Hadoop know."""
    scheme, mark, rest = url.partition("://")
    return _OF_HADOOP.get(scheme, scheme) + mark + rest


def filesystem_of(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and the path in it. Raises ``InvalidConfig``."""
    try:
        return fs.FileSystem.from_uri(plain_url(url))  # type: ignore[no-any-return]
    except ValueError as error:
        raise InvalidConfig([f"files of a table cannot be at {url}: {error}"]) from None


def check_location(location: str, segments: str | None) -> None:
    """Raise ``InvalidConfig`` for a relative location, and one among the segments or around them.

    ``segments`` is their URL; ``None`` is nowhere.
    """
    if not urlsplit(location).scheme and not location.startswith("/"):
        raise InvalidConfig(
            [
                f"the table would be at {location!r}, which is no URL: give one, as"
                " s3://bucket/folder or file:///folder; in Iceberg the catalog's warehouse says it"
            ]
        )
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
