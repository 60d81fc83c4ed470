"""Connects to a TLS listener again and again: ``python -m bench.secure.connecting PORT …``.

Each connection is a full handshake with a client certificate and one answered request, and is then
closed. The node's certificate is not verified: the clients share a core, and must not need more of
it than the node needs of its own. Prints how many there were.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import sys
import time

_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_LOWEST_PRIORITY = 19


def main() -> None:
    """Connect at a rate, at most, for some seconds."""
    port, pem, rate, seconds = sys.argv[1:]
    os.nice(_LOWEST_PRIORITY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(pem)
    interval, began = 1 / float(rate), time.monotonic()
    count = 0
    while (now := time.monotonic()) < began + float(seconds):
        if (ahead := began + count * interval - now) > 0:
            time.sleep(ahead)
        with _connected(int(port)) as plain, context.wrap_socket(plain) as client:
            client.sendall(_API_VERSIONS)
            if not client.recv(65_536):
                raise ConnectionResetError("the node has closed the connection")
        count += 1
    print(count)


def _connected(port: int) -> socket.socket:
    """Return a connection that sends at once, as those of Kafka's clients do.

    Otherwise the request waits 40 ms, until the node's kernel acknowledges the handshake's end.
    """
    connected = socket.socket()
    connected.settimeout(30)
    connected.connect(("127.0.0.1", port))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


if __name__ == "__main__":
    main()
