"""Whether a command can listen where it is told to, before it starts anything."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable

from tidelog_cli.failures import CommandFailed


def require_free_ports(host: str, ports: Iterable[int], option: str) -> None:
    """Raise ``CommandFailed`` for a port in use, before any node starts."""
    for port in ports:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            is_of_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            another = option.replace("port", "host") if is_of_host else option
            raise CommandFailed(
                f"cannot listen on {host}, port {port}: {os_reason(error)}; give another {another}"
            ) from None


def os_reason(error: OSError) -> str:
    """Return the error's meaning, without what Python adds to it."""
    if isinstance(error, socket.gaierror):
        return str(error.strerror).partition(" (")[0]
    number = error.errno or 0
    return os.strerror(number) if number > 0 else str(error.strerror or error)
