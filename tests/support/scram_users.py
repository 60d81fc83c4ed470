"""Users with passwords, as a node finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog_core.security.scram_credentials import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_from,
    salt_password,
)
from tidelog_core.security.scram_decoys import Decoys
from tidelog_node.authentication.login_credentials import TokenLogin

SALT = b"sixteen or more b"


def stored(
    password: str,
    mechanism: ScramMechanism,
    *,
    salt: bytes = SALT,
    iterations: int = ITERATIONS_MIN,
) -> ScramCredential:
    """Return what is stored of a password."""
    salted = salt_password(mechanism, password, salt=salt, iterations=iterations)
    return credential_from(mechanism, salted, salt=salt, iterations=iterations)


@dataclass
class Users:
    """Credentials of users and tokens, and the names that were asked for."""

    users: Mapping[tuple[str, ScramMechanism], ScramCredential]
    tokens: Mapping[str, ScramCredential] = field(default_factory=dict)
    token_logins: Mapping[str, TokenLogin] = field(default_factory=dict)
    asked: list[tuple[str, bool]] = field(default_factory=list)

    @property
    def has_tokens(self) -> bool:
        """Whether there are tokens."""
        return bool(self.tokens)

    @property
    def tokens_state(self) -> object:
        """The tokens."""
        return self.tokens

    def token_login(self, token_id: str) -> TokenLogin | None:
        """Return the login by a token."""
        return self.token_logins.get(token_id)

    def find(
        self, name: str, mechanism: ScramMechanism, *, is_token: bool
    ) -> ScramCredential | None:
        """Return the credential."""
        self.asked.append((name, is_token))
        return self.tokens.get(name) if is_token else self.users.get((name, mechanism))

    def decoy(
        self, name: str, mechanism: ScramMechanism, *, is_token: bool = False
    ) -> ScramCredential:
        """Return a decoy like the stored credentials."""
        by_mechanism: dict[ScramMechanism, list[ScramCredential]] = {}
        for (_, stored_mechanism), credential in self.users.items():
            by_mechanism.setdefault(stored_mechanism, []).append(credential)
        return Decoys(b"secret", by_mechanism).credential(name, mechanism)
