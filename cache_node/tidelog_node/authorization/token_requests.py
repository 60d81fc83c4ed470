"""Requests for delegation tokens: who may send them, for whom they are, and their refusal.

Only a user who has logged in by a password or a certificate may ask for tokens: neither a stranger,
nor a client that has logged in by a token.
"""

from __future__ import annotations

import datetime
from typing import Any

from kio.schema.create_delegation_token.v3 import request as create_request
from kio.schema.create_delegation_token.v3 import response as create_response
from tidelog_core.errors import ErrorCode
from tidelog_core.model import ANONYMOUS, USER_KIND, Principal

from tidelog_node.requests.session import Session
from tidelog_node.wire.messages import build

MS = datetime.timedelta(milliseconds=1)
NO_TIME_MS = -1  # of a request that is refused before anything is looked up, as in Kafka
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def may_ask_for_tokens(session: Session) -> bool:
    """Return whether the client may send these requests."""
    principal = session.principal
    return principal.kind == USER_KIND and principal != ANONYMOUS and not session.is_by_token


def owner_of(request: create_request.CreateDelegationTokenRequest, session: Session) -> Principal:
    """Return the owner of a wanted token: the client itself, unless the request names another."""
    if not request.owner_principal_name:
        return session.principal
    return Principal(request.owner_principal_type or "", request.owner_principal_name)


def not_created(
    owner: Principal, requester: Principal, code: ErrorCode, *, time_ms: int = NO_TIME_MS
) -> create_response.CreateDelegationTokenResponse:
    """Return the answer to a refused CreateDelegationToken."""
    time = token_time(time_ms)
    return build(
        create_response.CreateDelegationTokenResponse,
        error_code=code,
        **principal_fields(owner, requester),
        issue_timestamp=time,
        expiry_timestamp=time,
        max_timestamp=time,
    )


def principal_fields(owner: Principal, requester: Principal) -> dict[str, Any]:
    """Return the fields of an answer that say whose token it is, and who has asked for it."""
    return {
        "principal_type": owner.kind,
        "principal_name": owner.name,
        "token_requester_principal_type": requester.kind,
        "token_requester_principal_name": requester.name,
    }


def token_time(time_ms: int) -> datetime.datetime:
    """Return a time of a token, in Unix time, as answers have it."""
    return _EPOCH + time_ms * MS
