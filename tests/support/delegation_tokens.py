"""Delegation tokens as they are stored."""

from __future__ import annotations

from typing import NamedTuple

from tidelog_core.metadata.security.delegation_tokens import DelegationToken
from tidelog_core.security.delegation_tokens import (
    TokenSecret,
    token_credentials,
    token_digest,
    token_password,
)

SECRET = TokenSecret("a secret key of many characters")
OTHER_SECRET = TokenSecret("another key of many characters")
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Made(NamedTuple):
    """A token with what its holder has."""

    token: DelegationToken
    hmac: bytes

    @property
    def password(self) -> str:
        """What the holder logs in with."""
        return token_password(self.hmac)


def made(
    token_id: str = "an-id",
    *,
    owner: str = "alice",
    renewers: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
    expires_ms: int = NOW_MS + HOUR_MS,
    secret: TokenSecret = SECRET,
) -> Made:
    """Return a token of the owner."""
    token_hmac = secret.hmac(token_id)
    token = DelegationToken(
        token_id=token_id,
        owner=owner,
        requester=owner,
        renewers=renewers,
        groups=groups,
        issued_ms=NOW_MS,
        expires_ms=expires_ms,
        max_ms=max(expires_ms, NOW_MS + 7 * 24 * HOUR_MS),
        digest=token_digest(token_hmac),
        credentials=token_credentials(token_hmac),
    )
    return Made(token, token_hmac)
