"""Checks texts of programs: a str with half of a surrogate pair has no UTF-8, which Kafka sends."""

from __future__ import annotations

from tidelog_core.errors import InvalidTopic


def is_encodable(text: str, errors: str = "strict") -> bool:
    """Return whether the text has UTF-8. ``errors`` as of ``str.encode``."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError:
        return False
    return True


def check_topic(name: str) -> None:
    """Raise ``InvalidTopic`` for a name that no request can have."""
    if not is_encodable(name):
        raise InvalidTopic(f"topic name {name!r} cannot be encoded as UTF-8")
