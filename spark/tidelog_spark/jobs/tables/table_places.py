"""Locations of tables: which one a table may have, and the file system that it is in.

A location is absolute, not among the segments, nor they below it.

A location in S3 has the object's keys as they are: nothing in it is decoded. delta-rs, and other
programs that read tables, take it for a URL instead. So it may only have characters that mean the
same to both. One of this machine is a URL, in which ``%20`` is a space, or a path.

An object below the segments' prefix that is no segment is an orphan, which is collected. Programs
that clean up a table's folder (``remove_orphan_files``, ``VACUUM``) would delete segments in it.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urlsplit

from pyarrow import fs
from tidelog_core.errors import InvalidConfig

_OF_HADOOP = {"s3a": "s3", "s3n": "s3"}  # its names of S3, which catalogs may have in locations
_SAME_SCHEME = {**_OF_HADOOP, "": "file"}
# Of a URL what it encodes, its query and its fragment, and what S3's guide says to avoid.
_UNCLEAR = '%?#\\"<>[]^`{|}'
_CLEAR = "/~!$&'()*+,;=:@"  # which nobody encodes in a path


def table_url(place: str) -> str:
    """Return a table's URL; a path of this machine becomes one, but not an empty text."""
    return place if not place or urlsplit(place).scheme else Path(place).absolute().as_uri()


def plain_url(url: str) -> str:
    """Return the URL with the scheme that programs other than Hadoop know."""
    scheme, mark, rest = url.partition("://")
    return _OF_HADOOP.get(scheme, scheme) + mark + rest


def catalog_url(location: str) -> str:
    """Return the URL of a location that pyiceberg gives, which takes paths of URLs as they are.

    Its ``file:///a%20b`` is the folder ``a%20b``, whose URL is ``file:///a%2520b``.
    """
    parts = urlsplit(location)
    is_here = parts.scheme == "file" and parts.path.startswith("/")
    return Path(parts.path).as_uri() if is_here else location


def filesystem_of(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and the path in it. Raises ``InvalidConfig``."""
    url = plain_url(url)
    bucket, key = url, ""
    if url.startswith("s3://"):
        # Arrow would decode the key.
        bucket, _, key = url.removeprefix("s3://").partition("/")
        bucket = f"s3://{bucket}"
    try:
        filesystem, root = fs.FileSystem.from_uri(bucket)
    except ValueError as error:
        raise InvalidConfig([f"files of a table cannot be at {url}: {error}"]) from None
    return filesystem, f"{root}/{key}" if key else root


def check_location(location: str, segments: str | None) -> None:
    """Raise ``InvalidConfig`` for a location that a table may not have.

    That is a relative one, one in S3 that programs read differently, and one among the segments or
    around them. ``segments`` is their URL; ``None`` is nowhere.
    """
    if not urlsplit(location).scheme and not location.startswith("/"):
        raise InvalidConfig(
            [
                f"the table would be at {location!r}, which is no URL: give one, as"
                " s3://bucket/folder or file:///folder; in Iceberg the catalog's warehouse says it"
            ]
        )
    if unclear := _unclear_in_s3(location):
        raise InvalidConfig(
            [
                f"no table can be at {location}: it has {unclear}, which programs that read tables"
                f" take for different keys of S3; give a location without {' '.join(_UNCLEAR)},"
                " characters that cannot be printed, and folders that are empty, '.' or '..'"
                f"{_advice(location)}"
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


def _unclear_in_s3(location: str) -> str:
    """Return what a location of S3 has that is not one key to all programs; "": nothing."""
    scheme, _, rest = plain_url(location).partition("://")
    if scheme != "s3":
        return ""
    for character in rest:
        if character in _UNCLEAR or not character.isprintable():
            return repr(character)
    for folder in rest.rstrip("/").split("/"):
        if folder in ("", ".", ".."):
            return f"the folder {folder!r}"
    return ""


def encoded_locations(location: str) -> list[str]:
    """Return the URLs of S3 by which an earlier version may have known a table at a location.

    It decoded a URL for the table's files, and took it literally for the table's state.
    """
    scheme, _, rest = plain_url(location).partition("://")
    if scheme != "s3":
        return []
    found = {rest.replace(" ", "%20"), quote(rest, safe=_CLEAR)} - {rest}
    return [f"s3://{one}" for one in sorted(found)]


def _advice(location: str) -> str:
    """Return the end of a message about an unclear location that an earlier version has taken."""
    place, has_options, _ = location.partition("?")
    decoded = unquote(place)
    if has_options:
        # Of Arrow: it wrote to the place without them, as delta-rs did. Other formats failed.
        return (
            f"; an earlier version has put a Delta table at {decoded}: to go on with it, give that,"
            " and the endpoint and region of S3 in the environment, as AWS_ENDPOINT_URL and"
            " AWS_REGION"
        )
    if decoded == location:
        return ""
    return (
        f"; an earlier version has put files of such a table below {decoded}, and its folder"
        " _tidelog here: move both to one location first, and give that"
    )


def _place(url: str) -> tuple[str, str, PurePosixPath]:
    """Return scheme, bucket and path of a URL, or of a path of this machine."""
    parts = urlsplit(url)
    scheme = _SAME_SCHEME.get(parts.scheme, parts.scheme)
    path = parts.path if scheme == "s3" else unquote(parts.path)
    if scheme == "file":
        path = os.path.realpath(path if parts.scheme else url)
    return scheme, parts.netloc, PurePosixPath("/", path.lstrip("/"))
