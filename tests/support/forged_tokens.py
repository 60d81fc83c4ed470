"""Tokens that no broker may take, each with one thing wrong."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable

from joserfc.jwk import ECKey, OctKey, RSAKey

from tests.support.issuer import AUDIENCE, ISSUER, Issuer, signed, unsigned


def tampered(token: str) -> str:
    """Return the token with another user, and the signature that it had."""
    head, _, signature = token.split(".")
    return ".".join((head, unsigned({}, claims("eve")).split(".")[1], signature))


def claims(user: str = "alice") -> dict[str, object]:
    return {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "exp": int(time.time()) + 600}


def by_the_public_key(issuer: Issuer) -> str:
    """Return a token whose HMAC has the public key as its secret."""
    token = unsigned({"alg": "HS256", "kid": "first"}, claims())
    body = token.rpartition(".")[0]
    secret = issuer.key.as_pem(private=False)
    signature = hmac.new(secret, body.encode(), hashlib.sha256).digest()
    return unsigned({"alg": "HS256", "kid": "first"}, claims(), signature)


NOW = int(time.time())
OTHER = RSAKey.generate_key(2048, {"kid": "first"})
EC = ECKey.generate_key("P-256", {"kid": "first"})
Make = Callable[[Issuer], str]
FORGED: dict[str, Make] = {
    "no signature": lambda _: unsigned({"alg": "none", "kid": "first"}, claims()),
    "none, in capitals": lambda _: unsigned({"alg": "NONE", "kid": "first"}, claims()),
    "no algorithm": lambda _: unsigned({"kid": "first"}, claims()),
    "HMAC with the public key": by_the_public_key,
    "HMAC": lambda i: i.token(
        key=OctKey.import_key("s" * 32, {"kid": "first"}), header={"alg": "HS256"}
    ),
    "another key": lambda i: i.token(key=OTHER),
    "a key of another type": lambda i: i.token(key=EC, header={"alg": "ES256"}),
    "unknown key": lambda i: i.token(header={"kid": "unknown"}),
    "key id that is no text": lambda _: unsigned({"alg": "RS256", "kid": 5}, claims()),
    "its own key": lambda i: i.token(key=OTHER, header={"jwk": OTHER.as_dict(private=False)}),
    "keys elsewhere": lambda i: i.token(key=OTHER, header={"jku": "https://127.0.0.1:1/keys"}),
    "certificate elsewhere": lambda i: i.token(
        key=OTHER, header={"x5u": "https://127.0.0.1:1/certificate"}
    ),
    "unknown critical header": lambda i: signed(
        {"alg": "RS256", "kid": "first", "crit": ["canary"], "canary": 1}, claims(), i.key
    ),
    "another user": lambda i: tampered(i.token()),
    "cut": lambda i: i.token()[:-5],
    "no signature part": lambda i: i.token().rpartition(".")[0],
    "expired": lambda i: i.token(exp=NOW - 3_600),
    "expired for longer than clocks differ": lambda i: i.token(exp=int(time.time()) - 40),
    "not valid yet": lambda i: i.token(nbf=NOW + 3_600),
    "issued in the future": lambda i: i.token(iat=NOW + 3_600),
    "no expiry": lambda i: i.token(exp=None),
    "expiry that is no number": lambda i: i.token(exp="never"),
    "no issuer": lambda i: i.token(iss=None),
    "another issuer": lambda i: i.token(iss=ISSUER + "/"),
    "no audience": lambda i: i.token(aud=None),
    "another audience": lambda i: i.token(aud=["a", "b"]),
    "no user": lambda i: i.token(sub=None),
    "user that is no text": lambda i: i.token(sub=["alice"]),
    "empty user": lambda i: i.token(""),
    "long user": lambda i: i.token("x" * 1_001),
    "groups that are no list": lambda i: i.token(groups={"a": 1}),
    "group that is no text": lambda i: i.token(groups=["a", 5]),
    "many groups": lambda i: i.token(groups=[f"{number}" for number in range(201)]),
    "no JWT": lambda _: "abc",
    "JSON that is none": lambda _: "e30.e30.e30",
    "a list as header": lambda _: "W10.e30.e30",
    "deep header": lambda _: unsigned({}, {}).replace("e30", "W1tb" * 2_000, 1),
}
