"""A token in a file that another program writes and renews, as Kubernetes does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidelog.errors import AuthenticationFailed
from tidelog.tokens.bearer_token import TOKEN_SIZE_BYTES_MAX, BearerToken, claimed_expiry, is_token


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The file is read for each login."""

    path: Path

    def __call__(self) -> str:
        """Return the token."""
        return self.fetch().text

    def fetch(self) -> BearerToken:
        """Return the file's only line. Raises ``AuthenticationFailed``."""
        try:
            with self.path.open("rb") as file:
                data = file.read(TOKEN_SIZE_BYTES_MAX + 2)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise AuthenticationFailed(f"cannot read the token in {self.path}: {reason}") from None
        token = data.decode("ascii", errors="replace").strip()
        if not is_token(token):
            raise AuthenticationFailed(f"{self.path} has something else than a token")
        return BearerToken(token, claimed_expiry(token))
