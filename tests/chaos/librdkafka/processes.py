"""Runs the sessions of librdkafka's clients, each in a process of its own, one after the other.

A session that says nothing for long stands still, in a call of librdkafka that does not come
back or with the interpreter's lock in somebody's hands. It is asked where, and killed; the
next one begins.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.history import PartitionKey, Poll, Transaction, Write, decode
from tests.chaos.librdkafka.link import Order, encode_order, encode_state
from tests.chaos.scene import Progress, Scene
from tests.chaos.watched_process import StandsStill, WatchedProcess

COMMAND = (sys.executable, "-m", "tests.chaos.librdkafka")
SESSIONS_MAX = 10_000  # of one client
SILENT_SECONDS_MAX = 30.0
STATE_SECONDS = 0.1
AGAIN_SECONDS = 0.3


class SessionProcesses:
    """One client's sessions."""

    def __init__(
        self,
        scene: Scene,
        client: str,
        role: str,
        *,
        log_path: Path,
        is_wanted: Callable[[], bool],
        progress: Progress | None = None,
        command: Sequence[str] = COMMAND,
        silent_s_max: float = SILENT_SECONDS_MAX,
        **settings: Any,
    ) -> None:
        """``progress`` is what the sessions take part in, ``settings`` are the role's."""
        self._scene = scene
        self._client = client
        self._role = role
        self._settings = settings
        self._is_wanted = is_wanted
        self._log_path = log_path
        self._progress = progress
        self._command = command
        self._silent_s_max = silent_s_max
        self._open: dict[tuple[str, int], Transaction] = {}
        self._place = "its start"

    async def run(self) -> None:
        """Run sessions for as long as they are wanted."""
        for count in range(SESSIONS_MAX):
            if not self._is_wanted():
                return
            await self._run_session(f"{self._client}.{count}")
            await asyncio.sleep(AGAIN_SECONDS)

    async def _run_session(self, session: str) -> None:
        self._place = "its start"
        process = WatchedProcess(
            self._command, log_path=self._log_path, silent_s_max=self._silent_s_max
        )
        async with process:
            telling = asyncio.create_task(self._tell_scene(process, session))
            try:
                async for line in process.lines():
                    self._take(json.loads(line))
                if status := await process.status():
                    self._scene.note(session, f"ended with {status}: {process.log}")
            except StandsStill as where:
                self._scene.note(session, f"stands still in {self._place}: {where}")
            finally:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
                self._close_transactions()

    async def _tell_scene(self, process: WatchedProcess, session: str) -> None:
        scene = self._scene
        order = Order(
            role=self._role,
            client=self._client,
            session=session,
            bootstrap=scene.bootstrap,
            seed=scene.seed,
            started_s=scene.started_s,
            settings=self._settings,
        )
        await process.tell(encode_order(order))
        told = b""
        while True:
            state = encode_state(scene)
            if state != told:
                await process.tell(state)
                told = state
            await asyncio.sleep(STATE_SECONDS)

    def _take(self, message: list[Any]) -> None:
        match message:
            case ["at", place]:
                self._place = place
            case ["reached", topic, partition, offset]:
                assert self._progress is not None
                self._progress.reach(PartitionKey(topic, partition), offset)
            case ["under way", *event]:
                self._take_under_way(decode(json.dumps(event)))
            case ["event", *event]:
                self._take_event(decode(json.dumps(event)))

    def _take_under_way(self, event: object) -> None:
        if isinstance(event, Write):
            self._scene.open_writes[event.value] = event
        else:
            assert isinstance(event, Transaction)
            self._open[event.session, event.number] = event

    def _take_event(self, event: Any) -> None:
        match event:
            case Write():
                if self._scene.open_writes.pop(event.value, None) is None:
                    return  # It has been closed by now.
            case Transaction():
                self._open.pop((event.session, event.number), None)
            case Poll():
                assert self._progress is not None
                self._progress.note(event)
        self._scene.history.add(event)

    def _close_transactions(self) -> None:
        """What the session has left without a word may be committed or not."""
        for transaction in self._open.values():
            self._scene.history.add(transaction)
        self._open.clear()
