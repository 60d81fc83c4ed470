"""``StoreProxy`` in a process of its own, for clients that hold this process's interpreter lock.

Some clients of S3 written in other languages (delta-rs) keep the lock while they wait for an
answer: a proxy in the same process could never give it.

    with StoreProxyProcess(endpoint, StoreBehaviour(is_read_only=True)) as proxy:
        clients use proxy.url

The child prints its port, and then its counts for each line that it reads. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from dataclasses import asdict
from types import TracebackType
from typing import Self

from tests.support.store_proxy import S3, StoreBehaviour, StoreProxy
from tests.support.tcp_proxy import HOST
from tools.places import ROOT

END_SECONDS_MAX = 60.0


class StoreProxyProcess:
    """A proxy before a store like S3, with one behaviour for the length of the block."""

    def __init__(self, upstream: str, behaviour: StoreBehaviour) -> None:
        """``behaviour`` is for all methods."""
        assert behaviour.methods is None, "a set is not passed on"
        self._command = [sys.executable, "-m", __name__, upstream, json.dumps(asdict(behaviour))]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self.url = f"http://{HOST}:{int(self._line())}"
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def counts(self) -> dict[str, int]:
        """Return the number of requests so far by what happened to them."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, int] = json.loads(self._line())
        return found

    def _end(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        with process:
            try:
                process.communicate(timeout=END_SECONDS_MAX)
            finally:
                process.kill()

    def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the proxy has ended"
        return line


async def _serve(upstream: str, behaviour: StoreBehaviour) -> None:
    async with StoreProxy(upstream, random.Random(1), S3) as proxy:
        proxy.behave(behaviour)
        print(proxy.port, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(proxy.counts), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], StoreBehaviour(**json.loads(sys.argv[2]))))
