"""Short runs with the faults that every cluster meets; ``make chaos`` has the long ones.

All are slow: a minute each, by the clock. Of the default suite, ``tests/simulation`` has the faults in
virtual time, and ``tests/node`` kills and stops real nodes one by one.

The seed can be given, as TIDELOG_CHAOS_SEED, to have a run again.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import Kind
from tests.chaos.history import History
from tests.chaos.options import ChaosOptions
from tests.chaos.plan import BUCKET_LANE, CONVERSION_LANE, FOLDER_LANE, FaultKind
from tests.chaos.supervised import run_supervised
from tools import ministack
from tools.places import ToolAbsent

WRITES_MIN = 100
TRANSACTIONS_MIN = 5
FAULTS = (
    *(FaultKind.KILL, FaultKind.PAUSE, FaultKind.TORN),
    *(FaultKind.CUT, FaultKind.HOLD, FaultKind.RESET),
)


@pytest.mark.slow
@pytest.mark.timeout(900)  # The machine may be busy; the run ends by itself if it stands still.
async def test_three_nodes_lose_and_double_nothing_under_faults(tmp_path: Path) -> None:
    history = await short_history(tmp_path / "chaos", FAULTS, replication_factor=3)
    committed = sum(one.outcome == "ok" for one in history.transactions)
    assert committed >= TRANSACTIONS_MIN


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_diskless_topics_lose_nothing_with_every_disk(tmp_path: Path) -> None:
    kinds = (FaultKind.KILL_ALL, FaultKind.DISK_LOST, FaultKind.PAUSE, FaultKind.RESTART)
    kinds += FOLDER_LANE
    await short_history(tmp_path / "chaos", kinds, is_diskless=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_topics_are_converted_under_faults(tmp_path: Path) -> None:
    kinds = (FaultKind.CONVERT, FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART)
    await short_history(tmp_path / "chaos", kinds, is_converting=True, replication_factor=3)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_converting", [False, True], ids=["diskless", "converted"])
async def test_nothing_is_lost_while_the_bucket_fails(tmp_path: Path, is_converting: bool) -> None:
    try:
        with ministack.serve(tmp_path) as url:
            kinds = (*BUCKET_LANE, *(FaultKind.KILL_ALL, FaultKind.PAUSE_MACHINE))
            kinds += (FaultKind.PAUSE_WORKERS, *CONVERSION_LANE[: int(is_converting)])
            await short_history(
                tmp_path / "chaos",
                kinds,
                is_diskless=True,
                is_converting=is_converting,
                replication_factor=3,
                s3_url=url,
            )
    except ToolAbsent as absent:
        pytest.skip(str(absent))


async def short_history(directory: Path, kinds: tuple[FaultKind, ...], **options: Any) -> History:
    """Return what befell in a run with each of these faults; it must have no anomalies."""
    seed = int(os.environ.get("TIDELOG_CHAOS_SEED") or random.randrange(1_000_000))
    print(f"TIDELOG_CHAOS_SEED={seed}")
    result = await run_supervised(
        ChaosOptions(
            directory=directory,
            seed=seed,
            rounds=1,
            writes_min=WRITES_MIN,
            transactions_min=TRANSACTIONS_MIN,
            kinds=kinds,
            rate_per_s=40,
            producer_count=2,
            **options,
        )
    )
    print(result.report)
    assert result.anomalies == []
    history = result.history()
    assert {fault.kind for fault in history.faults} == set(kinds)
    assert sum(write.outcome == "ok" for write in history.writes) >= WRITES_MIN
    return history


@pytest.mark.slow
async def test_a_cluster_that_loses_its_only_copy_is_found_out(tmp_path: Path) -> None:
    """The harness itself: without this, «no anomalies» could mean that nobody looks."""
    options = ChaosOptions(
        directory=tmp_path / "chaos",
        seed=1,
        seconds=15,
        node_count=1,
        kinds=(FaultKind.TORN,),
        is_sabotage=True,
    )
    kinds = {anomaly.kind for anomaly in (await run_supervised(options)).anomalies}
    assert Kind.LOST_WRITE in kinds
    assert kinds & {Kind.LOST_READ, Kind.CHANGED_OFFSET}
