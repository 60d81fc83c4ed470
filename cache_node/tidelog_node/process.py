"""One node process: from its arguments to its exit status.

Prints one line on stdout once it serves clients:
``tidelog node <broker id> ready on <host>:<port>``, and with ``--http-port`` then
``, http on <host>:<port>``. SIGTERM and SIGINT stop it in order, once, also while it starts; before
its loop runs they end it at once.
Exit status: 0 after a stop by signal, 1 if it could not start or failed, 2 for invalid settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import sys
from collections.abc import Sequence

from tidelog_core.errors import InvalidConfig, TidelogError
from tidelog_core.log.checkpoint import DISK_FULL
from tidelog_core.log_format import configure_logging

from tidelog_node.processes.ending_signals import on_ending_signals
from tidelog_node.settings import HTTP_ON, NodeSettings, parse_settings

logger = logging.getLogger(__name__)

# Requests create few objects that outlive them, so collections find little garbage. With a
# collection every 50,000 objects, the garbage takes 5 MB. Objects that survive two collections are
# examined once more, and then only in one of 500 collections of older objects: no thread runs
# during a collection, and one of 200,000 objects took 30 to 70 ms.
GC_THRESHOLDS = (10_000, 1, 500)


def run(arguments: Sequence[str]) -> int:
    """Run the node that the arguments and the environment describe; return the exit status."""
    try:
        settings = parse_settings(arguments)
    except InvalidConfig as error:
        for problem in error.problems:
            print(f"tidelog node: {problem}", file=sys.stderr)  # noqa: T201
        return 2
    name = f"node-{settings.broker_id}"
    configure_logging(name, settings.log_level, log_format=settings.log_format)
    _raise_descriptor_limit()
    try:
        asyncio.run(_serve(settings))
    except (TidelogError, OSError) as error:
        extra = {"reason": str(error), "path": str(settings.data_dir)}
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            logger.error("node failed: make room on its disk, and start it again", extra=extra)
        else:
            hint = getattr(error, "hint", "")
            logger.error("node failed", extra={**extra, "hint": hint} if hint else extra)
        return 1
    return 0


def collect_seldom() -> None:
    """Enable garbage collection for objects that are created from now on."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GC_THRESHOLDS)


async def _serve(settings: NodeSettings) -> None:
    from tidelog_node.wiring import Addresses, run_node

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    is_cluster_ending = False

    def stop_with_parent() -> None:
        nonlocal is_cluster_ending
        is_cluster_ending = True
        loop.remove_reader(sys.stdin.fileno())
        stop.set()

    def announce(addresses: Addresses) -> None:
        collect_seldom()
        line = f"tidelog node {settings.broker_id} ready on {addresses.clients}"
        if addresses.http is not None:
            line += f"{HTTP_ON}{addresses.http}"
        print(line, flush=True)  # noqa: T201

    with on_ending_signals(stop.set):
        if settings.stops_with_parent:
            # The parent writes nothing, so it becomes readable only when the parent closes it or
            # ends.
            loop.add_reader(sys.stdin.fileno(), stop_with_parent)
        try:
            await run_node(
                settings, stop=stop, on_ready=announce, drains=lambda: not is_cluster_ending
            )
        finally:
            if settings.stops_with_parent:
                loop.remove_reader(sys.stdin.fileno())


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files to the system's maximum for this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
