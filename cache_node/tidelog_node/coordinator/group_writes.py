"""The writes of one group: one at a time, each shared by the events before its begin.

An event is decided immediately. If the group must be stored after that, a write begins in the next
turn of the event loop. Events that are decided until then share it; later ones wait for its end.
So the number of writes of a rebalance is limited by time, not by members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tidelog_node.coordinator.turns import Turns
from tidelog_node.groups.step import Step

T = TypeVar("T")


class GroupWrites:
    """Runs the writes of one group. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._running: asyncio.Task[Any] | None = None
        self._shared: Step | None = None  # of the events that share the write that is to begin
        self._to_be_idle = Turns(lambda: self._running is None)
        self._to_share = Turns(lambda: self._running is None or self._shared is not None)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written, or is to be."""
        return self._running is None

    async def wait_until_idle(self) -> None:
        """Return when nothing is being written, until the caller's next ``await``."""
        await self._to_be_idle.wait()

    async def wait_until_shared(self) -> None:
        """Return when an event's changes can share the next write, until the next ``await``."""
        await self._to_share.wait()

    async def finish(self) -> None:
        """Wait for the end of the current write, if there is one."""
        if self._running is not None:
            await asyncio.wait([self._running])

    def take(
        self,
        step: Step,
        save: Callable[[], Awaitable[None]],
        *,
        on_saved: Callable[[Step], None],
    ) -> bool:
        """Have an event's changes written; return whether its answers wait for a write.

        ``on_saved`` then gets the answers of all events that have shared the write.
        """
        if self._shared is not None:
            self._shared.joins += step.joins
            self._shared.syncs += step.syncs
        elif step.must_store:
            self._shared = step
            self._running = asyncio.create_task(self._write(step, save, on_saved))
        else:
            return False
        return True

    async def run_alone(self, work: Callable[[], Awaitable[T]], *, on_end: Callable[[], None]) -> T:
        """Return the result of work that is not shared; it is finished even if cancelled.

        To be called when nothing is being written.
        """
        task = asyncio.create_task(self._work(work, on_end))
        self._running = task
        return await asyncio.shield(task)

    async def _write(
        self, step: Step, save: Callable[[], Awaitable[None]], on_saved: Callable[[Step], None]
    ) -> None:
        # Not earlier: events of this turn of the loop may still share this write.
        self._shared = None
        try:
            await save()
        finally:
            self._end()
        on_saved(step)

    async def _work(self, work: Callable[[], Awaitable[T]], on_end: Callable[[], None]) -> T:
        try:
            return await work()
        finally:
            self._end()
            on_end()

    def _end(self) -> None:
        self._running = None
        self._to_be_idle.go_on()
        self._to_share.go_on()
