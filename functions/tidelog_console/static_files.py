"""Styles, scripts and the icon: read once, packed once, and named by their content.

A page names ``/static/<name>?v=<hash>``, so a browser keeps a file until it changes.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

FOLDER = Path(__file__).parent / "static"
PREFIX = "/static/"
HASH_DIGITS = 12
KEPT = "public, max-age=31536000, immutable"
KEPT_WITHOUT_HASH = "no-cache"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is sent."""

    name: str
    content_type: str
    data: bytes
    packed: bytes  # gzip
    digest: str

    @property
    def url(self) -> str:
        """The path at which a page finds this content."""
        return f"{PREFIX}{self.name}?v={self.digest}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send it, packed to browsers that take that."""
        is_named = request.query.get("v") == self.digest
        headers = {
            "Content-Type": f"{self.content_type}; charset=utf-8",
            "Cache-Control": KEPT if is_named else KEPT_WITHOUT_HASH,
            "Vary": "Accept-Encoding",
        }
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            packing = {"Content-Encoding": "gzip"}
            return web.Response(body=self.packed, headers={**headers, **packing})
        return web.Response(body=self.data, headers=headers)


def read_files() -> Mapping[str, StaticFile]:
    """Return the files by name."""
    return {path.name: _read(path) for path in sorted(FOLDER.iterdir())}


def _read(path: Path) -> StaticFile:
    data = path.read_bytes()
    return StaticFile(
        path.name,
        mimetypes.guess_type(path.name)[0] or "text/plain",
        data,
        gzip.compress(data, mtime=0),
        hashlib.sha256(data).hexdigest()[:HASH_DIGITS],
    )


FILES = read_files()
