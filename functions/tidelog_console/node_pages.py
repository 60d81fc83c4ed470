"""What nodes say of themselves over HTTP: /readyz, and the metrics that mean a fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

SECONDS_MAX = 3.0
BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class NodePage:
    """One node's answers; ``problem`` says why there are none."""

    address: str
    problem: str = ""
    is_ready: bool = False
    broker_id: int | None = None
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)  # sums over labels


class NodePages:
    """Asks the nodes of the settings."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._client: aiohttp.ClientSession | None = None

    @property
    def is_known(self) -> bool:
        """Whether the console knows where any node answers."""
        return bool(self._addresses)

    async def ask(self) -> list[NodePage]:
        """Return each node's page."""
        if self._client is None:
            self._client = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=SECONDS_MAX), trust_env=False
            )
        return list(await asyncio.gather(*map(self._ask, self._addresses)))

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def _ask(self, address: str) -> NodePage:
        try:
            ready = json.loads(await self._get(address, "readyz"))
            if not isinstance(ready, dict):
                return NodePage(address, problem="its /readyz is not that of a node")
            metrics = (await self._get(address, "metrics")).decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return NodePage(address, problem=str(error) or "it does not answer in time")
        return NodePage(
            address,
            is_ready=ready.get("status") == "ready",
            broker_id=ready.get("broker_id"),
            checks=ready.get("checks", {}),
            faults=ready.get("faults", []),
            metrics=await asyncio.to_thread(sums, metrics),  # of a large node it is megabytes
        )

    async def _get(self, address: str, page: str) -> bytes:
        assert self._client is not None
        url = f"http://{address}/{page}"
        async with self._client.get(url, allow_redirects=False) as answer:
            data = await answer.content.read(BYTES_MAX)
            while not answer.content.at_eof() and len(data) < BYTES_MAX:
                data += await answer.content.read(BYTES_MAX - len(data))
            return data


def sums(page: str) -> dict[str, float]:
    """Return the sum of each Tidelog metric's samples on a page of Prometheus' text format."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if not line.startswith("tidelog_"):
            continue
        # A label may hold spaces, so the value is what follows the last one.
        series, _, value = line.rpartition(" ")
        name = series.partition("{")[0]
        try:
            found[name] = found.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return found
