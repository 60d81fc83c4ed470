"""What AWS's STS answers, as its API reference shows it."""

from __future__ import annotations

from datetime import datetime

_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


def success(token: str, expires_at: datetime) -> str:
    """Return the answer to GetWebIdentityToken."""
    return (
        f'<GetWebIdentityTokenResponse xmlns="{_NAMESPACE}"><GetWebIdentityTokenResult>'
        f"<WebIdentityToken>{token}</WebIdentityToken>"
        f"<Expiration>{expires_at:%Y-%m-%dT%H:%M:%S.000Z}</Expiration>"
        "</GetWebIdentityTokenResult><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata>"
        "</GetWebIdentityTokenResponse>"
    )


def failure(code: str, message: str) -> str:
    """Return an answer that refuses."""
    return (
        f'<ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>Sender</Type><Code>{code}</Code>'
        f"<Message>{message}</Message></Error><RequestId>1</RequestId></ErrorResponse>"
    )
