"""Removes secrets from what leaves the machine in a debug bundle.

A value goes if its name says that it is a secret. Text loses what looks like one: user names and
passwords in URLs, PEM private keys, values behind «password=», tokens, AWS's access keys. Secrets
that the command itself knows are removed wherever they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

REMOVED = "(removed)"
KNOWN_SIZE_MIN = 4  # of secrets that are removed wherever they are

_SECRET_NAME = re.compile(
    r"passw(or)?d|passphrase|secret|token(?!iz)|credential|jaas|private"
    r"|keystore\.key|certificate\.chain|truststore\.certificates|access.?key|authorization",
    re.IGNORECASE,
)
_SECRET_LOCATION = re.compile(r"[._-](location|url|ms|max|min|enabled?|type|count)$", re.IGNORECASE)
_PATTERNS = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        REMOVED,
    ),
    (re.compile(r"(?<=://)[^/\s@]+@"), f"{REMOVED}@"),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), REMOVED),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), REMOVED),  # a JSON web token
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w+/=.~-]+"), rf"\1 {REMOVED}"),
    (
        re.compile(
            r"""(?ix) ( [\w.-]* (?:passw(?:or)?d|passphrase|secret|credential|jaas\.config
            |token|access.?key(?:.?id)?|signature|keystore\.key) [\w.-]* ["']? \s* [=:] \s* )
            ( "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | [^\s,;&"'}]+ )"""
        ),
        rf"\1{REMOVED}",
    ),
)


def redacted(value: object, known: Collection[str] = ()) -> object:
    """Return a JSON value without secrets; ``known`` ones are removed wherever they are."""
    if isinstance(value, Mapping):
        if isinstance(name := value.get("name"), str) and "value" in value and is_secret(name):
            value = {**value, "value": REMOVED}
        return {
            redacted_text(str(key), known): REMOVED
            if is_secret(str(key)) and isinstance(one, str)
            else redacted(one, known)
            for key, one in value.items()
        }
    if isinstance(value, str):
        return redacted_text(value, known)
    if isinstance(value, Sequence):
        return [redacted(one, known) for one in value]
    return value


def redacted_text(text: str, known: Collection[str] = ()) -> str:
    """Return the text without secrets."""
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= KNOWN_SIZE_MIN:
            text = text.replace(secret, REMOVED)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def is_secret(name: str) -> bool:
    """Return whether the name is that of a secret, and not of where or how long one is kept."""
    return bool(_SECRET_NAME.search(name)) and not _SECRET_LOCATION.search(name)
