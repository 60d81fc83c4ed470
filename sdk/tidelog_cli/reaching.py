"""Starts clients: notes that a node does not answer, and names another server at its address.

after 1 s   «waiting for localhost:9092» on stderr
after 2 s   each address is asked which protocol it speaks: HTTP and TLS end the wait
after 5 s   the wait ends if every address refuses connections, or does not exist
later       the client's own timeout
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from tidelog_cli.failures import CommandFailed
from tidelog_cli.output import note

if TYPE_CHECKING:
    from tidelog.client_factory import ClientFactory
    from tidelog.wire.connection import Address

NOTE_SECONDS = 1.0
ASK_SECONDS = 2.0
REFUSED_SECONDS = 4.0
ANSWER_SECONDS_MAX = 1.0
FIRST_BYTES = 16
KAFKA = "Kafka"
_HTTP_REQUEST = b"GET / HTTP/1.0\r\n\r\n"
# ApiVersions, version 0, correlation id 1, no client id: every Kafka server answers it.
_KAFKA_REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_KAFKA_ANSWER_ID = struct.pack(">i", 1)
_START_A_NODE = "check that a node listens there; `tidelog up` starts one on this machine"


class Startable(Protocol):
    """A client that connects with ``start``."""

    async def start(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Close the connections."""


C = TypeVar("C", bound=Startable)


@asynccontextmanager
async def opened(client: C, factory: ClientFactory) -> AsyncIterator[C]:
    """Start the client and close it behind the block.

    Raises ``CommandFailed`` if no node of Kafka's protocol can be reached, and the errors of
    ``start``.
    """
    try:
        await _start(client, factory)
        yield client
    finally:
        await client.close()


async def _start(client: Startable, factory: ClientFactory) -> None:
    from tidelog.errors import NotKafka

    starting = asyncio.ensure_future(client.start())
    watching = asyncio.ensure_future(_watch(factory.addresses, is_encrypted=factory.is_encrypted))
    try:
        await asyncio.wait({starting, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            watching.result()  # Raises if it is of no use to wait longer.
        await starting
    except NotKafka as error:
        problem = _mismatch(error.address, error.protocol, is_encrypted=factory.is_encrypted)
        raise CommandFailed(problem or str(error)) from None
    finally:
        for task in (starting, watching):
            task.cancel()
        await asyncio.gather(starting, watching, return_exceptions=True)


async def _watch(addresses: Sequence[Address], *, is_encrypted: bool) -> None:
    """Say that the command waits; raise ``CommandFailed`` if that is of no use."""
    servers = ", ".join(map(str, addresses))
    await asyncio.sleep(NOTE_SECONDS)
    note(f"waiting for {servers}")
    await asyncio.sleep(ASK_SECONDS - NOTE_SECONDS)
    answers = await asyncio.gather(*map(answering_protocol, addresses))
    problems = [
        text
        for address, answer in zip(addresses, answers, strict=True)
        if (text := _mismatch(address, answer, is_encrypted=is_encrypted)) is not None
    ]
    if len(problems) == len(addresses):
        raise CommandFailed("; ".join(problems))
    await asyncio.sleep(REFUSED_SECONDS - ASK_SECONDS - ANSWER_SECONDS_MAX)
    refusals = await asyncio.gather(*map(refusal_of, addresses))
    reasons = [reason for reason in refusals if reason is not None]
    if len(reasons) == len(addresses):
        raise CommandFailed(f"no node answers at {servers}: {reasons[0]}; {_START_A_NODE}")


def _mismatch(address: object, answer: str | None, *, is_encrypted: bool) -> str | None:
    if answer is None or (answer == KAFKA and not is_encrypted):
        return None
    if answer == KAFKA:
        return f"{address} does not speak TLS: use security.protocol=PLAINTEXT or SASL_PLAINTEXT"
    if answer != "TLS":
        return f"{address} is not a Kafka port: it answered {answer}; check the port"
    if is_encrypted:
        return None
    wanted = "a --context or --command-config with security.protocol=SSL or SASL_SSL"
    return f"{address} wants TLS: name {wanted}"


async def refusal_of(address: Address) -> str | None:
    """Return why the address cannot be connected to; None if it can, or is just slow."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        return None
    except socket.gaierror as error:
        return f"{address.host}: {error.strerror}"
    except ConnectionRefusedError:
        return "connection refused"
    except OSError as error:
        return str(error.strerror or error)
    await _close(writer)
    return None


async def answering_protocol(address: Address) -> str | None:
    """Return the protocol of the server at the address; None if it is unknown."""
    found = await asyncio.gather(_answer_to_kafka(address), _answer_to_http(address))
    protocols = [protocol for protocol in found if protocol is not None]
    return protocols[0] if protocols else await _answer_to_tls(address)


async def _answer_to_kafka(address: Address) -> str | None:
    first = await _first_bytes(address, _KAFKA_REQUEST)
    return KAFKA if first[4:8] == _KAFKA_ANSWER_ID else None


async def _answer_to_http(address: Address) -> str | None:
    from tidelog.wire.answer_frames import protocol_of

    return protocol_of(await _first_bytes(address, _HTTP_REQUEST))


async def _answer_to_tls(address: Address) -> str | None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    except (OSError, TimeoutError):
        return None
    await _close(writer)
    return "TLS"


async def _first_bytes(address: Address, request: bytes) -> bytes:
    """Return the first bytes that the server answers, empty if it does not."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(address.host, address.port)
    except (OSError, TimeoutError):
        return b""
    try:
        writer.write(request)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return await reader.read(FIRST_BYTES)
    except (OSError, TimeoutError):
        return b""
    finally:
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
