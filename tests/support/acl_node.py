"""A node with an authorizer, in this process: ``python -m tidelog_node`` does not start one yet."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tidelog_node.settings import parse_settings
from tidelog_node.wiring import run_node

START_SECONDS_MAX = 60.0


@contextmanager
def node_with_acls(data_dir: Path, config: Mapping[str, str]) -> Iterator[int]:
    """Run a node on a thread's event loop; yield its port."""
    settings = parse_settings(["--data-dir", str(data_dir), "--port", "0"], {})
    overrides = {"authorizer.class.name": "tidelog.acl", **config}
    settings = dataclasses.replace(settings, config_overrides=overrides)
    started: SimpleQueue[tuple[int, asyncio.AbstractEventLoop, asyncio.Event] | Exception]
    started = SimpleQueue()

    async def serve() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        await run_node(
            settings,
            stop=stop,
            on_ready=lambda endpoint: started.put((endpoint.port, loop, stop)),
        )

    def run() -> None:
        try:
            asyncio.run(serve())
        except Exception as error:
            started.put(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    answer = started.get(timeout=START_SECONDS_MAX)
    if isinstance(answer, Exception):
        raise answer
    port, loop, stop = answer
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
