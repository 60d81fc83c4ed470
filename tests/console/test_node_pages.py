from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from tidelog_console.node_pages import NodePages


@asynccontextmanager
async def answering(ready: str) -> AsyncIterator[str]:
    """Give the address of a server with this ``/readyz``."""
    application = web.Application()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=ready if request.path == "/readyz" else "tidelog_faults 2\n")

    application.router.add_get("/{page}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


async def test_a_server_that_is_no_node_hides_no_node() -> None:
    async with answering("[]") as other, answering('{"status": "ready", "broker_id": 3}') as node:
        pages = NodePages((other, node))
        found = await pages.ask()
        await pages.close()
    assert [(one.is_ready, one.broker_id) for one in found] == [(False, None), (True, 3)]
    assert "not that of a node" in found[0].problem
    assert found[1].metrics == {"tidelog_faults": 2.0}
