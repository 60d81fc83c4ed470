"""DescribeUserScramCredentials and AlterUserScramCredentials. Source: KIP-554."""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.alter_user_scram_credentials.v0 import request as alter_request
from kio.schema.alter_user_scram_credentials.v0 import response as alter_response
from kio.schema.describe_user_scram_credentials.v0 import request as describe_request
from kio.schema.describe_user_scram_credentials.v0 import response as describe_response
from tidelog_core.admin.security.scram_users import (
    ScramDeletion,
    ScramUpsertion,
    ScramUserAdmin,
    describe_users,
)
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, StoreUnavailable, TidelogError
from tidelog_core.metadata.security.scram_users import UserScramCredential

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.administration import admin_outcome
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build


class ScramUserHandlers:
    """Shows and changes users' credentials."""

    def __init__(self, node: NodeContext) -> None:
        self._view = node.view
        self._admin = ScramUserAdmin(node.store, node.view)

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, self.describe),
            Route(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, self.alter),
        ]

    async def describe(
        self, request: describe_request.DescribeUserScramCredentialsRequest, _: RequestContext
    ) -> describe_response.DescribeUserScramCredentialsResponse:
        """Answer DescribeUserScramCredentials."""
        try:
            image = await self._view.refresh()
        except StoreUnavailable:
            image = self._view.image
        turn = RequestTurn()
        described = await describe_users(image, [user.name for user in request.users or ()])
        return build(
            describe_response.DescribeUserScramCredentialsResponse,
            error_code=ErrorCode.none,
            error_message=None,
            results=tuple(
                [_described(user, found) async for user, found in turn.each(described.items())]
            ),
        )

    async def alter(
        self, request: alter_request.AlterUserScramCredentialsRequest, _: RequestContext
    ) -> alter_response.AlterUserScramCredentialsResponse:
        """Answer AlterUserScramCredentials once the changes are in the store."""
        turn = RequestTurn()
        errors = await self._admin.alter(
            [ScramDeletion(one.name, one.mechanism) async for one in turn.each(request.deletions)],
            [
                ScramUpsertion(
                    one.name,
                    one.mechanism,
                    iterations=one.iterations,
                    salt=one.salt,
                    salted_password=one.salted_password,
                )
                async for one in turn.each(request.upsertions)
            ],
        )
        return build(
            alter_response.AlterUserScramCredentialsResponse,
            results=tuple(
                [
                    admin_outcome(alter_response.AlterUserScramCredentialsResult, error, user=user)
                    async for user, error in turn.each(errors.items())
                ]
            ),
        )


def _described(
    user: str, found: Sequence[UserScramCredential] | TidelogError
) -> describe_response.DescribeUserScramCredentialsResult:
    error = found if isinstance(found, TidelogError) else None
    records = () if isinstance(found, TidelogError) else found
    return admin_outcome(
        describe_response.DescribeUserScramCredentialsResult,
        error,
        user=user,
        credential_infos=tuple(
            build(
                describe_response.CredentialInfo,
                mechanism=record.mechanism.number,
                iterations=record.credential.iterations,
            )
            for record in records
        ),
    )
