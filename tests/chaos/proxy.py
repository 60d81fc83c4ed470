"""A TCP proxy that can do to a connection what networks do: one per node, in front of it.

It knows nothing of the protocol. What happens to bytes is decided per link: the pair of
who connects (a client, or the node whose process owns the other end of the socket) and
the node behind this proxy.

    delay        every chunk comes that much later, in order
    throttle     so many bytes a second
    hold         bytes of one or both directions wait until the link heals, and come then:
                 a stream never loses bytes and goes on, so this is what lost packets and
                 a cut cable look like to the ends that do not give up. Where an end gives
                 up meanwhile, the other still gets what was under way, late
    cut          connections are reset, new ones too
    reset        connections are reset once, after part of a chunk
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.tcp_proxy import HOST, ProxiedConnection, TcpProxy

CHUNK_SIZE_BYTES = 1 << 16
TABLE_READINGS_MAX = 3  # of the system's connections: one that changes meanwhile may leave some out
CLIENT = "client"  # the source of every connection that no node has made


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a link does to bytes. The default passes them on."""

    delay_s: float = 0.0
    bytes_per_s: float | None = None  # None: as fast as they come
    holds_requests: bool = False  # from the one who connected
    holds_answers: bool = False  # to the one who connected
    is_cut: bool = False


PASSES = Behaviour()


class ByteProxy(TcpProxy):
    """Listens on a port of its own and relays to ``target_port`` of 127.0.0.1."""

    def __init__(
        self, target_port: int, *, pids: Callable[[], Mapping[int, str]] | None = None
    ) -> None:
        """``pids`` tells the processes that are told apart from clients, and their names."""
        super().__init__((HOST, target_port))
        self._pids = pids
        self._behaviours: dict[str, Behaviour] = {}
        self._everyone = PASSES
        self._links: set[_Link] = set()

    def behave(self, behaviour: Behaviour, source: str | None = None) -> None:
        """Treat connections of ``source`` like this from now on; of everyone if None."""
        if source is None:
            self._everyone = behaviour
        else:
            self._behaviours[source] = behaviour
        for link in list(self._links):
            link.wake()
            if self.behaviour(link.source).is_cut:
                link.connection.abort()

    def heal(self, source: str | None = None) -> None:
        """Pass everything on again, what was held first; links of one source if given."""
        if source is None:
            self._behaviours.clear()
            self._everyone = PASSES
        else:
            self._behaviours.pop(source, None)
        for link in self._links:
            link.wake()

    def reset(self, *, after_bytes: int = 0) -> None:
        """Reset every connection: now, or each in the middle of its next ``after_bytes``."""
        if not after_bytes:
            self.cut()
            return
        for link in self._links:
            link.bytes_left = after_bytes

    def behaviour(self, source: str) -> Behaviour:
        """Return what is done to connections of ``source``: the worse of its own and everyone's."""
        own = self._behaviours.get(source, PASSES)
        rates = [b.bytes_per_s for b in (own, self._everyone) if b.bytes_per_s is not None]
        return Behaviour(
            delay_s=own.delay_s + self._everyone.delay_s,
            bytes_per_s=min(rates) if rates else None,
            holds_requests=own.holds_requests or self._everyone.holds_requests,
            holds_answers=own.holds_answers or self._everyone.holds_answers,
            is_cut=own.is_cut or self._everyone.is_cut,
        )

    async def relay(self, connection: ProxiedConnection) -> None:
        """Relay the bytes of both directions as the link of the source lets them pass."""
        client, source = connection.client, CLIENT
        if self._pids is not None:
            peer_port: int = client[1].get_extra_info("peername")[1]
            source = owner_of(peer_port, self.port, self._pids())
        if self.behaviour(source).is_cut:
            return
        link = _Link(self, connection, source)
        self._links.add(link)
        try:
            server = await connection.dial()
            await asyncio.gather(
                link.pump(client[0], server[1], is_request=True),
                link.pump(server[0], client[1], is_request=False),
            )
        finally:
            self._links.discard(link)


class _Link:
    """Two pumps of one connection and what can happen to them."""

    def __init__(self, proxy: ByteProxy, connection: ProxiedConnection, source: str) -> None:
        self.connection = connection
        self.source = source
        self.bytes_left: int | None = None  # until the connection is reset; None: it is not
        self._proxy = proxy
        self._changed = asyncio.Event()
        connection.on_abort = self.wake

    def wake(self) -> None:
        """Look at the link's behaviour again."""
        event, self._changed = self._changed, asyncio.Event()
        event.set()
        if self.connection.is_aborted:
            self._changed.set()

    async def pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool
    ) -> None:
        """Relay until one end closes or the connection is reset; then reset all of it.

        An orderly close of one side reaches the other after all bytes before it.
        """
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_SIZE_BYTES):
                await self._linger(len(data), is_request=is_request)
                if self.connection.is_aborted:
                    return
                if self.bytes_left is not None:
                    data, self.bytes_left = data[: self.bytes_left], self.bytes_left - len(data)
                writer.write(data)
                await writer.drain()
                if self.bytes_left is not None and self.bytes_left <= 0:
                    await asyncio.sleep(0)  # Let the transport send what it was given.
                    break
            else:
                await self._linger(0, is_request=is_request)
                if not self.connection.is_aborted and not writer.is_closing():
                    writer.write_eof()
                    return
        self.connection.abort()

    async def _linger(self, size_bytes: int, *, is_request: bool) -> None:
        """Return when the link lets so many bytes pass, or the connection is reset."""
        behaviour = self._proxy.behaviour(self.source)
        wait_s = behaviour.delay_s if size_bytes else 0.0
        if behaviour.bytes_per_s is not None:
            wait_s += size_bytes / behaviour.bytes_per_s
        if wait_s > 0 and not self.connection.is_aborted:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
        while not self.connection.is_aborted:
            now = self._proxy.behaviour(self.source)
            if not (now.holds_requests if is_request else now.holds_answers):
                return
            await self._changed.wait()


def owner_of(port: int, to_port: int, pids: Mapping[int, str]) -> str:
    """Return the name of the process with the connection between the ports, else ``CLIENT``."""
    inode = _inode_of(port, to_port)
    if inode is None:
        return CLIENT
    wanted = f"socket:[{inode}]"
    for pid, name in pids.items():
        with contextlib.suppress(OSError):
            if any(_points_to(entry, wanted) for entry in Path(f"/proc/{pid}/fd").iterdir()):
                return name
    return CLIENT


def _points_to(link: Path, target: str) -> bool:
    try:
        return str(link.readlink()) == target
    except OSError:  # closed meanwhile
        return False


def _inode_of(port: int, to_port: int) -> str | None:
    """Return the inode of the connection's near end.

    Connections to other places may have the same near port, or have had it: those that have
    been closed stay in the table for a minute.
    """
    ends = f":{port:04X}", f":{to_port:04X}"
    for _ in range(TABLE_READINGS_MAX):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]) and fields[9] != "0":
                return fields[9]
    return None
