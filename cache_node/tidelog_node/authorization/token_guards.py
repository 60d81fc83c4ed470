"""The guards of the APIs about delegation tokens (KIP-373).

A user needs no right for tokens of its own, and to renew one it must be named in the token. Rights
are for tokens of others: CREATE_TOKENS and DESCRIBE_TOKENS of the user, DESCRIBE of the token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tidelog_core.api_keys import ApiKey
from tidelog_core.model import Principal
from tidelog_core.security.acl import AclOperation, ResourceType
from tidelog_core.security.operations import REFUSAL_CODES

from tidelog_node.authorization.guard import Guard, GuardedCall, unguarded
from tidelog_node.authorization.token_requests import (
    may_ask_for_tokens,
    not_created,
    owner_of,
)


async def _create(call: GuardedCall) -> Any:
    """CREATE_TOKENS of the owner, unless it is the client itself."""
    session = call.context.session
    owner = owner_of(call.request, session)
    if (
        may_ask_for_tokens(session)  # else the handler refuses for that reason
        and owner != session.principal
        and not call.may(AclOperation.CREATE_TOKENS, ResourceType.USER, str(owner))
    ):
        return not_created(owner, session.principal, REFUSAL_CODES[ResourceType.USER])
    return await call.go_on()


async def _describe(call: GuardedCall) -> Any:
    """Tokens of others need DESCRIBE of the token, or DESCRIBE_TOKENS of its owner."""
    answer = await call.go_on()
    user = call.context.session.principal
    shown = [
        token
        async for token in call.turn.each(answer.tokens)
        if _is_of(token, user) or _may_see(call, token)
    ]
    return dataclasses.replace(answer, tokens=tuple(shown))


def _is_of(token: Any, user: Principal) -> bool:
    return (
        (token.principal_type, token.principal_name) == (user.kind, user.name)
        or (token.token_requester_principal_type, token.token_requester_principal_name)
        == (user.kind, user.name)
        or any(
            (one.principal_type, one.principal_name) == (user.kind, user.name)
            for one in token.renewers
        )
    )


def _may_see(call: GuardedCall, token: Any) -> bool:
    owner = Principal(token.principal_type, token.principal_name)
    access, session = call.access, call.context.session
    return access.has_right(
        session, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id
    ) or access.sees(session, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, str(owner))


TOKEN_GUARDS: Mapping[int, Guard] = {
    ApiKey.CREATE_DELEGATION_TOKEN: _create,
    ApiKey.RENEW_DELEGATION_TOKEN: unguarded,  # for those whom the token names
    ApiKey.EXPIRE_DELEGATION_TOKEN: unguarded,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _describe,
}
