"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken.

``token_requests`` says who may ask for them. A node with an authorizer also asks ``token_guards``.

Source: KIP-48, KIP-373; Kafka's ``KafkaApis``, with its order of checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from kio.schema.create_delegation_token.v3 import request as create_request
from kio.schema.create_delegation_token.v3 import response as create_response
from kio.schema.describe_delegation_token.v3 import request as describe_request
from kio.schema.describe_delegation_token.v3 import response as describe_response
from kio.schema.expire_delegation_token.v2 import request as expire_request
from kio.schema.expire_delegation_token.v2 import response as expire_response
from kio.schema.renew_delegation_token.v2 import request as renew_request
from kio.schema.renew_delegation_token.v2 import response as renew_response
from tidelog_core.admin.failures import admin_error_code
from tidelog_core.admin.security.delegation_tokens import DelegationTokenAdmin, TokenRequest
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.metadata.security.delegation_tokens import DelegationToken
from tidelog_core.model import USER_KIND, Principal

from tidelog_node.authorization.token_requests import (
    MS,
    NO_TIME_MS,
    may_ask_for_tokens,
    not_created,
    owner_of,
    principal_fields,
    token_time,
)
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.requests.session import Session
from tidelog_node.wire.messages import build

T = TypeVar("T")


_ZERO_MS = 0  # of a request that is refused once its token or owner was looked up
_NOT_ALLOWED = ErrorCode.delegation_token_request_not_allowed


class DelegationTokenHandlers:
    """Makes, changes and shows tokens."""

    def __init__(self, admin: DelegationTokenAdmin) -> None:
        self._admin = admin

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, self.create),
            Route(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, self.renew),
            Route(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, self.expire),
            Route(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, self.describe),
        ]

    async def create(
        self, request: create_request.CreateDelegationTokenRequest, context: RequestContext
    ) -> create_response.CreateDelegationTokenResponse:
        """Answer CreateDelegationToken once the token is in the store and in this node's image."""
        session = context.session
        owner, requester = owner_of(request, session), session.principal
        if not may_ask_for_tokens(session):
            return not_created(owner, requester, _NOT_ALLOWED)
        turn = RequestTurn()
        kinds = {owner.kind}
        renewers: dict[str, None] = {}  # each once
        async for renewer in turn.each(request.renewers):
            kinds.add(renewer.principal_type)
            renewers[renewer.principal_name] = None
        if kinds != {USER_KIND}:
            return not_created(owner, requester, ErrorCode.invalid_principal_type)
        wanted = TokenRequest(
            owner=owner.name,
            requester=requester.name,
            renewers=tuple(renewers),
            groups=session.groups if owner == requester else (),
            lifetime_ms=request.max_lifetime // MS,
        )
        try:
            token, token_hmac = await self._admin.create(wanted)
        except TidelogError as error:
            return not_created(owner, requester, admin_error_code(error), time_ms=_ZERO_MS)
        return build(
            create_response.CreateDelegationTokenResponse,
            error_code=ErrorCode.none,
            **principal_fields(owner, requester),
            issue_timestamp=token_time(token.issued_ms),
            expiry_timestamp=token_time(token.expires_ms),
            max_timestamp=token_time(token.max_ms),
            token_id=token.token_id,
            hmac=token_hmac,
        )

    async def renew(
        self, request: renew_request.RenewDelegationTokenRequest, context: RequestContext
    ) -> renew_response.RenewDelegationTokenResponse:
        """Answer RenewDelegationToken once the change is in the store and in this node's image."""
        period_ms = request.renew_period // MS
        return await _with_new_expiry(
            renew_response.RenewDelegationTokenResponse,
            context.session,
            lambda user: self._admin.renew(request.hmac, user, period_ms=period_ms),
        )

    async def expire(
        self, request: expire_request.ExpireDelegationTokenRequest, context: RequestContext
    ) -> expire_response.ExpireDelegationTokenResponse:
        """Answer ExpireDelegationToken once the change is in the store and in this node's image."""
        period_ms = request.expiry_time_period // MS
        return await _with_new_expiry(
            expire_response.ExpireDelegationTokenResponse,
            context.session,
            lambda user: self._admin.expire(request.hmac, user, period_ms=period_ms),
        )

    async def describe(
        self, request: describe_request.DescribeDelegationTokenRequest, context: RequestContext
    ) -> describe_response.DescribeDelegationTokenResponse:
        """Answer DescribeDelegationToken. Without owners it is about all tokens."""
        answer = describe_response.DescribeDelegationTokenResponse
        if not may_ask_for_tokens(context.session):
            return build(answer, error_code=_NOT_ALLOWED)
        turn = RequestTurn()
        owners: set[str] | None = None
        if request.owners is not None:
            owners = {
                one.principal_name
                async for one in turn.each(request.owners)
                if one.principal_type == USER_KIND
            }
        try:
            found = await self._admin.describe(owners)
        except TidelogError as error:
            return build(answer, error_code=admin_error_code(error))
        tokens = [_described(*one) async for one in turn.each(found)]
        return build(answer, error_code=ErrorCode.none, tokens=tuple(tokens))


def _described(
    token: DelegationToken, token_hmac: bytes
) -> describe_response.DescribedDelegationToken:
    return build(
        describe_response.DescribedDelegationToken,
        **principal_fields(
            Principal(USER_KIND, token.owner), Principal(USER_KIND, token.requester)
        ),
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac,
        renewers=tuple(
            build(
                describe_response.DescribedDelegationTokenRenewer,
                principal_type=USER_KIND,
                principal_name=name,
            )
            for name in token.renewers
        ),
    )


async def _with_new_expiry(
    response: type[T], session: Session, change: Callable[[str], Awaitable[int]]
) -> T:
    """Return the response to a change of a token's expiry; ``change`` makes it for the user."""
    code, expires_ms = ErrorCode.none, NO_TIME_MS
    if not may_ask_for_tokens(session):
        code = _NOT_ALLOWED
    else:
        try:
            expires_ms = await change(session.principal.name)
        except TidelogError as error:
            code, expires_ms = admin_error_code(error), _ZERO_MS
    return build(response, error_code=code, expiry_timestamp=token_time(expires_ms))
