"""Builds what lets clients in at listeners with TLS. Only nodes with such listeners import it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack

from tidelog_node.authentication.login_log import LoginLog
from tidelog_node.authentication.tls_clients import TlsClients
from tidelog_node.connections.read_watch import ReadWatch
from tidelog_node.connections.tls_transport import TlsBuffers
from tidelog_node.security.kernel_tls import listeners_with_kernel_tls
from tidelog_node.security.listener_tls import ListenerTls
from tidelog_node.security.listeners import Listeners


async def load_listener_tls(listeners: Listeners, executor: Executor) -> ListenerTls:
    """Return the contexts of the listeners with TLS. Raises ``InvalidConfig``."""
    tls = ListenerTls(listeners.clients, executor)
    await tls.load()
    return tls


def build_tls_clients(
    stack: AsyncExitStack,
    listeners: Listeners,
    *,
    tls: ListenerTls,
    logins: LoginLog,
    buffers: Callable[[], TlsBuffers],
) -> TlsClients:
    """Return what makes the transports of clients; the stack ends the watch of kernel TLS."""
    return TlsClients(
        listeners.clients,
        tls=tls,
        logins=logins,
        buffers=buffers,
        kernel_tls=_start_kernel_tls(stack, listeners),
    )


def _start_kernel_tls(stack: AsyncExitStack, listeners: Listeners) -> dict[str, ReadWatch]:
    """Return the listeners with kernel TLS, and the watch of their connections' reads."""
    names = listeners_with_kernel_tls(listeners.clients)
    if not names:
        return {}
    watch = ReadWatch()
    stack.callback(watch.close)
    return dict.fromkeys(names, watch)
