"""Random frames around a login: nearly right, out of order, or damaged in the places that matter."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tidelog_core.message_schemas import load_request_schema

from tests.support.issuer import first_message
from tests.support.message_bytes import Piece, broken, joined, random_message

HANDSHAKE, API_VERSIONS, AUTHENTICATE = 17, 18, 36
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
STRANGE_MECHANISMS = ("", "GSSAPI", "plain", "PLAIN\0", "SCRAM-SHA-256-PLUS", "é", "x" * 32_767)
FRAMES_MAX = 8  # of a conversation
KEPT_MESSAGES = 20  # of each API and version, damaged anew each time
# What has a meaning in the tokens of some mechanism.
DELIMITERS = (b"\0", b"\x01", b",", b"=", b"=2C", b"=3D", b"n,,", b"y,,", b"p=tls-unique,,", b"r=")
FILLERS = (b"a", b"\xff", b"\xc3\xa9", b"\xed\xa0\x80", b"\xc2\xad", b" ", b"9")
CLIENT_IDS = (None, b"", b"test", b"\xff\xfe", b"x" * 8_000)


class LoginFrames:
    """Makes what strangers send. ``apis`` are those of the node, with their versions."""

    def __init__(self, random: Random, *, users: Sequence[str], apis: Sequence[tuple[int, int]]):
        self._random = random
        self._users = users
        self._apis = apis
        self._messages: dict[tuple[int, int], list[list[Piece]]] = {}

    def conversation(self) -> list[bytes]:
        """Return frames, most often in the order of a login."""
        random = self._random
        frames: list[bytes] = []
        if random.random() < 0.3:
            frames.append(self.versions())
        mechanism = random.choice(MECHANISMS)
        if random.random() < 0.8:
            is_raw = random.random() < 0.3
            name = mechanism if random.random() < 0.9 else random.choice(STRANGE_MECHANISMS)
            frames.append(self.handshake(name, version=0 if is_raw else 1))
            send = _framed if is_raw else self.authenticate
            frames += [send(self.token(mechanism)) for _ in range(random.randint(1, 3))]
        strays: tuple[Callable[[], bytes], ...] = (
            self.versions,
            self.any_api,
            self.garbage,
            lambda: self.authenticate(self.token(mechanism)),
            lambda: _framed(self.token(mechanism)),
            lambda: self.handshake(mechanism, version=random.randrange(2)),
        )
        while len(frames) < FRAMES_MAX and random.random() < 0.4:
            frames.insert(random.randint(0, len(frames)), random.choice(strays)())
        return frames or [self.garbage()]

    # -- frames --

    def versions(self) -> bytes:
        """Return ApiVersions, perhaps of a version that does not exist, or damaged."""
        version = self._random.choice((0, 1, 2, 3, 4, 99, -1))
        return self._request(API_VERSIONS, version, 3 if version not in range(5) else version)

    def handshake(self, mechanism: str, *, version: int) -> bytes:
        """Return SaslHandshake."""
        name = mechanism.encode()
        pieces = [Piece("int16", struct.pack(">h", len(name))), Piece("text", name)]
        return self._framed_request(HANDSHAKE, version, pieces)

    def authenticate(self, token: bytes) -> bytes:
        """Return SaslAuthenticate with the token, perhaps in a damaged frame."""
        if self._random.random() < 0.9:
            pieces = [Piece("int32", struct.pack(">i", len(token))), Piece("bytes", token)]
            return self._framed_request(AUTHENTICATE, self._random.randrange(2), pieces)
        return self._request(AUTHENTICATE, 2, 2)

    def any_api(self) -> bytes:
        """Return a request of any API of the node."""
        return self._request(*self._random.choice(self._apis))

    def garbage(self) -> bytes:
        """Return bytes of no protocol, behind a size that may be wrong."""
        random = self._random
        data = random.randbytes(random.choice((0, 1, 7, 8, 9, 100)))
        size = random.choice((len(data), len(data) + 1, 2**31 - 1, -1, 524_288, 0))
        return struct.pack(">i", size) + data

    def _request(self, api_key: int, version: int, of_schema: int | None = None) -> bytes:
        schema: Any = load_request_schema(api_key, version if of_schema is None else of_schema)
        known = self._messages.setdefault((api_key, version), [])
        if len(known) < KEPT_MESSAGES:  # Making one takes longer than the node takes for it.
            texts = (*self._users, "t", "")
            known.append(random_message(schema, self._random, strangers=self._random, texts=texts))
        pieces = self._random.choice(known)
        return self._framed_request(api_key, version, pieces, is_flexible=schema.__flexible__)

    def _framed_request(
        self, api_key: int, version: int, pieces: list[Piece], *, is_flexible: bool = False
    ) -> bytes:
        random = self._random
        body = joined(pieces) if random.random() < 0.8 else broken(pieces, random)
        client_id = random.choice(CLIENT_IDS)
        length = -1 if client_id is None else len(client_id)
        head = struct.pack(">hhih", api_key, version, random.getrandbits(31), length)
        return _framed(head + (client_id or b"") + b"\0" * is_flexible + body)

    # -- tokens --

    def token(self, mechanism: str) -> bytes:
        """Return a token of the mechanism, most often with a mutation."""
        token = self._token(mechanism)
        while self._random.random() < 0.6:
            token = self._mutated(token)
        return token

    def _token(self, mechanism: str) -> bytes:
        random = self._random
        user = random.choice(self._users)
        if mechanism == "PLAIN":
            return f"{random.choice(('', user, 'root'))}\0{user}\0wrong".encode()
        if mechanism == "OAUTHBEARER":
            parts = [
                base64.urlsafe_b64encode(text).rstrip(b"=").decode()
                for text in (b'{"alg":"RS256","kid":"first"}', b'{"sub":"root"}', b"signature")
            ]
            return random.choice((b"\x01", first_message(".".join(parts), authorization_id=user)))
        proof = base64.b64encode(random.randbytes(random.choice((32, 64, 31)))).decode()
        messages = (
            f"n,,n={user},r=fyko+d2lbbFgONRv9qkxdawL",
            f"n,a={user},n={user},r=abc,tokenauth=true",
            f"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p={proof}",
        )
        return random.choice(messages).encode()

    def _mutated(self, token: bytes) -> bytes:
        random = self._random
        at, end = sorted(random.randint(0, len(token)) for _ in range(2))
        before, behind = token[:at], token[at:]
        filler = random.choice(FILLERS) * random.choice((1, 3, 9_000))
        return random.choice(
            (
                before,
                before + token[end:],
                token[:end] + behind,
                before + random.choice(DELIMITERS) + behind,
                before + filler + behind,
                before + random.randbytes(random.randint(1, 4)) + token[end:],
                token.swapcase(),
            )
        )


def _framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data
