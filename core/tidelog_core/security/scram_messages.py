"""The messages of a SCRAM exchange: parsed, and made.

    client first   n,[a=<authorization id>],n=<name>,r=<client nonce>[,<extensions>]
    server first   r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client final   c=<the client first's header>,r=<both nonces>[,<extensions>],p=<proof>
    server final   v=<server signature>

Names are ASCII with ``=2C`` for a comma and ``=3D`` for an equals sign; salt, header, proof and
signature are base64. Signatures are over the messages as they were sent, so these are kept.

Kafka accepts and ignores a mandatory extension (``m=``), and then fails on the signature. Here the
message is refused, as RFC 5802 demands. Source: RFC 5802, Kafka's ``ScramMessages``.
"""

from __future__ import annotations

import binascii
import re
from typing import NamedTuple

MESSAGE_SIZE_BYTES_MAX = 8192
TOKEN_EXTENSION = "tokenauth"  # its value ``true``: the name is the id of a delegation token

# Possessive: a match is never tried in another way, which would take memory for each byte.
_NAME = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]++|=2C|=3D)++"  # no comma, "=" only in escapes
_NONCE = rb"[\x21-\x2b\x2d-\x7e]++"
_BASE64 = rb"(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?+"
_EXTENSIONS = rb"(?:,(?!p=)[A-Za-z]++=[\x01-\x2b\x2d-\x7f]++)*+"  # "p=" begins the proof

_CLIENT_FIRST = re.compile(
    rb"(?P<header>n,(?:a=(?P<authorization_id>%(name)b))?,)"
    rb"(?P<bare>n=(?P<name>%(name)b),r=(?P<nonce>%(nonce)b)(?P<extensions>%(extensions)b))"
    % {b"name": _NAME, b"nonce": _NONCE, b"extensions": _EXTENSIONS}
)
_SERVER_FIRST = re.compile(
    rb"r=(?P<nonce>%b),s=(?P<salt>%b),i=(?P<iterations>[1-9][0-9]{0,9})%b"
    % (_NONCE, _BASE64, _EXTENSIONS)
)
_CLIENT_FINAL = re.compile(
    rb"(?P<without_proof>c=(?P<header>%b),r=(?P<nonce>%b)%b),p=(?P<proof>%b)"
    % (_BASE64, _NONCE, _EXTENSIONS, _BASE64)
)
_SERVER_FINAL = re.compile(rb"v=(?P<signature>%b)%b" % (_BASE64, _EXTENSIONS))
_ESCAPED = re.compile("=2C|=3D")


class ClientFirst(NamedTuple):
    """The first message of a client."""

    header: bytes
    bare: bytes  # without the header
    name: str
    authorization_id: str  # empty: none was sent
    nonce: bytes
    extensions: dict[str, str]


class ServerFirst(NamedTuple):
    """The answer to a client's first message."""

    nonce: bytes  # of the client and then of the server
    salt: bytes
    iterations: int


class ClientFinal(NamedTuple):
    """The second message of a client."""

    without_proof: bytes
    header: bytes
    nonce: bytes
    proof: bytes


def parse_client_first(message: bytes) -> ClientFirst:
    """Return the parsed message. Raises ``ValueError``, which does not repeat the message."""
    found = _match(_CLIENT_FIRST, message)
    extensions = found["extensions"].decode("ascii")
    return ClientFirst(
        header=found["header"],
        bare=found["bare"],
        name=_unescaped(found["name"]),
        authorization_id=_unescaped(found["authorization_id"] or b""),
        nonce=found["nonce"],
        extensions=dict(extension.split("=", 1) for extension in extensions.split(",")[1:]),
    )


def parse_client_final(message: bytes) -> ClientFinal:
    """Return the parsed message. Raises ``ValueError``, which does not repeat the message."""
    found = _match(_CLIENT_FINAL, message)
    return ClientFinal(
        without_proof=found["without_proof"],
        header=binascii.a2b_base64(found["header"]),
        nonce=found["nonce"],
        proof=binascii.a2b_base64(found["proof"]),
    )


def parse_server_first(message: bytes) -> ServerFirst:
    """Return the parsed message. Raises ``ValueError``."""
    found = _match(_SERVER_FIRST, message)
    salt = binascii.a2b_base64(found["salt"])
    return ServerFirst(found["nonce"], salt, int(found["iterations"]))


def parse_server_final(message: bytes) -> bytes:
    """Return the server's signature. Raises ``ValueError``."""
    return binascii.a2b_base64(_match(_SERVER_FINAL, message)["signature"])


def server_first_message(first: ServerFirst) -> bytes:
    """Return the message as it is sent."""
    return b"r=%b,s=%b,i=%d" % (first.nonce, base64_of(first.salt), first.iterations)


def server_final_message(signature: bytes) -> bytes:
    """Return the message that ends an exchange well."""
    return b"v=" + base64_of(signature)


def escaped_name(name: str) -> bytes:
    """Return the name as messages have it. Raises ``ValueError`` for one that none can have."""
    escaped = name.replace("=", "=3D").replace(",", "=2C").encode()
    if re.fullmatch(_NAME, escaped) is None:
        raise ValueError("SCRAM takes names of ASCII characters only")
    return escaped


def base64_of(value: bytes) -> bytes:
    """Return the value in base64."""
    return binascii.b2a_base64(value, newline=False)


def _match(form: re.Pattern[bytes], message: bytes) -> re.Match[bytes]:
    found = form.fullmatch(message) if len(message) <= MESSAGE_SIZE_BYTES_MAX else None
    if found is None:
        raise ValueError("the message does not have the form that SCRAM gives it")
    return found


def _unescaped(name: bytes) -> str:
    return _ESCAPED.sub(lambda escaped: "," if escaped[0] == "=2C" else "=", name.decode("ascii"))
