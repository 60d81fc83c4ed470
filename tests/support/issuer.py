"""An issuer of tokens: its keys, in a file as nodes read them, and signed tokens."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

ISSUER, AUDIENCE = "https://issuer.example", "tidelog"


class Issuer:
    """Has one key at first; ``publish`` writes the public ones."""

    def __init__(self, path: Path, *, issuer: str = ISSUER) -> None:
        self.path = path
        self.issuer = issuer
        self.key = RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})
        self.publish(self.key)

    @property
    def url(self) -> str:
        return f"file:{self.path}"

    @property
    def settings(self) -> dict[str, str]:
        """What a node needs to take its tokens."""
        return {
            "sasl.oauthbearer.expected.issuer": self.issuer,
            "sasl.oauthbearer.expected.audience": f"other,{AUDIENCE}",
            "sasl.oauthbearer.jwks.endpoint.url": self.url,
            "sasl.oauthbearer.groups.claim.name": "groups",
        }

    def publish(self, *keys: RSAKey | ECKey) -> None:
        """Write the public keys."""
        document = KeySet(list(keys)).as_dict(private=False)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(document))
        new.rename(self.path)

    def token(
        self,
        user: str = "alice",
        *,
        key: Any = None,
        header: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """Return a token; a claim of ``None`` is left out."""
        now = int(time.time())
        given = {"iss": self.issuer, "aud": AUDIENCE, "sub": user, "exp": now + 600, "iat": now}
        said = {name: value for name, value in {**given, **claims}.items() if value is not None}
        key = key or self.key
        head = {"alg": "RS256", "kid": key.kid, **(header or {})}
        head = {name: value for name, value in head.items() if value is not None}
        return jwt.encode(head, said, key, algorithms=[head["alg"]])


def unsigned(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """Return a token with this header and signature, whatever they are."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def signed(header: dict[str, Any], claims: dict[str, Any], key: RSAKey) -> str:
    """Return a token with any header, signed by RS256."""
    body = unsigned(header, claims).rpartition(".")[0]
    signature = key.private_key.sign(body.encode(), padding.PKCS1v15(), hashes.SHA256())
    return unsigned(header, claims, signature)


def first_message(token: str, *, authorization_id: str = "") -> bytes:
    """Return what a client sends."""
    who = f"a={authorization_id}" if authorization_id else ""
    return f"n,{who},\x01auth=Bearer {token}\x01\x01".encode()
