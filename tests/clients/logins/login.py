"""How a client logs in, and what it says of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TOPIC = "t"
SECONDS_MAX = 30.0
TLS_ALONE = "SSL"  # a certificate instead of a mechanism
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", TLS_ALONE)


@dataclass(frozen=True, slots=True)
class Login:
    """Where a client connects, and how it says who it is."""

    address: str
    mechanism: str
    trusted: Path  # the authority of the node
    user: str = ""
    password: str = ""
    token: str = ""  # of OAUTHBEARER
    pem: Path | None = None  # the client's own key and certificate
    token_endpoint: str = ""  # of clients that fetch their token

    # Of SCRAM: the user is a delegation token's id, and the password its HMAC.
    is_delegation_token: bool = False

    @property
    def security_protocol(self) -> str:
        """Kafka's name for it."""
        return TLS_ALONE if self.mechanism == TLS_ALONE else "SASL_SSL"


class Refused(Exception):
    """What a client raised, by the name that its users catch or look for."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


ProduceAndConsume = Callable[[Login, str], str]
"""Produces the value to the first partition and returns the record that it consumes from there."""
