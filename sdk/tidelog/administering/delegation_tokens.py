"""Admin calls for delegation tokens: logins that expire, for programs that need no password.

Source: KIP-48, KIP-373.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any, NamedTuple

from kio.schema.create_delegation_token.v3.request import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from kio.schema.describe_delegation_token.v3.request import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from kio.schema.expire_delegation_token.v2.request import ExpireDelegationTokenRequest
from kio.schema.renew_delegation_token.v2.request import RenewDelegationTokenRequest
from tidelog_core.model import USER_KIND
from tidelog_core.wire_messages import build

from tidelog.administering.calls import AdminCalls
from tidelog.administering.results import DelegationToken
from tidelog.given_values import integer, several, text
from tidelog.wire.requests import (
    CREATE_DELEGATION_TOKEN,
    CREATE_DELEGATION_TOKEN_FOR,
    DESCRIBE_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
)

DEFAULT_MS = -1  # what the nodes' settings say
_MS = datetime.timedelta(milliseconds=1)
_ABOUT = "delegation token"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class DelegationTokenCalls(AdminCalls):
    """Admin calls for tokens. The admin must have logged in, and not by a token.

    Each raises ``DelegationTokenAuthDisabled`` if the nodes have no
    ``delegation.token.secret.key``, and ``DelegationTokenRequestNotAllowed``.
    """

    async def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int = DEFAULT_MS,
    ) -> DelegationToken:
        """Create a token with which a client is the owner, by default this user.

        Principals are such as ``User:alice``. The owner and renewers may renew the token, until it
        is ``max_lifetime_ms`` old. After a lost answer a second one may be created. Raises
        ``InvalidPrincipalType``, ``DelegationTokenAuthorizationFailed`` for another owner without
        the right to, ``PolicyViolation`` if there are too many.
        """
        integer(max_lifetime_ms, "max_lifetime_ms")
        owner_kind, owner_name = _Principal.of(owner) if owner is not None else (None, None)
        named = list(dict.fromkeys(map(_Principal.of, several(renewers, "renewers"))))
        request = build(
            CreateDelegationTokenRequest,
            owner_principal_type=owner_kind,
            owner_principal_name=owner_name,
            renewers=tuple(
                build(CreatableRenewers, principal_type=kind, principal_name=name)
                for kind, name in named
            ),
            max_lifetime=max_lifetime_ms * _MS,
        )
        # An older version would leave the owner out.
        api = CREATE_DELEGATION_TOKEN if owner is None else CREATE_DELEGATION_TOKEN_FOR

        response = await self._ask(api, request, about=_ABOUT)
        return DelegationToken(
            token_id=response.token_id,
            hmac=bytes(response.hmac),
            owner=_text(response.principal_type, response.principal_name),
            requester=_requester(response),
            renewers=tuple(f"{kind}:{name}" for kind, name in named),
            issued_ms=_time_ms(response.issue_timestamp),
            expires_ms=_time_ms(response.expiry_timestamp),
            max_ms=_time_ms(response.max_timestamp),
        )

    async def renew_delegation_token(self, hmac: bytes, *, period_ms: int = DEFAULT_MS) -> int:
        """Have a token expire later: after the period; return when, in epoch milliseconds.

        Raises ``DelegationTokenNotFound``, ``DelegationTokenExpired``, and
        ``DelegationTokenOwnerMismatch`` if this user is neither its owner nor a renewer.
        """
        integer(period_ms, "period_ms")
        request = build(RenewDelegationTokenRequest, hmac=hmac, renew_period=period_ms * _MS)
        return await self._expiring(RENEW_DELEGATION_TOKEN, request)

    async def expire_delegation_token(self, hmac: bytes, *, period_ms: int = -1) -> int:
        """Have a token expire after the period; return when. By default it is removed now.

        That ends connections by it with their next request, a moment later on other nodes; Kafka
        leaves them until the token would have expired. Raises as ``renew_delegation_token``.
        """
        integer(period_ms, "period_ms")
        request = build(ExpireDelegationTokenRequest, hmac=hmac, expiry_time_period=period_ms * _MS)
        return await self._expiring(EXPIRE_DELEGATION_TOKEN, request)

    async def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None
    ) -> list[DelegationToken]:
        """Return tokens that this user owns, made, may renew or has the right to see.

        ``owners`` are principals: only tokens are returned that one of them owns, made or may
        renew. In the order in which they were made.
        """
        named = (
            None
            if owners is None
            else list(dict.fromkeys(map(_Principal.of, several(owners, "owners"))))
        )
        request = build(
            DescribeDelegationTokenRequest,
            owners=None
            if named is None
            else tuple(
                build(DescribeDelegationTokenOwner, principal_type=kind, principal_name=name)
                for kind, name in named
            ),
        )

        response = await self._ask(DESCRIBE_DELEGATION_TOKEN, request, about=_ABOUT)
        tokens = [_described(token) for token in response.tokens]
        return sorted(tokens, key=lambda token: (token.issued_ms, token.token_id))

    async def _expiring(self, api: Any, request: object) -> int:
        response = await self._ask(api, request, about=_ABOUT)
        return _time_ms(response.expiry_timestamp)


class _Principal(NamedTuple):
    kind: str
    name: str

    @classmethod
    def of(cls, given: str) -> _Principal:
        """Return the principal; a text without a kind is the name of a user."""
        kind, colon, name = text(given, "a principal").partition(":")
        return cls(kind, name) if colon else cls(USER_KIND, given)


def _described(token: Any) -> DelegationToken:
    return DelegationToken(
        token_id=token.token_id,
        hmac=bytes(token.hmac),
        owner=_text(token.principal_type, token.principal_name),
        requester=_requester(token),
        renewers=tuple(_text(one.principal_type, one.principal_name) for one in token.renewers),
        issued_ms=int(token.issue_timestamp),
        expires_ms=int(token.expiry_timestamp),
        max_ms=int(token.max_timestamp),
    )


def _requester(token: Any) -> str:
    """Return who made the token; before version 3 that is its owner."""
    if not token.token_requester_principal_name:
        return _text(token.principal_type, token.principal_name)
    return _text(token.token_requester_principal_type, token.token_requester_principal_name)


def _text(kind: str, name: str) -> str:
    return f"{kind}:{name}"


def _time_ms(time: datetime.datetime) -> int:
    return (time - _EPOCH) // _MS
