"""A run in a process of its own, with somebody beside it who ends it when it stands still.

The run says which phase it is in, every second, from its event loop. Whatever keeps the loop
from turning keeps it from saying so: then it is asked where it is, and killed with its nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import pickle
import signal
import sys
from collections.abc import Sequence

from tests.chaos.checker import Anomaly, Kind
from tests.chaos.history import HISTORY, History
from tests.chaos.options import ChaosOptions
from tests.chaos.report import summarize
from tests.chaos.run import ChaosResult, run_chaos
from tests.chaos.watchdog import Watchdog, where_tasks_are
from tests.chaos.watched_process import StandsStill, WatchedProcess

COMMAND = (sys.executable, "-m", "tests.chaos.supervised")
PULSE_SECONDS = 1.0
SILENT_SECONDS_MAX = 90.0
_RESULT = "result.pickle"


async def run_supervised(
    options: ChaosOptions,
    *,
    command: Sequence[str] = COMMAND,
    silent_s_max: float = SILENT_SECONDS_MAX,
) -> ChaosResult:
    """Do the run as ``run_chaos`` does; one that stands still is an anomaly."""
    options.directory.mkdir(parents=True, exist_ok=True)
    log_path = options.directory / "run.log"
    process = WatchedProcess(
        command, log_path=log_path, silent_s_max=silent_s_max, has_children=True
    )
    phase = "start"
    async with process:
        order = pickle.dumps(options)
        await process.tell(len(order).to_bytes(4, "big") + order)
        try:
            async for line in process.lines():
                phase = line.decode().strip()
            if status := await process.status():
                return _lost(options, f"ended with {status} in the phase {phase!r}: {process.log}")
        except StandsStill as where:
            return _lost(options, f"stands still in the phase {phase!r}: {where}")
    result: ChaosResult = pickle.loads((options.directory / _RESULT).read_bytes())
    return result


def _lost(options: ChaosOptions, problem: str) -> ChaosResult:
    found = [Anomaly(Kind.STALLED, "the run", problem)]
    report = summarize(History(), found, title=options.title, recovered={})
    (options.directory / "report.txt").write_text(report + "\n")
    return ChaosResult(options.directory / HISTORY, found, {}, report)


async def _run(options: ChaosOptions) -> ChaosResult:
    watchdog = Watchdog()

    async def pulse() -> None:
        while True:
            print(watchdog.phase, flush=True)
            await asyncio.sleep(PULSE_SECONDS)

    def print_tasks() -> None:
        print(where_tasks_are(), file=sys.stderr)

    # First the threads, which needs no lock; then, if the loop still turns, the tasks.
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print_tasks)
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)
    pulsing = asyncio.create_task(pulse())
    try:
        return await run_chaos(options, watchdog)
    finally:
        pulsing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await pulsing


def main() -> None:
    """Do the run that the standard input says; leave its result in its directory."""
    size = int.from_bytes(sys.stdin.buffer.read(4), "big")
    options: ChaosOptions = pickle.loads(sys.stdin.buffer.read(size))
    logging.basicConfig(filename=options.directory / "clients.log", filemode="w")
    result = asyncio.run(_run(options))
    (options.directory / _RESULT).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
