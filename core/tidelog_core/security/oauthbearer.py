"""OAUTHBEARER: a client's first message, with a token that another service has issued.

    n,a=<authorization id>,^A auth=Bearer <token> ^A key=value ^A … ^A      (^A is the byte 1)

A refused token is answered with a JSON text; the client sends ^A, and only then gets the error.
Source: RFC 7628, KIP-255, Kafka's ``OAuthBearerClientInitialResponse`` and
``OAuthBearerSaslServer``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tidelog_core.errors import AuthenticationFailed

OAUTHBEARER_MECHANISM = "OAUTHBEARER"
MESSAGE_SIZE_BYTES_MAX = 65_536  # tokens with many groups have some kilobytes
ACKNOWLEDGEMENT = b"\x01"  # of a client, for the text that refuses its token
INVALID_TOKEN = '{"status":"invalid_token"}'

_MESSAGE = re.compile(
    r"n,(?:a=((?:[\x02-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,"
    r"\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_TOKEN = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([-_.A-Za-z0-9]+)")
_INVALID = "Invalid OAUTHBEARER client first message"


@dataclass(frozen=True, slots=True)
class BearerLogin:
    """A client's token, and the user it wants to be; "": the user that the token names."""

    token: str = field(repr=False)
    authorization_id: str = ""


def parse_bearer(message: bytes) -> BearerLogin:
    """Return the client's token. Raises ``AuthenticationFailed``."""
    if len(message) > MESSAGE_SIZE_BYTES_MAX:
        raise AuthenticationFailed(_INVALID, reason="the message is too large")
    try:
        found = _MESSAGE.fullmatch(message.decode("ascii"))
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise AuthenticationFailed(_INVALID, reason="the message has another form")
    values: dict[str, list[str]] = {}
    for pair in filter(None, found[2].split("\x01")):
        key, _, value = pair.partition("=")
        values.setdefault(key, []).append(value)
    given = values.get("auth", [])
    token = _TOKEN.fullmatch(given[0]) if len(given) == 1 else None
    if token is None:
        raise AuthenticationFailed(_INVALID, reason="the message has no bearer token, or several")
    wanted = (found[1] or "").replace("=2C", ",").replace("=3D", "=")
    return BearerLogin(token[1], wanted)
