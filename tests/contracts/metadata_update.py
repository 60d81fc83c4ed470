"""What ``update`` promises on every metadata store, whatever others write meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum, auto
from typing import Any

import pytest
from tidelog_core.errors import OutcomeUnknown, VersionConflict
from tidelog_core.metadata.store import ABSENT, Item, ItemKey, MetadataStore, Write
from tidelog_core.metadata.update import ATTEMPTS_MAX, update

Open = Callable[[], AbstractAsyncContextManager[MetadataStore]]
KEY = ItemKey("updated", "a")


class Refused(Exception):
    """A decision that cannot be made."""


class Fate(Enum):
    """What becomes of a commit."""

    TOLD = auto()
    LOST = auto()  # nothing is written, and nobody says so
    UNTOLD = auto()  # it is written, and nobody says so
    LATE = auto()  # nobody says so, and it is tried once more when all is over


class FatedStore:
    """A store that does with each commit what the test has planned."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.fates: Callable[[], Fate] = lambda: Fate.TOLD
        self.before: Callable[[], Awaitable[None]] | None = None  # what another does meanwhile
        self.commit_count = 0
        self._late: list[Write] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, writes: list[Write]) -> None:
        self.commit_count += 1
        if self.before is not None:
            await self.before()
        fate = self.fates()
        if fate in (Fate.TOLD, Fate.UNTOLD):
            await self._store.commit(writes)
        if fate is Fate.LATE:
            self._late += writes
        if fate is not Fate.TOLD:
            raise OutcomeUnknown("the answer was lost")

    async def end_late(self) -> int:
        """Carry out what has been under way until now; return how much of it was written."""
        count = 0
        for write in self._late:
            try:
                await self._store.commit([write])
                count += 1
            except VersionConflict:
                pass
        return count

    async def add(self, mark: str, *, attempts_max: int = ATTEMPTS_MAX) -> list[str]:
        """Add a mark to the item, and return all of them."""
        return await update(self, KEY, lambda item: adding(item, mark), attempts_max=attempts_max)

    async def add_directly(self, mark: str) -> None:
        """Do as another process does, whose commits have no fates."""
        _, write = adding(await self._store.get(KEY), mark)
        assert write is not None
        await self._store.commit([write])


def marks_of(item: Item | None) -> list[str]:
    return [] if item is None else list(item.body["marks"])  # type: ignore[arg-type]


def adding(item: Item | None, mark: str) -> tuple[list[str], Write | None]:
    found = marks_of(item)
    if mark in found:
        return found, None
    body = {"marks": [*found, mark]}
    return [*found, mark], Write(KEY, body, ABSENT if item is None else item.version)


@asynccontextmanager
async def fated(open: Open) -> AsyncIterator[FatedStore]:
    async with open() as store:
        yield FatedStore(store)


class MetadataUpdateContract:
    """Subclasses give ``open``: a factory of stores on one and the same empty database."""

    @pytest.fixture
    def open(self) -> Open:
        raise NotImplementedError

    async def test_an_update_creates_changes_and_deletes(self, open: Open) -> None:
        async with fated(open) as store:
            assert await store.add("a") == ["a"]
            assert await store.add("b") == ["a", "b"]
            assert await store.get(KEY) == Item(KEY, 2, {"marks": ["a", "b"]})
            removed = await update(
                store,
                KEY,
                lambda item: (marks_of(item), item and Write(KEY, None, item.version)),
            )
            assert removed == ["a", "b"]
            assert await store.get(KEY) is None

    async def test_an_update_with_nothing_to_write_commits_nothing(self, open: Open) -> None:
        async with fated(open) as store:
            await store.add("a")
            assert await store.add("a") == ["a"]
            assert store.commit_count == 1

    async def test_an_update_that_loses_decides_again_on_what_the_other_wrote(
        self, open: Open
    ) -> None:
        async with fated(open) as store:

            async def once() -> None:
                store.before = None
                await store.add_directly("other")

            store.before = once
            assert await store.add("a") == ["other", "a"]
            assert store.commit_count == 2

    async def test_a_decision_that_raises_ends_the_update(self, open: Open) -> None:
        async with fated(open) as store:

            async def once() -> None:
                store.before = None
                await store.add_directly("other")

            def add_first(item: Item | None) -> tuple[list[str], Write | None]:
                if item is not None:
                    raise Refused
                return adding(item, "a")

            store.before = once
            with pytest.raises(Refused):
                await update(store, KEY, add_first)
            assert marks_of(await store.get(KEY)) == ["other"]

    @pytest.mark.parametrize("fate", [Fate.LOST, Fate.UNTOLD, Fate.LATE])
    async def test_an_update_whose_outcome_is_unknown_is_made_once(
        self, open: Open, fate: Fate
    ) -> None:
        async with fated(open) as store:
            fates = [Fate.TOLD, fate]
            store.fates = lambda: fates.pop() if fates else Fate.TOLD
            assert await store.add("a") == ["a"]
            assert await store.end_late() == 0
            assert await store.get(KEY) == Item(KEY, 1, {"marks": ["a"]})

    async def test_an_update_ends_after_its_attempts(self, open: Open) -> None:
        async with fated(open) as store:

            async def always() -> None:
                await store.add_directly(f"other-{store.commit_count}")

            store.before = always
            with pytest.raises(VersionConflict):
                await store.add("a", attempts_max=3)
            assert store.commit_count == 3
            store.before, store.fates = None, lambda: Fate.LOST
            with pytest.raises(OutcomeUnknown):
                await store.add("a")
            assert store.commit_count == 3 + ATTEMPTS_MAX
            assert marks_of(await store.get(KEY)) == ["other-1", "other-2", "other-3"]

    async def test_updates_at_once_lose_nothing_whatever_becomes_of_their_commits(
        self, open: Open
    ) -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)

        async with fated(open) as store:
            store.fates = lambda: chance.choice([Fate.TOLD, *Fate])
            added: set[str] = set()

            async def add_some(name: str) -> None:
                for number in range(3):
                    mark = f"{name}{number}"
                    assert mark in await store.add(mark, attempts_max=1_000)
                    added.add(mark)

            await asyncio.gather(*(add_some(name) for name in "abcd"))
            # Each mark was written by one commit, and none is written over by a late one.
            assert await store.end_late() == 0
            item = await store.get(KEY)
            assert item is not None
            assert sorted(marks_of(item)) == sorted(added)
            assert item.version == len(added) == 12
