"""Admin calls for users, who log in by SCRAM or by PLAIN with the same password.

A password is salted here: nodes get and store keys from which it cannot be read. Source: KIP-554.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from kio.schema.alter_user_scram_credentials.v0.request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kio.schema.describe_user_scram_credentials.v0.request import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from kio.schema.errors import ErrorCode
from tidelog_core.security.scram_credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISMS_BY_NUMBER,
    SALT_SIZE_BYTES,
    ScramMechanism,
    salt_password,
)
from tidelog_core.security.scram_messages import escaped_name
from tidelog_core.wire_messages import build

from tidelog.administering.calls import AdminCalls
from tidelog.administering.results import UserDescription
from tidelog.errors import (
    InvalidRequest,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
    error_for,
)
from tidelog.given_values import integer, several, text
from tidelog.wire.requests import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS

EVERY_MECHANISM = tuple(mechanism.value for mechanism in ScramMechanism)


class UserCalls(AdminCalls):
    """Admin calls for users."""

    async def describe_users(
        self, users: Iterable[str] | None = None
    ) -> dict[str, UserDescription]:
        """Return the users by name, all of them by default.

        Raises the errors of users that are named, such as ``ResourceNotFound``. Of all users,
        those with an error have a ``problem``.
        """
        api = DESCRIBE_USER_SCRAM_CREDENTIALS
        if users is None:
            request = build(DescribeUserScramCredentialsRequest, users=None)
            results = (await self._ask(api, request, about="users")).results
        else:
            found = await self._ask_for_each(
                api,
                several(users, "users"),
                lambda left: build(
                    DescribeUserScramCredentialsRequest,
                    users=tuple(build(UserName, name=name) for name in left),
                ),
                what="user",
            )
            results = found.values()
        return {one.user: _described(one) for one in sorted(results, key=lambda one: str(one.user))}

    async def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Sequence[str] = EVERY_MECHANISM,
        iterations: int = ITERATIONS_MIN,
    ) -> None:
        """Set the password of a user for each of the mechanisms; creates the user if needed.

        The mechanisms are set one after the other, because Kafka takes one a request. Passwords
        for other mechanisms stay. Raises ``UnacceptableCredential``,
        ``UnsupportedSaslMechanism``.
        """
        wanted = _mechanisms(mechanisms)
        if not isinstance(password, str):  # Its value is a secret.
            raise InvalidRequest(f"password must be a text, is of type {type(password).__name__}")
        integer(iterations, "iterations")
        try:
            escaped_name(text(user, "user"))
        except ValueError as error:
            raise UnacceptableCredential(f"user {user}: {error}") from None
        if not password:
            raise UnacceptableCredential(f"user {user}: the password is empty")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise UnacceptableCredential(
                f"user {user}: the iterations must be between {ITERATIONS_MIN} and"
                f" {ITERATIONS_MAX}, not {iterations}"
            )
        for mechanism in wanted:
            salt = secrets.token_bytes(SALT_SIZE_BYTES)
            salted = await asyncio.to_thread(
                salt_password, mechanism, password, salt=salt, iterations=iterations
            )
            upsertion = build(
                ScramCredentialUpsertion,
                name=user,
                mechanism=mechanism.number,
                iterations=iterations,
                salt=salt,
                salted_password=salted,
            )
            await self._alter_credentials(user, upsertions=(upsertion,))

    async def delete_credentials(self, user: str, mechanisms: Sequence[str] | None = None) -> None:
        """Delete a user's passwords for the mechanisms, by default for all that there are.

        A user without any is gone. Connections that are open stay. Raises ``ResourceNotFound``.
        """
        text(user, "user")
        if mechanisms is None:
            mechanisms = list((await self.describe_users([user]))[user].iterations)
        for mechanism in _mechanisms(mechanisms):
            deletion = build(ScramCredentialDeletion, name=user, mechanism=mechanism.number)
            await self._alter_credentials(user, deletions=(deletion,))

    async def _alter_credentials(
        self,
        user: str,
        *,
        deletions: tuple[ScramCredentialDeletion, ...] = (),
        upsertions: tuple[ScramCredentialUpsertion, ...] = (),
    ) -> None:
        request = build(
            AlterUserScramCredentialsRequest, deletions=deletions, upsertions=upsertions
        )

        api = ALTER_USER_SCRAM_CREDENTIALS
        await self._ask_for_each(api, [user], lambda _: request, what="user")


def _mechanisms(names: Sequence[str]) -> list[ScramMechanism]:
    try:
        return [ScramMechanism(name) for name in dict.fromkeys(several(names, "mechanisms"))]
    except ValueError:
        raise UnsupportedSaslMechanism(
            f"a mechanism is one of {', '.join(EVERY_MECHANISM)}, not one of"
            f" {', '.join(map(str, names))}"
        ) from None


def _described(result: Any) -> UserDescription:
    problem = None
    if result.error_code is not ErrorCode.none:
        problem = str(error_for(result.error_code, result.error_message))
    iterations = {
        _mechanism_name(info.mechanism): int(info.iterations) for info in result.credential_infos
    }
    return UserDescription(result.user, iterations, problem)


def _mechanism_name(number: int) -> str:
    mechanism = MECHANISMS_BY_NUMBER.get(number)
    return f"mechanism {number}" if mechanism is None else mechanism.value
