"""Runs a console until a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from tidelog_console.server import serve
from tidelog_console.settings import ConsoleSettings


async def run_console(
    settings: ConsoleSettings,
    announce: Callable[[str], None],
    *,
    stop_when_readable: int | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until the descriptor is readable.

    ``announce`` gets the URL. Raises ``InvalidConfig`` for files that are no certificates, and
    ``OSError`` if the port is in use.
    """
    # Its clients warn at every try while no node answers; pages say so, and nodes log why.
    logging.getLogger("tidelog").setLevel(logging.ERROR)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if stop_when_readable is not None:
        loop.add_reader(stop_when_readable, stop.set)
    await serve(settings, stop, announce)
