"""``python -m tidelog_node``: one node process.

Prints one line on stdout when clients are served:
``tidelog node <broker id> ready on <host>:<port>``. SIGTERM and SIGINT stop it in order.
Exit status: 0 stopped as asked, 1 could not start or broke, 2 wrong settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import sys

from tidelog_core.errors import InvalidConfig, TidelogError
from tidelog_core.log.checkpoint import DISK_FULL
from tidelog_core.log_format import configure_logging
from tidelog_core.metadata.endpoints import BrokerEndpoint

from tidelog_node import lazy_messages
from tidelog_node.settings import NodeSettings, parse_settings

logger = logging.getLogger(__name__)

# Requests make few objects that outlive them, so collections find next to nothing. What they
# find, of processes that have ended for the most part, holds 5 MB where they come every 50,000.
# What survives two of them is looked at once more and then left alone: nothing runs meanwhile, on
# no thread, and 200,000 objects at once took 30 to 70 ms.
GC_THRESHOLDS = (10_000, 1, 500)


def main() -> int:
    """Run the node that the arguments and the environment describe."""
    gc.disable()  # until the node serves: a start makes classes by the thousand, and no garbage
    try:
        settings = parse_settings(sys.argv[1:])
    except InvalidConfig as error:
        for problem in error.problems:
            print(f"tidelog node: {problem}", file=sys.stderr)  # noqa: T201
        return 2
    configure_logging(f"node-{settings.broker_id}", settings.log_level)
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
    """Collect garbage from now on, and never look at what is there already."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GC_THRESHOLDS)


async def _serve(settings: NodeSettings) -> None:
    lazy_messages.install()
    from tidelog_node.wiring import run_node

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    is_cluster_ending = False

    def stop_with_parent() -> None:
        nonlocal is_cluster_ending
        is_cluster_ending = True
        loop.remove_reader(sys.stdin.fileno())
        stop.set()

    if settings.stops_with_parent:
        # Nobody writes to it, so it becomes readable only when the parent is gone or stops.
        loop.add_reader(sys.stdin.fileno(), stop_with_parent)

    def announce(endpoint: BrokerEndpoint) -> None:
        collect_seldom()
        line = f"tidelog node {settings.broker_id} ready on {endpoint}"
        print(line, flush=True)  # noqa: T201

    try:
        await run_node(settings, stop=stop, on_ready=announce, drains=lambda: not is_cluster_ending)
    finally:
        if settings.stops_with_parent:
            loop.remove_reader(sys.stdin.fileno())


def _raise_descriptor_limit() -> None:
    """Allow as many open files as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
