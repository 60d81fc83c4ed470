"""The commits of appended batches, for which the answer to a gateway waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidelog_core.errors import RequestTimedOut, TidelogError

from tidelog_node.wire.gateway_append import GatewayResult

COMMIT_SECONDS_MAX = 30.0


class GatewayAck:
    """Waits for the commit of one batch."""

    __slots__ = ("result", "settled")

    def __init__(self, result: GatewayResult) -> None:
        self.result = result
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_ack(self, error: TidelogError | None) -> None:
        """Take the ack, or the error instead."""
        if error is not None:
            self.result = self.result._replace(error_code=error.code)
        if not self.settled.done():
            self.settled.set_result(None)


async def results_of(waits: Sequence[GatewayAck | asyncio.Task[GatewayAck]]) -> list[GatewayResult]:
    """Wait until every batch is committed or refused, at most so long."""
    deadline = asyncio.get_running_loop().time() + COMMIT_SECONDS_MAX
    results: list[GatewayResult] = []
    for wait in waits:
        ack = wait if isinstance(wait, GatewayAck) else await wait
        try:
            async with asyncio.timeout_at(deadline):
                await ack.settled
        except TimeoutError:
            ack.on_ack(RequestTimedOut("not committed in time"))
        results.append(ack.result)
    return results
