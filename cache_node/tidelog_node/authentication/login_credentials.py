"""The credentials that clients log in with: of users, and of delegation tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidelog_core.metadata.security.delegation_tokens import DelegationToken, DelegationTokens
from tidelog_core.metadata.security.scram_users import ScramUsers
from tidelog_core.security.delegation_tokens import TokenSecret
from tidelog_core.security.scram import ScramCredentials
from tidelog_core.security.scram_credentials import ScramCredential, ScramMechanism


class TokenLogin(NamedTuple):
    """The identity that a delegation token gives to its holder, and its expiry."""

    owner: str
    groups: tuple[str, ...]
    expires_ms: int


class LoginCredentials(ScramCredentials, Protocol):
    """The credentials of one moment."""

    @property
    def has_tokens(self) -> bool:
        """Whether there can be delegation tokens."""

    @property
    def tokens_state(self) -> object:
        """The tokens there are: another object once one was made, changed or removed."""

    def token_login(self, token_id: str) -> TokenLogin | None:
        """Return the login by a token; ``None`` if there is no such token, or it has expired."""


@dataclass(frozen=True, slots=True)
class ImageCredentials:
    """The credentials of an image. A token counts if the secret key made it."""

    users: ScramUsers
    tokens: DelegationTokens
    secret: TokenSecret | None
    clock_ms: Callable[[], int]  # wall clock

    @property
    def has_tokens(self) -> bool:
        """Whether there can be delegation tokens."""
        return self.secret is not None

    @property
    def tokens_state(self) -> object:
        """The tokens there are."""
        return self.tokens

    def find(
        self, name: str, mechanism: ScramMechanism, *, is_token: bool
    ) -> ScramCredential | None:
        """Return the credential of a user, or of a token that counts."""
        if not is_token:
            return self.users.find(name, mechanism)
        token = self._token(name)
        return None if token is None else token.credentials[mechanism]

    def decoy(
        self, name: str, mechanism: ScramMechanism, *, is_token: bool = False
    ) -> ScramCredential:
        """Return a credential that no password fits."""
        return self.users.decoy(name, mechanism, is_token=is_token)

    def token_login(self, token_id: str) -> TokenLogin | None:
        """Return the login by a token that counts."""
        token = self._token(token_id)
        return None if token is None else TokenLogin(token.owner, token.groups, token.expires_ms)

    def _token(self, token_id: str) -> DelegationToken | None:
        token = self.tokens.records.get(token_id)
        if token is None or self.secret is None or token.expires_ms < self.clock_ms():
            return None
        is_known = self.secret.known_hmac(token_id, token.digest) is not None
        return token if is_known else None
