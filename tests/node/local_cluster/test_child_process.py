"""One process of ``tidelog up``, which another one replaces."""

from __future__ import annotations

import asyncio
import sys

from tidelog_node.local_cluster.child_process import ChildProcess

from tests.support.cluster_process import SECONDS_MAX


async def test_a_process_is_started_again_with_another_command() -> None:
    """The console after nodes have joined or left: at once, and without an error."""
    lines: list[str] = []
    heard = asyncio.Event()

    def on_ready(line: str) -> None:
        lines.append(line)
        heard.set()

    child = ChildProcess("console", _until_stdin_ends("one"), ends_cluster=False, on_ready=on_ready)
    running = asyncio.create_task(child.run())
    async with asyncio.timeout(SECONDS_MAX):
        await heard.wait()
        heard.clear()
        child.start_again(_until_stdin_ends("two"))
        await heard.wait()
        child.stop()
        await running
    assert [line.strip() for line in lines] == ["one", "two"]


def _until_stdin_ends(line: str) -> list[str]:
    program = f"import sys; print({line!r}, flush=True); sys.stdin.read()"
    return [sys.executable, "-c", program]
