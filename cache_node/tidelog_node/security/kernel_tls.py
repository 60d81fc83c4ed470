"""Finds out whether the kernel encrypts a TLS connection (kernel TLS, «kTLS»).

OpenSSL makes the handshake on the socket and then hands the keys to the kernel, one for each
direction, if the kernel takes them. Plain bytes that are written to the socket are encrypted from
then on, also by ``sendfile``. If the kernel has not taken the key, the same bytes leave in the
clear. So ``kernel_encrypts`` asks the kernel for each connection; no setting decides it.

Sources: linux/Documentation/networking/tls.rst, include/uapi/linux/tls.h; OpenSSL's
SSL_OP_ENABLE_KTLS.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections.abc import Iterable

from tidelog_node.security.listeners import Listener

logger = logging.getLogger(__name__)

TCP_ULP = 31
SOL_TLS = 282
TLS_TX = 1
CRYPTO_INFO_BYTES = 4  # version and cipher; asked for more, the kernel wants the whole key's size
OP_ENABLE_KTLS = 1 << 3  # ``ssl.OP_ENABLE_KTLS`` of Python 3.12; means this from OpenSSL 3.0 on
OPENSSL_MIN = (3, 0)


def allow_kernel_tls(context: ssl.SSLContext) -> None:
    """Make OpenSSL offer the keys of this context's connections to the kernel.

    No effect where OpenSSL does not work on a socket.
    """
    # A client that sends no more may still take answers, as on a plain connection.
    context.options |= OP_ENABLE_KTLS | ssl.OP_IGNORE_UNEXPECTED_EOF


def kernel_encrypts(sock: socket.socket) -> bool:
    """Return whether plain bytes that are written to the socket leave it encrypted.

    True from the handshake to the socket's end, or never. The keys are not read.
    """
    try:
        info = sock.getsockopt(SOL_TLS, TLS_TX, CRYPTO_INFO_BYTES)
    except OSError:  # ENOTSUP, ENOPROTOOPT: no TLS in the kernel; EBUSY: not in this direction
        return False
    return len(info) == CRYPTO_INFO_BYTES and any(info)


def obstacle_to_kernel_tls() -> str:
    """Return why this process cannot have kernel TLS, "" if it can."""
    if ssl.OPENSSL_VERSION_INFO < OPENSSL_MIN:
        return f"{ssl.OPENSSL_VERSION} cannot hand keys to the kernel"
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
        except OSError as error:
            # The kernel has TLS and refuses it only because the socket is not connected.
            if error.errno == errno.ENOTCONN:
                return ""
            if error.errno == errno.ENOENT:
                return "the kernel has no TLS, or its module is not loaded"
            return f"the kernel refuses TLS: {error.strerror}"
    return ""


def listeners_with_kernel_tls(listeners: Iterable[Listener]) -> frozenset[str]:
    """Return the names of the listeners whose keys the kernel is offered. Logs it once."""
    names = frozenset(
        one.name for one in listeners if one.protocol.has_tls and one.config.ssl_ktls_enable
    )
    if not names:
        return names
    text = ", ".join(sorted(names))
    if obstacle := obstacle_to_kernel_tls():
        logger.warning(
            "no kernel TLS, the node encrypts by itself",
            extra={"listeners": text, "reason": obstacle}
            | {"hint": "run «modprobe tls» on the host before the node starts"},
        )
        return frozenset()
    logger.info("kernel TLS", extra={"listeners": text})
    return names
