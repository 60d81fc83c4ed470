"""What the next writer waits for after one was killed: calls of the stores, and no time limit."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.schema_registry.registry import PAUSE_SECONDS_MAX

from tests.core.schema_registry.journal.journals import A, B, C, id_of, registry_on
from tests.support.memory_store import MemoryMetadataStore

CALLS_MAX = {"put": 2, "get": 2, "head": 2, "commit": 2}  # of a change, after any kill
READS_MAX = 40  # of the metadata store


class Counted:
    """A store whose calls are counted, and whose process may end at one of them."""

    def __init__(self, store: Any, counts: Counter[str], *, ends: str = "", after: bool = False):
        self._store, self._counts, self._ends, self._after = store, counts, ends, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name == "list" or not inspect.iscoroutinefunction(found):
            return found

        async def counted(*args: Any, **given: Any) -> Any:
            self._counts[name] += 1
            if name != self._ends:
                return await found(*args, **given)
            if self._after:
                await found(*args, **given)
            raise Ended

        return counted


class Ended(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["put", "commit"])
async def test_the_next_change_after_a_kill_takes_few_calls_and_no_waiting(
    monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """Two processes serve the registry. One is killed, the other one gets the next change."""
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    await id_of(registry_on(store, objects), A)
    calls: Counter[str] = Counter()
    reads: Counter[str] = Counter()
    survivor = registry_on(Counted(store, reads), Counted(objects, calls))
    await survivor.committer.begin()
    counts: Counter[str] = Counter()
    ends = {"ends": step, "after": after}
    killed = registry_on(Counted(store, counts, **ends), Counted(objects, counts, **ends))
    with suppress(Ended):
        await id_of(killed, B)
    calls.clear()
    reads.clear()
    waited = 0.0
    sleep = asyncio.sleep

    async def counted(seconds: float, *args: Any) -> Any:
        nonlocal waited
        waited += seconds
        return await sleep(0, *args)

    monkeypatch.setattr(asyncio, "sleep", counted)
    assert await id_of(survivor, C) == (2 if step == "put" and not after else 3)
    assert waited <= PAUSE_SECONDS_MAX
    for name, count in {**calls, "commit": reads["commit"]}.items():
        assert count <= CALLS_MAX[name], (name, count)
    assert sum(reads.values()) <= READS_MAX, reads
