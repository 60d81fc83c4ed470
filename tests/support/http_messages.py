"""HTTP/1.1 messages as bytes, for proxies that pass them on unchanged."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit


def address_of(url: str) -> tuple[str, int]:
    """Return the host and the port of a URL that names both."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def header(head: bytes, wanted: bytes) -> bytes | None:
    """Return the value of a header by its name in lower case, or None."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == wanted:
            return value.strip()
    return None


async def read_message(
    reader: asyncio.StreamReader, *, has_body: bool = True
) -> tuple[bytes, bytes]:
    """Return the head, blank line included, and the body as it was sent."""
    head = await reader.readuntil(b"\r\n\r\n")
    if not has_body or head.split(b" ", 2)[1] in {b"204", b"304"}:
        return head, b""
    if (header(head, b"transfer-encoding") or b"").lower() == b"chunked":
        return head, await _read_chunks(reader)
    return head, await reader.readexactly(int(header(head, b"content-length") or 0))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    size_bytes = -1
    while size_bytes != 0:
        line = await reader.readuntil(b"\r\n")
        size_bytes = int(line.partition(b";")[0], 16)
        body += line + await reader.readexactly(size_bytes + 2)
    return body
