"""The rules for keys of objects, the same for every store.

A key is one or more components joined by ``/``. Only characters that need no escaping
in a URL, on every file system and in S3 are allowed, and no component may lead out
of the store. A key must not be another key's folder (``a`` and ``a/b``): a file system
cannot hold both.
"""

from __future__ import annotations

import re

from tidelog_core.errors import InvalidObjectKey

KEY_LENGTH_MAX = 1024  # Source: S3 user guide, object key names.
COMPONENT_LENGTH_MAX = 255  # Source: NAME_MAX of Linux file systems.
# Where stores keep unfinished writes. No key may start with it, and no listing shows it.
STAGING = ".staging"

_COMPONENT = re.compile(r"[A-Za-z0-9._=+@-]+")


def check_key(key: str) -> None:
    """Raise ``InvalidObjectKey`` unless ``key`` may name an object."""
    if not key or len(key) > KEY_LENGTH_MAX:
        raise InvalidObjectKey(key, f"it must have 1 to {KEY_LENGTH_MAX} characters")
    components = key.split("/")
    if components[0] == STAGING:
        raise InvalidObjectKey(key, f"{STAGING!r} is reserved")
    for component in components:
        if not _COMPONENT.fullmatch(component):
            raise InvalidObjectKey(
                key, "each part between slashes needs one or more of A-Z a-z 0-9 . _ = + @ -"
            )
        if component in {".", ".."}:
            raise InvalidObjectKey(key, "'.' and '..' are not allowed between slashes")
        if len(component) > COMPONENT_LENGTH_MAX:
            raise InvalidObjectKey(
                key, f"a part between slashes has at most {COMPONENT_LENGTH_MAX} characters"
            )


def may_start_a_key(prefix: str) -> bool:
    """Return whether any object's key can start with ``prefix``."""
    *whole, rest = prefix.split("/")
    if whole and whole[0] == STAGING:
        return False
    if any(not _COMPONENT.fullmatch(part) or part in {".", ".."} for part in whole):
        return False
    return not rest or _COMPONENT.fullmatch(rest) is not None


def check_range(start: int, end: int) -> None:
    """Raise ``ValueError`` unless ``[start, end)`` is a range of bytes."""
    if not 0 <= start <= end:
        raise ValueError(f"[{start}, {end}) is no range of bytes")
