"""Validates the tokens of OAUTHBEARER: signed JWTs of one issuer, for one of our audiences.

Only signatures by a key that the issuer publishes count, by algorithms with public keys. What a
token says about its key (``jku``, ``x5u``, ``jwk``) is not looked at.

Source: RFC 7519, RFC 8725, KIP-768; CVE-2026-33557.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog_core.errors import AuthenticationFailed
from tidelog_core.security.oauthbearer import INVALID_TOKEN

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    Key = RSAKey | ECKey | OKPKey

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
NAME_SIZE_MAX = 1_000  # characters of a user's or group's name
GROUPS_MAX = 200
HEADER_SIZE_MAX = 8_192  # characters


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The required claims of a token, and the claims that name the user and the groups."""

    issuer: str
    audiences: tuple[str, ...]
    user_claim: str = "sub"
    groups_claim: str = ""  # empty: tokens name no groups
    clock_skew_seconds: int = 30


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """The identity that a valid token proves, and its expiry in epoch seconds."""

    user: str
    groups: tuple[str, ...]
    expires_at: float


FindKey = Callable[[str | None], "Awaitable[Key | None]"]
"""Returns the issuer's key of this id; without an id its only key."""


class BearerTokens:
    """Validates tokens. For the node's event loop."""

    def __init__(self, rules: TokenRules, find_key: FindKey, clock: Callable[[], float]) -> None:
        """``clock`` is the wall clock, in epoch seconds."""
        self._rules = rules
        self._find_key = find_key
        self._clock = clock
        # Only now: a node that takes no tokens does without the library, which takes 3 MB.
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        self._jwt, self._new_set = jwt, KeySet
        self._errors = (JoseError, ValueError, TypeError, RecursionError)

    async def validate(self, token: str) -> TokenIdentity:
        """Return the token's identity. Raises ``AuthenticationFailed``, without any of the token.

        No signature is checked of a token whose algorithm is not allowed, or whose key is unknown.
        """
        header = _header(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise refused("the token is not signed by an algorithm with public keys")
        if key_id is not None and not isinstance(key_id, str):
            raise refused("the id of the token's key is no text")
        key = await self._find_key(key_id)
        if key is None:
            raise refused("the issuer has no key of the token's key id")
        try:
            # A set has one key here, so the library does not choose.
            decoded = self._jwt.decode(token, self._new_set([key]), algorithms=[algorithm])
            claims = self._checked(decoded.claims)
        except self._errors as error:
            # Its text may have parts of the token.
            reason = getattr(error, "error", type(error).__name__)
        else:
            return self._identity(claims)
        raise refused(f"the token is not valid: {reason}")

    def _checked(self, claims: Mapping[str, Any]) -> Mapping[str, Any]:
        rules = self._rules
        registry = self._jwt.JWTClaimsRegistry(
            now=int(self._clock()),
            leeway=rules.clock_skew_seconds,
            iss={"essential": True, "value": rules.issuer},
            aud={"essential": True, "values": list(rules.audiences)},
            exp={"essential": True},
        )
        registry.validate(dict(claims))
        return claims

    def _identity(self, claims: Mapping[str, Any]) -> TokenIdentity:
        rules = self._rules
        user = claims.get(rules.user_claim)
        if not isinstance(user, str) or not 0 < len(user) <= NAME_SIZE_MAX:
            raise refused(f"the claim {rules.user_claim} is not the name of a user")
        return TokenIdentity(user, self._groups(claims), float(claims["exp"]))

    def _groups(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the groups. None may be left out: a group can also be denied something."""
        claim = self._rules.groups_claim
        groups = claims.get(claim) if claim else None
        if groups is None:
            return ()
        names: Sequence[Any] = [groups] if isinstance(groups, str) else groups
        if not isinstance(names, list) or len(names) > GROUPS_MAX:
            raise refused(f"the claim {claim} is no list of at most {GROUPS_MAX} groups")
        if not all(isinstance(name, str) and 0 < len(name) <= NAME_SIZE_MAX for name in names):
            raise refused(f"the claim {claim} has something that is not the name of a group")
        return tuple(sorted(set(names)))


def refused(reason: str) -> AuthenticationFailed:
    """Return the refusal of a token, which does not tell the client the reason."""
    return AuthenticationFailed(INVALID_TOKEN, reason=reason)


def _header(token: str) -> Mapping[str, Any]:
    """Return the header of a token, not verified yet. Raises as ``validate``."""
    encoded, dot, _ = token.partition(".")
    header: object = None
    if dot and len(encoded) <= HEADER_SIZE_MAX:
        try:
            header = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
        except (ValueError, RecursionError):
            header = None
    if not isinstance(header, dict):
        raise refused("the token is no JWT")
    return header
