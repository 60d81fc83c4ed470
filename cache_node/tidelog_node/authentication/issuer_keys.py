"""The keys that an issuer of tokens publishes (JWKS), from an https address or a file.

They are fetched by a thread: at the start, every ``sasl.oauthbearer.jwks.endpoint.refresh.ms``, and
for a key id that is not known, but not more often than every ``UNKNOWN_SECONDS_MIN``. The last good
ones stay if they cannot be fetched. Nothing that comes from a client is part of the address.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote

if TYPE_CHECKING:
    from tidelog_node.authentication.bearer_tokens import Key

logger = logging.getLogger(__name__)

FETCH_SECONDS_MAX = 10.0
RETRY_SECONDS = 10.0  # after a fetch that failed
UNKNOWN_SECONDS_MIN = 10.0
SIZE_BYTES_MAX = 1_048_576
KEYS_MAX = 200
_PART_BYTES = 65_536
_OK = 200


class IssuerKeys:
    """An issuer's newest keys. For the node's event loop."""

    def __init__(
        self,
        source: SplitResult,
        *,
        refresh_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``source`` is a result of ``parse_jwks_url``."""
        self._source = source
        self._refresh_seconds = refresh_seconds
        self._now = now
        self._keys: Mapping[str | None, Key] = {}
        self._fetched_at = float("-inf")
        self._fetching: asyncio.Task[bool] | None = None

    async def run(self) -> None:
        """Fetch for ever."""
        while True:
            is_fetched = await self._fetch()
            await asyncio.sleep(self._refresh_seconds if is_fetched else RETRY_SECONDS)

    async def find(self, key_id: str | None) -> Key | None:
        """Return the key of this id; without an id the only key there is."""
        found = self._keys.get(key_id)
        if found is None and self._now() - self._fetched_at >= UNKNOWN_SECONDS_MIN:
            await self._fetch()  # The issuer may have begun to use another key.
            found = self._keys.get(key_id)
        return found

    async def _fetch(self) -> bool:
        """Fetch the keys, once for all who wait; return whether that succeeded."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_once())
            self._fetching.add_done_callback(self._on_fetched)
        # A client that gives up must not end it for the others.
        return await asyncio.shield(self._fetching)

    def _on_fetched(self, _: asyncio.Task[bool]) -> None:
        self._fetching = None

    async def _fetch_once(self) -> bool:
        self._fetched_at = self._now()
        try:
            data = await asyncio.to_thread(_read, self._source)
            keys = parse_jwks(data)
        except (OSError, ValueError, http.client.HTTPException) as error:
            logger.warning("keys for OAUTHBEARER not fetched", extra={"reason": str(error)})
            return False
        if keys.keys() != self._keys.keys():
            ids = sorted(key_id for key_id in keys if key_id is not None)
            logger.info("keys for OAUTHBEARER fetched", extra={"key_ids": ", ".join(ids)[:1_000]})
        self._keys = keys
        return True


def parse_jwks(data: bytes) -> Mapping[str | None, Key]:
    """Return the keys for signatures by their ids, an only key also without one.

    Keys of other kinds are left out, symmetric ones too. Raises ``ValueError``.
    """
    document = json.loads(data)
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise ValueError(f"the document has no list of at most {KEYS_MAX} keys")
    keys: dict[str | None, Key] = {}
    usable: list[Key] = []
    for entry in entries:
        key = _key(entry)
        if key is not None:
            usable.append(key)
            if isinstance(entry.get("kid"), str):
                keys[entry["kid"]] = key
    if not usable:
        raise ValueError("the document has no public key for signatures")
    if len(usable) == 1:
        keys[None] = usable[0]
    return keys


def _key(entry: Any) -> Key | None:
    from joserfc.jwk import ECKey, OKPKey, RSAKey, import_key  # by a node that takes tokens only

    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    try:
        key = import_key(entry)
    except Exception as error:  # a library parses the document of another service
        logger.debug("key for OAUTHBEARER cannot be read", extra={"reason": repr(error)})
        return None
    return key if isinstance(key, RSAKey | ECKey | OKPKey) else None


def _read(source: SplitResult) -> bytes:
    """Return the document. Raises ``OSError``, ``ValueError`` and ``HTTPException``."""
    if source.scheme == "file":
        with Path(unquote(source.path)).open("rb") as file:
            data = file.read(SIZE_BYTES_MAX + 1)
    else:
        data = _get(source)
    if len(data) > SIZE_BYTES_MAX:
        raise ValueError(f"the document has more than {SIZE_BYTES_MAX} bytes")
    return data


def _get(source: SplitResult) -> bytes:
    """Get the document within ``FETCH_SECONDS_MAX``. A redirection is an error."""
    deadline = time.monotonic() + FETCH_SECONDS_MAX
    connection = http.client.HTTPSConnection(
        str(source.hostname),
        source.port,
        timeout=FETCH_SECONDS_MAX / 2,
        context=ssl.create_default_context(),
    )
    try:
        path = (source.path or "/") + (f"?{source.query}" if source.query else "")
        connection.request("GET", path, headers={"Accept": "application/json"})
        response = connection.getresponse()
        if response.status != _OK:
            raise ValueError(f"the address answers with the status {response.status}")
        data = bytearray()
        while part := response.read1(_PART_BYTES):
            data += part
            if len(data) > SIZE_BYTES_MAX:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"no whole answer within {FETCH_SECONDS_MAX:.0f} s")
        return bytes(data)
    finally:
        connection.close()
