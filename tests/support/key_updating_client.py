"""A TLS 1.3 client that changes its keys as often as it likes; no TLS library offers that.

OpenSSL makes the handshake, and tells the secrets to a key log. From then on this client encrypts
what it sends by itself (RFC 8446, sections 4.6.3, 5.2 and 7.2). It still receives by OpenSSL.
"""

from __future__ import annotations

import hmac
import socket
import ssl
import struct
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

APPLICATION_DATA, HANDSHAKE = 23, 22
RECORD_BYTES_MAX = 16_384
_KEY_UPDATE = 24


class KeyUpdatingClient:
    """The client's end of a connection with the suite TLS_AES_256_GCM_SHA384."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, key_log: Path) -> None:
        """Begin the handshake; ``key_log`` is a file for this connection alone."""
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.keylog_filename = str(key_log)
        self.socket = sock
        self._key_log = key_log
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")

    def go_on(self) -> bool:
        """Go on with the handshake; return whether it needs no further bytes of the server."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.socket.sendall(self._outgoing.read())
            encrypted = self.socket.recv(65_536)
            if not encrypted:
                raise ConnectionAbortedError("closed during the handshake") from None
            self._incoming.write(encrypted)
            return False
        self.socket.sendall(self._outgoing.read())
        suite = self._tls.cipher()
        assert suite is not None
        assert suite[0] == "TLS_AES_256_GCM_SHA384"
        secrets = dict(line.split()[::2] for line in self._key_log.read_text().splitlines()[1:])
        self._use(bytes.fromhex(secrets["CLIENT_TRAFFIC_SECRET_0"]))
        return True

    def records(self, data: bytes) -> bytes:
        """Return the data encrypted, to be sent next."""
        parts = (
            data[start : start + RECORD_BYTES_MAX]
            for start in range(0, len(data), RECORD_BYTES_MAX)
        )
        return b"".join(self._record(part, APPLICATION_DATA) for part in parts)

    def key_updates(self, count: int, *, are_requests: bool) -> bytes:
        """Return so many changes of the key, encrypted, to be sent next.

        With ``are_requests`` the server is asked to change its own key each time.
        """
        message = bytes([_KEY_UPDATE, 0, 0, 1, are_requests])
        encrypted = bytearray()
        for _ in range(count):
            encrypted += self._record(message, HANDSHAKE)
            self._use(_expand(self._secret, "traffic upd", 48))
        return bytes(encrypted)

    def receive(self, size_bytes: int) -> bytes:
        """Return so many bytes, less once the server sends no more. Raises ``ssl.SSLError``."""
        received = b""
        while len(received) < size_bytes:
            try:
                piece = self._tls.read(size_bytes - len(received))
            except ssl.SSLWantReadError:
                encrypted = self.socket.recv(65_536)
                if not encrypted:
                    break
                self._incoming.write(encrypted)
                continue
            except ssl.SSLZeroReturnError:
                break
            if not piece:
                break
            received += piece
        return received

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(_expand(secret, "key", 32))
        self._iv = int.from_bytes(_expand(secret, "iv", 12))
        self._sequence = 0

    def _record(self, data: bytes, kind: int) -> bytes:
        head = struct.pack(">BHH", APPLICATION_DATA, 0x0303, len(data) + 1 + 16)
        nonce = (self._iv ^ self._sequence).to_bytes(12)
        self._sequence += 1
        return head + self._cipher.encrypt(nonce, data + bytes([kind]), head)


def _expand(secret: bytes, label: str, size_bytes: int) -> bytes:
    name = b"tls13 " + label.encode()
    info = struct.pack(">HB", size_bytes, len(name)) + name + b"\0"
    return hmac.digest(secret, info + b"\1", "sha384")[:size_bytes]  # HKDF-Expand of one block
