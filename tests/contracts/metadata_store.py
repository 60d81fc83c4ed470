"""What every metadata store must do. Each backend's test module runs this class."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from tidelog_core.errors import (
    CommitTooLarge,
    ItemTooLarge,
    OutcomeUnknown,
    StoreUnavailable,
    VersionConflict,
)
from tidelog_core.metadata.store import (
    ABSENT,
    ALL_KEYS,
    ANY_VERSION,
    COMMIT_WRITES_MAX,
    UNREADABLE_VERSION,
    Check,
    ClusterVersion,
    Item,
    ItemKey,
    KeyRange,
    MetadataStore,
    Write,
)

from tests.contracts.metadata_update import MetadataUpdateContract, Open

CHANGELOG_LENGTH = 20  # what the backends' ``open`` is asked for

# Spoils what is stored of an item, behind the store's back: its body, or its version too.
Spoil = Callable[[ItemKey, bool], None]

A = ItemKey("letters", "a")
B = ItemKey("letters", "b")
C = ItemKey("letters", "c")
START = ClusterVersion(0)


def create(key: ItemKey, value: object = 1, *, is_logged: bool = True) -> Write:
    return Write(key, {"n": value}, ABSENT, is_logged)  # type: ignore[dict-item]


def numbered(count: int, *, first: int = 0) -> list[ItemKey]:
    return [ItemKey("numbers", f"{number:05d}") for number in range(first, first + count)]


class MetadataStoreContract(MetadataUpdateContract):
    """Subclasses give ``open``: a factory of stores on one and the same empty database."""

    @pytest.fixture
    def spoil(self) -> Spoil:
        raise NotImplementedError

    # -- items and versions --------------------------------------------------------------

    async def test_an_item_that_was_never_written_is_absent(self, open: Open) -> None:
        async with open() as store:
            assert await store.get(A) is None
            assert await store.list("letters") == []
            assert await store.changes_since(START) == (await store.changes_since(START))
            assert (await store.changes_since(START)).version == 0

    async def test_bodies_come_back_as_they_went_in(self, open: Open) -> None:
        body_written = {
            "none": None,
            "true": True,
            "small": -1,
            "large": 2**62,
            "float": 0.25,
            "text": 'grün ☃ \U0001f40d " \\ \n',
            "list": [1, "two", [3], {"four": None}],
            "mapping": {"": "", "nested": {"deep": [True]}},
            "empty": {},
        }

        async with open() as store:
            await store.commit([Write(A, body_written, ABSENT)])
            assert await store.get(A) == Item(A, 1, body_written)

    async def test_many_items_are_read_at_once_without_those_that_are_not_there(
        self, open: Open
    ) -> None:
        async with open() as store:
            keys = numbered(510)
            for start in range(0, len(keys), COMMIT_WRITES_MAX):
                some = keys[start : start + COMMIT_WRITES_MAX]
                await store.commit([create(key, key.key, is_logged=False) for key in some])
            assert await store.get_many([]) == {}
            found = await store.get_many([A, *keys, ItemKey("no such", "a")])
            assert found == {key: Item(key, 1, {"n": key.key}) for key in keys}

    async def test_versions_count_the_writes_of_an_item(self, open: Open) -> None:
        async with open() as store:
            await store.commit([create(A)])
            await store.commit([Write(A, {"n": 2}, 1)])
            await store.commit([Write(A, {"n": 3}, ANY_VERSION)])
            assert await store.get(A) == Item(A, 3, {"n": 3})

    async def test_a_deleted_item_is_absent_and_starts_over(self, open: Open) -> None:
        async with open() as store:
            await store.commit([create(A)])
            await store.commit([Write(A, None, 1)])
            assert await store.get(A) is None
            await store.commit([create(A, 7)])
            assert await store.get(A) == Item(A, 1, {"n": 7})

    async def test_overwriting_blindly_creates_and_deleting_blindly_is_harmless(
        self, open: Open
    ) -> None:
        async with open() as store:
            await store.commit([Write(A, {"n": 1}, ANY_VERSION)])
            assert await store.get(A) == Item(A, 1, {"n": 1})
            await store.commit([Write(A, None, ANY_VERSION), Write(B, None, ANY_VERSION)])
            assert await store.get(A) is None

    async def test_unlogged_single_writes_keep_the_same_rules(self, open: Open) -> None:
        async with open() as store:
            await store.commit([create(A, is_logged=False)])
            await store.commit([Write(A, {"n": 2}, 1, False)])
            with pytest.raises(VersionConflict):
                await store.commit([Write(A, {"n": 3}, 1, False)])
            with pytest.raises(VersionConflict):
                await store.commit([create(A, is_logged=False)])
            with pytest.raises(VersionConflict):
                await store.commit([Write(A, None, 1, False)])
            await store.commit([Write(A, {"n": 4}, ANY_VERSION, False)])
            assert await store.get(A) == Item(A, 3, {"n": 4})
            await store.commit([Write(A, None, 3, False)])
            assert await store.get(A) is None
            assert (await store.changes_since(START)).version == 0

    # -- listing -------------------------------------------------------------------------

    async def test_a_listing_is_in_key_order_and_of_one_collection(self, open: Open) -> None:
        keys = ["b", "a", "a-1", "B", "é", "a/2", "☃"]

        async with open() as store:
            await store.commit([create(ItemKey("x", key)) for key in keys])
            await store.commit([create(ItemKey("xy", "other")), create(ItemKey("w", "other"))])
            assert [item.id.key for item in await store.list("x")] == sorted(keys)
            found = await store.list("x", prefix="a")
            assert [item.id.key for item in found] == ["a", "a-1", "a/2"]
            assert await store.list("x", prefix="zz") == []

    async def test_a_listing_of_more_than_one_page_is_whole(self, open: Open) -> None:
        """DynamoDB answers at most 1 MB a page."""
        keys = numbered(160)

        async with open() as store:
            for start in range(0, len(keys), 40):
                some = keys[start : start + 40]
                await store.commit([Write(key, {"pad": "x" * 10_000}, ABSENT) for key in some])
            assert [item.id for item in await store.list("numbers")] == keys

    @pytest.mark.parametrize("prefix", ["", "a", "a/", "c"])
    async def test_a_listing_of_a_range_has_those_and_no_others(
        self, open: Open, prefix: str
    ) -> None:
        stored = sorted(["a", "a/", "a/1", "a/2", "a0", "b", "c\U0001f40d", "é", "☃"])
        bounds = ["", "a", "a/", "a/1", "a/15", "b", "c", "z", "☃"]
        ranges = [
            KeyRange(start, end, limit, is_descending)
            for start in bounds
            for end in (*bounds[1:], None)
            for limit in (1, 3, None)
            for is_descending in (False, True)
        ]
        sampled = random.Random(prefix).sample(ranges, 40)

        def expected(keys: KeyRange) -> list[str]:
            found = [key for key in stored if key.startswith(prefix) and key >= keys.start]
            found = [key for key in found if keys.end is None or key < keys.end]
            return (found[::-1] if keys.is_descending else found)[: keys.limit]

        async with open() as store:
            await store.commit([create(ItemKey("x", key), is_logged=False) for key in stored])
            await store.commit([create(ItemKey("xy", "a/1")), create(ItemKey("w", "a/1"))])
            for keys in [ALL_KEYS, *sampled]:
                found = await store.list("x", prefix=prefix, keys=keys)
                assert [item.id.key for item in found] == expected(keys), keys

    async def test_a_listing_with_a_limit_goes_on_over_pages(self, open: Open) -> None:
        keys = numbered(160)

        async with open() as store:
            for start in range(0, len(keys), 40):
                some = keys[start : start + 40]
                await store.commit([Write(key, {"pad": "x" * 10_000}, ABSENT) for key in some])
            found = await store.list("numbers", keys=KeyRange(keys[5].key, limit=130))
            assert [item.id for item in found] == keys[5:135]
            found = await store.list("numbers", keys=KeyRange(limit=130, is_descending=True))
            assert [item.id for item in found] == keys[:29:-1]

    def test_a_listing_of_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at most 0 items"):
            KeyRange(limit=0)

    # -- transactions --------------------------------------------------------------------

    @pytest.mark.parametrize("lost", [Write(B, {"n": 9}, 2), Write(B, None, 5), create(B)])
    async def test_one_lost_write_undoes_all(self, open: Open, lost: Write) -> None:
        async with open() as store:
            await store.commit([create(B)])
            version = (await store.changes_since(START)).version
            with pytest.raises(VersionConflict) as raised:
                await store.commit([create(A), lost, create(C)])
            assert raised.value.keys == (("letters", "b"),)
            assert await store.get(A) is None
            assert await store.get(B) == Item(B, 1, {"n": 1})
            assert await store.get(C) is None
            assert (await store.changes_since(START)).version == version

    async def test_a_conflict_names_every_item_that_lost(self, open: Open) -> None:
        async with open() as store:
            await store.commit([create(A), create(B)])
            with pytest.raises(VersionConflict) as raised:
                await store.commit([create(A), create(C)], checks=[Check(B, 7)])
            assert set(raised.value.keys) == {("letters", "a"), ("letters", "b")}

    async def test_a_check_guards_without_writing(self, open: Open) -> None:
        async with open() as store:
            await store.commit([create(A)])
            await store.commit([create(B)], checks=[Check(A, 1), Check(C, ABSENT)])
            with pytest.raises(VersionConflict):
                await store.commit([Write(B, {"n": 2}, 1)], checks=[Check(A, 2)])
            with pytest.raises(VersionConflict):
                await store.commit([Write(B, {"n": 2}, 1)], checks=[Check(A, ABSENT)])
            assert await store.get(A) == Item(A, 1, {"n": 1})
            assert await store.get(B) == Item(B, 1, {"n": 1})

    async def test_checks_alone_are_a_commit(self, open: Open) -> None:
        async with open() as store:
            await store.commit([create(A)])
            await store.commit([], checks=[Check(A, 1), Check(B, ANY_VERSION)])
            with pytest.raises(VersionConflict):
                await store.commit([], checks=[Check(A, 2)])
            await store.commit([])

    async def test_the_largest_commit_is_one_transaction(self, open: Open) -> None:
        keys = numbered(COMMIT_WRITES_MAX)

        async with open() as store:
            await store.commit([create(key) for key in keys])
            assert len(await store.list("numbers")) == COMMIT_WRITES_MAX
            changes = await store.changes_since(START)
            assert (changes.version, changes.keys) == (1, frozenset(keys))

    # aiohttp would rather have a file; a large commit is rare and sent in a few milliseconds.
    @pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
    async def test_wrong_commits_are_refused_and_change_nothing(self, open: Open) -> None:
        too_many = [create(key) for key in numbered(COMMIT_WRITES_MAX + 1)]
        too_large = Write(A, {"pad": "x" * 500_000}, ABSENT)

        async with open() as store:
            with pytest.raises(ValueError, match="91 writes"):
                await store.commit(too_many)
            with pytest.raises(ValueError, match="same item"):
                await store.commit([create(A)], checks=[Check(A, ABSENT)])
            with pytest.raises(ValueError, match="must be absent"):
                await store.commit([Write(A, None, ABSENT)])
            with pytest.raises(ItemTooLarge):
                await store.commit([create(B), too_large])
            with pytest.raises(CommitTooLarge):
                await store.commit(
                    [Write(key, {"pad": "x" * 300_000}, ABSENT) for key in numbered(12)]
                )
            assert await store.list("letters") == []
            assert await store.list("numbers") == []
            await store.commit([Write(key, {"pad": "x" * 300_000}, ABSENT) for key in numbered(11)])
            assert len(await store.list("numbers")) == 11

    # -- changelog -----------------------------------------------------------------------

    async def test_the_changelog_names_the_logged_keys_since_a_version(self, open: Open) -> None:
        async with open() as store:
            await store.commit([create(A), create(C, is_logged=False)])
            await store.commit([create(B)])
            await store.commit([Write(A, None, 1)])
            changes = await store.changes_since(START)
            assert (changes.version, changes.keys) == (3, frozenset({A, B}))
            assert (await store.changes_since(ClusterVersion(1))).keys == {A, B}
            assert (await store.changes_since(ClusterVersion(2))).keys == {A}
            assert (await store.changes_since(ClusterVersion(3))).keys == frozenset()

    async def test_a_reader_too_far_behind_is_told_to_load_everything(self, open: Open) -> None:
        async with open() as store:
            for version in range(CHANGELOG_LENGTH + 5):
                await store.commit([Write(A, {"n": version}, ANY_VERSION)])
            now = CHANGELOG_LENGTH + 5
            assert (await store.changes_since(START)).version == now
            assert (await store.changes_since(START)).keys is None
            assert (await store.changes_since(ClusterVersion(4))).keys is None
            assert (await store.changes_since(ClusterVersion(5))).keys == {A}
            # A version from another database, say after a restore.
            assert (await store.changes_since(ClusterVersion(now + 1))).keys is None

    # -- damage --------------------------------------------------------------------------

    async def test_a_damaged_item_is_there_and_hides_no_other(
        self, open: Open, spoil: Spoil
    ) -> None:
        async with open() as store:
            await store.commit([create(A), create(B), create(C)])
            spoil(B, False)
            found = await store.list("letters")
            assert [item.id for item in found] == [A, B, C]
            assert [item.problem is None for item in found] == [True, False, True]
            assert await store.get(B) == found[1]
            assert (found[1].version, found[1].body) == (1, {})

    async def test_a_damaged_item_can_be_overwritten_by_who_knows_its_version(
        self, open: Open, spoil: Spoil
    ) -> None:
        async with open() as store:
            await store.commit([create(A)])
            spoil(A, False)
            with pytest.raises(VersionConflict):
                await store.commit([create(A)])
            await store.commit([Write(A, {"n": 2}, 1)])
            assert await store.get(A) == Item(A, 2, {"n": 2})

    async def test_nothing_is_written_on_the_version_of_an_item_that_lost_its_own(
        self, open: Open, spoil: Spoil
    ) -> None:
        async with open() as store:
            await store.commit([create(A), create(B)])
            spoil(A, True)
            found = await store.get(A)
            assert found is not None
            assert (found.version, found.problem is None) == (UNREADABLE_VERSION, False)
            for expected in (ABSENT, 1, UNREADABLE_VERSION):
                for is_logged in (True, False):
                    with pytest.raises(VersionConflict):
                        await store.commit([Write(A, {"n": 2}, expected, is_logged)])
                with pytest.raises(VersionConflict):
                    await store.commit([Write(B, {"n": 2}, 1)], checks=[Check(A, expected)])
            await store.commit([Write(A, {"n": 3}, ANY_VERSION)])
            assert (await store.get(A)) == Item(A, 1, {"n": 3})

    async def test_nothing_is_written_on_a_version_that_nobody_knows(self, open: Open) -> None:
        async with open() as store:
            await store.commit([create(A)])
            for key in (A, B):
                with pytest.raises(VersionConflict):
                    await store.commit([Write(key, {"n": 2}, UNREADABLE_VERSION)])
            assert await store.list("letters") == [Item(A, 1, {"n": 1})]

    # -- counters ------------------------------------------------------------------------

    async def test_increments_add_up_and_are_not_logged(self, open: Open) -> None:
        async with open() as store:
            assert await store.increment(A, 1000) == 1000
            assert await store.increment(A, 1) == 1001
            assert await store.increment(A, -2) == 999
            item = await store.get(A)
            assert item is not None
            assert item.body == {"value": 999}
            assert item.version == 3
            assert (await store.changes_since(START)).version == 0

    async def test_an_increment_goes_on_from_a_committed_value(self, open: Open) -> None:
        async with open() as store:
            await store.commit([Write(A, {"value": 5, "owner": "x"}, ABSENT)])
            assert await store.increment(A, 2) == 7
            assert await store.get(A) == Item(A, 2, {"value": 7, "owner": "x"})
            await store.commit([Write(A, {"owner": "y"}, 2)])
            assert await store.get(A) == Item(A, 3, {"owner": "y"})
            assert await store.increment(A, 2) == 2

    # -- many at once --------------------------------------------------------------------

    async def test_of_many_creators_exactly_one_wins(self, open: Open) -> None:
        async with open() as one, open() as other:
            results = await asyncio.gather(
                *(
                    store.commit([create(A, f"{name}{n}"), create(ItemKey("own", f"{name}{n}"))])
                    for n in range(8)
                    for name, store in (("one", one), ("other", other))
                ),
                return_exceptions=True,
            )
            assert results.count(None) == 1
            assert all(r is None or isinstance(r, VersionConflict) for r in results)
            (own,) = await one.list("own")
            winner = await other.get(A)
            assert winner is not None
            assert winner.body == {"n": own.id.key}

    async def test_concurrent_read_modify_writes_lose_nothing(self, open: Open) -> None:
        """Two stores, several writers each: every acknowledged step is there, none twice."""
        writers, steps = 3, 8

        async with open() as one, open() as other:
            await one.commit([create(A, 0), create(B, 0)])
            seed = random.SystemRandom().randrange(2**32)
            print(f"seed {seed}")
            await asyncio.gather(
                *(
                    self._step(store, steps, random.Random(seed + number))
                    for number, store in enumerate([one, other] * writers)
                )
            )
            total = 2 * writers * steps
            a, b = await one.get(A), await other.get(B)
            assert a is not None
            assert b is not None
            assert (a.body["n"], a.version) == (total, total + 1)
            assert (b.body["n"], b.version) == (total, total + 1)
            assert (await one.changes_since(START)).version == total + 1

    async def _step(self, store: MetadataStore, steps: int, rng: random.Random) -> None:
        """Move both counters together, ``steps`` times, whatever the others do."""
        done = 0
        for _ in range(steps * 200):
            a, b = await store.get(A), await store.get(B)
            assert a is not None
            assert b is not None
            try:
                await store.commit(
                    [
                        Write(A, {"n": a.body["n"] + 1}, a.version),  # type: ignore[operator]
                        Write(B, {"n": b.body["n"] + 1}, b.version),  # type: ignore[operator]
                    ]
                )
            except VersionConflict:
                await asyncio.sleep(rng.uniform(0, 0.05))
                continue
            done += 1
            if done == steps:
                return
        raise AssertionError(f"only {done} of {steps} steps in {steps * 200} attempts")

    async def test_independent_commits_all_succeed_and_each_has_a_version(self, open: Open) -> None:
        """They meet at the cluster version only, which is no business of the caller's."""
        async with open() as one, open() as other:
            keys = numbered(16)
            await asyncio.gather(
                *(
                    (one if number % 2 else other).commit([create(key)])
                    for number, key in enumerate(keys)
                )
            )
            changes = await one.changes_since(START)
            assert (changes.version, changes.keys) == (16, frozenset(keys))

    async def test_concurrent_increments_never_give_the_same_sum_twice(self, open: Open) -> None:
        async with open() as one, open() as other:
            sums = await asyncio.gather(
                *((one if n % 2 else other).increment(A, 1) for n in range(40))
            )
            assert sorted(sums) == list(range(1, 41))

    async def test_a_reader_of_the_changelog_misses_nothing(self, open: Open) -> None:
        """What changed up to a version is named, and reading it then shows it."""

        async def write(store: MetadataStore, keys: list[ItemKey]) -> None:
            for key in keys:
                await store.commit([create(key)])

        async with open() as one, open() as other, open() as reader:
            writing = asyncio.gather(
                write(one, numbered(15)), write(other, numbered(15, first=100))
            )
            seen: set[ItemKey] = set()
            version = START
            while version < 30:
                changes = await reader.changes_since(version)
                keys = changes.keys
                if keys is None:
                    keys = frozenset(item.id for item in await reader.list("numbers"))
                for key in keys:
                    assert await reader.get(key) is not None
                seen |= keys
                version = changes.version
            await writing
            assert seen == set(numbered(15)) | set(numbered(15, first=100))

    async def test_closing_twice_or_unused_is_harmless(self, open: Open) -> None:
        async with open() as store:
            pass
        async with open() as store:
            await store.get(A)
            await store.close()


async def commit_until_known(store: MetadataStore, write: Write) -> None:
    """Commit one creation, however often the store is away or does not say what happened."""
    for _ in range(100):
        try:
            await store.commit([write])
        except (OutcomeUnknown, StoreUnavailable):
            item = await store.get(write.id)
            if item is not None and item.body == write.body:
                return
            continue
        return
    raise AssertionError("the store never answered")
