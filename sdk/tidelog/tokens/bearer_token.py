"""A token that a client sends to log in, and when it expires."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

TOKEN_SIZE_BYTES_MAX = 65_536  # A node takes no larger message, so no larger token.
_FORM = re.compile(r"[-_.A-Za-z0-9]+")
_REASON_SIZE_MAX = 200


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token and its expiry, in seconds since 1970. None: it does not say when it expires."""

    text: str = field(repr=False)
    expires_at: float | None


class TokenSource(Hashable, Protocol):
    """Gets new tokens. Sources that are equal get tokens of the same client."""

    def fetch(self) -> BearerToken:
        """Return a new token; blocks. Raises ``AuthenticationFailed``, ``TokenNotFetched``."""
        ...


def is_token(text: str) -> bool:
    """Whether the text has the form of a token that nodes take."""
    return len(text) <= TOKEN_SIZE_BYTES_MAX and _FORM.fullmatch(text) is not None


def claimed_expiry(token: str) -> float | None:
    """Return the token's claim ``exp``. None: it has none, or is no JWT. Nothing is verified."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expiry = claims["exp"]
    except (binascii.Error, ValueError, RecursionError, KeyError, TypeError):
        return None
    is_number = isinstance(expiry, int | float) and not isinstance(expiry, bool)
    return float(expiry) if is_number and 0 < expiry < 1e11 else None


def one_line(text: object) -> str:
    """Return a foreign text as part of a message: one line, not too long."""
    printable = "".join(c if c.isprintable() else " " for c in str(text)[:_REASON_SIZE_MAX])
    return " ".join(printable.split())
