"""Does the planned faults to the cluster while the clients work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.chaos.faults import Faults
from tests.chaos.history import Fault, History
from tests.chaos.plan import PlannedFault


class Nemesis:
    """Runs the lanes beside each other; on return every fault has ended."""

    def __init__(
        self,
        faults: Faults,
        lanes: Sequence[Sequence[PlannedFault]],
        history: History,
        clock_s: Callable[[], float],
        *,
        leaves_nothing_out: bool = False,
    ) -> None:
        """With ``leaves_nothing_out`` a lane that falls behind takes longer."""
        self._faults = faults
        self._lanes = lanes
        self._history = history
        self._clock_s = clock_s
        self._leaves_nothing_out = leaves_nothing_out

    async def run(self) -> None:
        """Do what is planned, then heal the cluster.

        A lane that falls behind keeps its pauses, and as a rule leaves out what there is no
        time for: without pauses a store that is locked now and again would be locked for good.
        """
        started_s = self._clock_s()
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in self._lanes:
                    tasks.create_task(self._run_lane(lane, started_s))
        finally:
            await self._faults.undo_all()

    async def _run_lane(self, lane: Sequence[PlannedFault], started_s: float) -> None:
        behind_s = 0.0
        for fault in lane:
            await asyncio.sleep(max(0.0, started_s + fault.at_s + behind_s - self._clock_s()))
            begun_s = self._clock_s()
            is_late = begun_s - started_s > lane[-1].end_s
            if is_late and not self._leaves_nothing_out:
                return
            undo = await self._faults.begin(fault)
            try:
                await asyncio.sleep(fault.duration_s)
            finally:
                # Also where another lane has failed: a lock must not outlive it.
                detail = await undo()
            target = ", ".join(f"node {node_id}" for node_id in fault.targets)
            self._history.add(Fault(fault.kind.value, target, begun_s, self._clock_s(), detail))
            behind_s = max(0.0, self._clock_s() - started_s - fault.end_s)
