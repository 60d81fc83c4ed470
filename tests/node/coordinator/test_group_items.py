"""A group's record and pages in the store: crashes at every write, and several coordinators."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from uuid import UUID

import pytest
from tidelog_core.admin.groups.stored_groups import list_pages, read_group, read_groups
from tidelog_core.errors import OutcomeUnknown, StoreUnavailable, TidelogError, VersionConflict
from tidelog_core.metadata.coordination.consumer_groups import (
    HASH_OF_NO_TOPICS,
    ConsumerGroupState,
    ConsumerMember,
)
from tidelog_core.metadata.coordination.groups import (
    CommittedOffset,
    GroupMember,
    GroupRecord,
    group_collection,
    pack_classic,
)
from tidelog_core.metadata.coordination.member_pages import (
    MemberPage,
    StoredGroup,
    member_collection,
    page_item_id,
)
from tidelog_core.metadata.coordination.packed_members import pack_members
from tidelog_core.metadata.records import put
from tidelog_core.metadata.store import ABSENT, Body, Item, ItemKey, Write
from tidelog_node.coordinator.group_items import DEFAULT_PAGE_LIMITS, PageLimits
from tidelog_node.coordinator.group_storage import GroupStorage
from tidelog_node.coordinator.offset_page_cache import OffsetPageCache

from tests.support.memory_store import MemoryMetadataStore

SHARD = 3
TINY = PageLimits(members_per_page=2, pages_per_commit=2)
RECORD_KEY = ItemKey(group_collection(SHARD), "g")
TOPIC = ("t", UUID(int=5))


@pytest.fixture
def store() -> MemoryMetadataStore:
    return MemoryMetadataStore(latency=0)


def member(name: str, epoch: int = 1) -> ConsumerMember:
    return ConsumerMember(member_id=name, subscribed_topics=("t",), epoch=epoch)


def members(count: int, epoch: int = 1) -> list[ConsumerMember]:
    return [member(f"m{number}", epoch) for number in range(count)]


def group(some: Sequence[ConsumerMember], epoch: int = 1) -> GroupRecord:
    return GroupRecord(
        shard=SHARD,
        group_id="g",
        phase="Stable" if some else "Empty",
        phase_since_ms=7,
        generation=epoch,
        protocol_type="consumer",
        protocol_name=None,
        leader=None,
        members=(),
        consumer=ConsumerGroupState(
            assignment_epoch=epoch, topics_hash=HASH_OF_NO_TOPICS, members=tuple(some)
        ),
    )


def classic(name: str, metadata: bytes = b"") -> GroupMember:
    return GroupMember(
        member_id=name,
        group_instance_id=None,
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_ms=1,
        rebalance_timeout_ms=2,
        protocols=(("range", metadata),),
        assignment=b"",
    )


def storage(
    store: MemoryMetadataStore, stored: StoredGroup | None, limits: PageLimits = TINY
) -> GroupStorage:
    return GroupStorage(
        store, OffsetPageCache(), shard=SHARD, group_id="g", stored=stored, limits=limits
    )


async def loaded(store: MemoryMetadataStore, limits: PageLimits = TINY) -> GroupStorage:
    """Return the storage of a coordinator that has just read the group."""
    return storage(store, await read_group(store, SHARD, "g"), limits)


async def found(store: MemoryMetadataStore) -> GroupRecord:
    stored = await read_group(store, SHARD, "g")
    assert stored is not None
    (listed,) = (await read_groups(store, SHARD)).values()
    assert listed == stored
    return dataclasses.replace(stored.record, stamp=0)


def fail_at(store: MemoryMetadataStore, number: int, error: Exception) -> None:
    """Have the commit of that number from now on fail, and every later one."""
    left = number

    def on_commit(_: Sequence[Write]) -> Exception | None:
        nonlocal left
        left -= 1
        return error if left < 0 else None

    store.on_commit = on_commit


def works_again(store: MemoryMetadataStore) -> None:
    store.on_commit = lambda _: None


async def test_a_change_of_many_pages_is_there_whole_or_not_at_all_wherever_it_ends() -> None:
    before, after = group(members(9), 1), group(members(11, epoch=2)[2:], 2)

    async def end_at(number: int, error: Exception) -> bool:
        store = MemoryMetadataStore(latency=0)
        await storage(store, None).save(before)
        old = await loaded(store)
        await old.claim()
        fail_at(store, number, error)
        try:
            await old.save(after)
        except TidelogError:
            works_again(store)
            assert await found(store) in (before, after)
            new = await loaded(store)
            later = dataclasses.replace(await found(store), generation=9)
            await new.save(later)
            assert await found(store) == later
            # Nothing of the change that failed comes back with the next one of this size.
            last = group([member("alone", 10)], 10)
            await new.save(last)
            assert await found(store) == last
            await new.save(group(members(20, 11), 11))
            assert await found(store) == group(members(20, 11), 11)
            return True
        assert await found(store) == after
        return False

    for error in (StoreUnavailable("away"), OutcomeUnknown("lost")):
        number = 0
        while await end_at(number, error):
            number += 1
        assert number == 4, "three parts, and the record"


async def test_a_large_group_that_is_new_is_there_whole_or_empty_wherever_it_ends() -> None:
    for number in range(4):  # the empty record, two parts, the record
        store = MemoryMetadataStore(latency=0)
        fail_at(store, number, StoreUnavailable("away"))
        with pytest.raises(StoreUnavailable):
            await storage(store, None).save(group(members(8)))
        works_again(store)
        stored = await read_group(store, SHARD, "g")
        assert (stored is None) == (number == 0)
        if stored is not None:
            assert (stored.record.phase, stored.record.all_members) == ("Empty", ())
        again = storage(store, stored)
        await again.save(group(members(3)))
        assert await found(store) == group(members(3))


@pytest.mark.parametrize("seed", range(20))
async def test_any_changes_with_crashes_anywhere_leave_one_state_or_the_next(
    store: MemoryMetadataStore, seed: int
) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")

    current = group(members(chance.randrange(6)), 1)
    await storage(store, None).save(current)
    coordinator = await loaded(store)
    for epoch in range(2, 80):
        some = [m for m in current.all_members if chance.random() < 0.8]
        some = [
            dataclasses.replace(m, epoch=epoch) if chance.random() < 0.4 else m  # type: ignore[type-var, misc]
            for m in some
        ]
        some += [member(f"e{epoch}-{n}", epoch) for n in range(chance.randrange(5))]
        changed = group(some, current.generation + chance.randrange(2))  # type: ignore[arg-type]
        if chance.random() < 0.4:
            fail_at(
                store,
                chance.randrange(6),
                chance.choice((StoreUnavailable("away"), OutcomeUnknown("lost"))),
            )
        try:
            await coordinator.save(changed)
            current = changed
        except TidelogError:
            works_again(store)
            now = await found(store)
            assert now in (current, changed)
            current = now
            coordinator = await loaded(store)
        works_again(store)
        assert await found(store) == current
    await coordinator.save(group((), 99))
    await coordinator.delete(group((), 99))
    assert await list_pages(store, SHARD, "g") == []
    assert await store.get(RECORD_KEY) is None


class TestTwoCoordinators:
    async def test_a_coordinator_of_before_can_write_neither_members_nor_offsets_once_it_is_claimed(
        self,
        store: MemoryMetadataStore,
    ) -> None:
        old = storage(store, None)
        await old.save(group(members(9)))
        new = await loaded(store)
        await new.claim()
        offsets = {TOPIC: {0: CommittedOffset(5, -1, "", 1)}}
        with pytest.raises(VersionConflict):
            await old.commit_offsets(offsets)
        for change in (members(9, epoch=2), [*members(8), member("m8", 2)]):
            with pytest.raises(VersionConflict):
                await old.save(group(change))
        assert await found(store) == group(members(9))
        await new.commit_offsets(offsets)

    async def test_a_member_that_was_written_between_reading_and_claiming_is_noticed(
        self, store: MemoryMetadataStore
    ) -> None:
        old = storage(store, None)
        await old.save(group(members(4)))
        new = await loaded(store)
        moved = group([*members(3), member("m3", 2)])
        await old.save(moved)  # one page, and not the record
        with pytest.raises(VersionConflict):
            await new.save(group(members(5), 5))
        again = await loaded(store)
        await again.claim()
        assert await found(store) == moved

    @pytest.mark.parametrize("part", range(4))
    async def test_a_large_change_of_the_one_before_that_is_overtaken_never_counts(
        self, store: MemoryMetadataStore, part: int
    ) -> None:
        """The other claims the group between two parts, and has a large change of its own."""
        old = storage(store, None)
        await old.save(group(members(9)))
        taken: list[GroupStorage] = []
        left = part
        commit = store.commit

        async def interleaved(writes: Sequence[Write], **options: object) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                taken.append(await loaded(store))
                await taken[0].claim()
            await commit(writes, **options)  # type: ignore[arg-type]

        store.commit = interleaved  # type: ignore[method-assign]
        with pytest.raises(VersionConflict):
            await old.save(group(members(9, epoch=2), 2))
        (new,) = taken
        assert await found(store) == group(members(9))
        await new.save(group(members(9, epoch=3)[:7], 3))
        assert await found(store) == group(members(9, epoch=3)[:7], 3)

    async def test_a_deleted_group_leaves_no_page_to_the_next_one_of_its_id(
        self, store: MemoryMetadataStore
    ) -> None:
        old = storage(store, None)
        await old.save(group(members(9)))
        fail_at(store, 2, StoreUnavailable("away"))
        with pytest.raises(StoreUnavailable):
            await old.save(group((), 2))
        works_again(store)
        new = await loaded(store)
        await new.save(group((), 3))
        await new.delete(group((), 3))
        assert await store.list(member_collection(SHARD)) == []
        await storage(store, None).save(group(members(2)))
        assert await found(store) == group(members(2))


class TestWrittenByAnOlderProgram:
    """It kept the members in the group's record."""

    async def test_its_members_are_read_and_moved_into_pages_by_the_next_write(self) -> None:
        for number in range(6):
            store = MemoryMetadataStore(latency=0)
            old = group(members(8))
            await store.commit([_of_before(old)])
            assert await found(store) == old
            coordinator = await loaded(store)
            fail_at(store, number, StoreUnavailable("away"))
            changed = group([*members(7), member("m7", 2)], 2)
            try:
                await coordinator.save(changed)
            except StoreUnavailable:
                works_again(store)
                assert await found(store) == old
                await (await loaded(store)).save(changed)
            assert await found(store) == changed
            item = await store.get(RECORD_KEY)
            assert item is not None
            assert "members" not in json.dumps(item.body)
            assert len(await list_pages(store, SHARD, "g")) == 4

    async def test_a_commit_of_offsets_leaves_the_record_as_it_is(
        self, store: MemoryMetadataStore
    ) -> None:
        old = group(members(8))
        await store.commit([_of_before(old)])
        coordinator = await loaded(store)
        await coordinator.claim()
        await coordinator.commit_offsets({TOPIC: {0: CommittedOffset(5, -1, "", 1)}})
        assert await found(store) == old
        await coordinator.drop_pending({"t": [0]})
        assert await found(store) == old

    async def test_a_claim_drops_the_topics_of_its_record_or_leaves_it_as_it_is(self) -> None:
        for error in (None, StoreUnavailable("away"), OutcomeUnknown("lost")):
            store = MemoryMetadataStore(latency=0)
            await storage(store, None).save(group(members(3)))
            older = await _with_topics(store)
            coordinator, other = await loaded(store), await loaded(store)
            if error is not None:
                fail_at(store, 0, error)
                with pytest.raises(type(error)):
                    await coordinator.claim()
                works_again(store)
                coordinator = await loaded(store)
            else:
                await coordinator.claim()
                with pytest.raises(VersionConflict):
                    await other.claim()
            assert await found(store) == group(members(3))
            item = await store.get(RECORD_KEY)
            assert item is not None
            assert (item.body == older) == isinstance(error, StoreUnavailable)
            await coordinator.commit_offsets({TOPIC: {0: CommittedOffset(5, -1, "", 1)}})

    async def test_who_knows_the_group_by_its_hash_goes_on_after_an_older_program_wrote_it(
        self, store: MemoryMetadataStore
    ) -> None:
        coordinator = storage(store, None)
        await coordinator.save(group(members(3)))
        await _with_topics(store)
        assert await coordinator.catch_up()
        assert not coordinator.is_claimed
        await coordinator.save(group(members(4), 2))
        assert await found(store) == group(members(4), 2)

    async def test_a_classic_groups_members_are_read(self, store: MemoryMetadataStore) -> None:
        some = (classic("a", b"\x00\xff"), classic("b"))
        body = {
            "phase": "Stable",
            "phase_since_ms": 7,
            "generation": 3,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "leader": "a",
            "members": pack_classic(some),
        }
        await store.commit([Write(RECORD_KEY, body, ABSENT)])
        record = await found(store)
        assert (record.members, record.leader) == (some, "a")
        await (await loaded(store)).save(record)
        assert await found(store) == record


async def _with_topics(store: MemoryMetadataStore) -> Body:
    """Have the record be as one that an older program wrote, which kept the topics in it."""
    item = await store.get(RECORD_KEY)
    assert item is not None
    consumer = {"assignment_epoch": item.body["generation"], "topics": [], "patterns": []}
    body = {**item.body, "consumer": consumer}
    await store.commit([Write(RECORD_KEY, body, item.version)])
    return body


def _of_before(record: GroupRecord) -> Write:
    """Return the write of a consumer group's record, members and all."""
    assert record.consumer is not None
    body = {**record.to_body(), "members": pack_classic(())}
    del body["stamp"]
    rows = [
        [
            m.member_id,
            None,
            None,
            "",
            "",
            -1,
            ["t"],
            None,
            None,
            "stable",
            m.epoch,
            0,
            [],
            [],
            None,
            None,
        ]
        for m in record.consumer.members
    ]
    body["consumer"] = {
        **record.to_body()["consumer"],  # type: ignore[dict-item]
        "members": pack_members(rows, (), lambda row, _: row),
    }
    return Write(record.item_id, body, ABSENT)


class TestCost:
    """What a member's step and a commit of offsets write, however large the group is."""

    async def test_a_members_step_writes_its_page_and_a_commit_checks_a_small_record(self) -> None:
        async def cost(count: int) -> tuple[list[int], int, int]:
            store = MemoryMetadataStore(latency=0)
            coordinator = storage(store, None, DEFAULT_PAGE_LIMITS)
            await coordinator.save(group(members(count)))
            store.commits.clear()
            await coordinator.save(group([*members(count)[:-1], member(f"m{count - 1}", 2)]))
            await coordinator.commit_offsets({TOPIC: {0: CommittedOffset(5, -1, "", 1)}})
            record = await store.get(RECORD_KEY)
            assert record is not None
            step, commit = store.commits
            assert [write.id.collection for write in step] == [member_collection(SHARD)]
            assert RECORD_KEY not in [write.id for write in commit]
            return [len(w) for w in store.commits], _size(step), len(json.dumps(record.body))

        counts, step_size, record_size = await cost(32)
        assert counts == [1, 1]
        for count in (3_200, 6_400):
            more_counts, more_step_size, more_record_size = await cost(count)
            assert more_counts == counts
            assert more_step_size <= step_size * 1.2
            assert more_record_size <= record_size + 10

    async def test_members_that_join_together_share_pages(self, store: MemoryMetadataStore) -> None:
        coordinator = storage(store, None, DEFAULT_PAGE_LIMITS)
        await coordinator.save(group(members(1000)))
        store.commits.clear()
        await coordinator.save(group(members(1020), 2))
        (written,) = store.commits
        assert len(written) <= 3
        # Who comes when others have gone takes their room.
        left = group(members(1020)[100:], 3)
        await coordinator.save(left)
        count = len(await list_pages(store, SHARD, "g"))
        again = [*left.all_members, *(member(f"n{number}") for number in range(100))]
        await coordinator.save(group(again, 4))  # type: ignore[arg-type]
        assert len(await list_pages(store, SHARD, "g")) <= count + 3
        assert await found(store) == group(again, 4)  # type: ignore[arg-type]

    async def test_ten_thousand_members_are_written_in_a_few_transactions(
        self, store: MemoryMetadataStore
    ) -> None:
        coordinator = storage(store, None, DEFAULT_PAGE_LIMITS)
        await coordinator.save(group(members(10_000)))
        assert len(store.commits) <= 6
        assert await found(store) == group(members(10_000))
        store.commits.clear()
        await coordinator.save(group((), 2))
        assert len(store.commits) <= 5
        assert await found(store) == group((), 2)
        await coordinator.save(group(members(1), 3))
        await coordinator.save(group(members(2), 4))
        assert len(await list_pages(store, SHARD, "g")) == 1

    async def test_a_transaction_is_bounded_by_bytes_too(self, store: MemoryMetadataStore) -> None:
        limits = PageLimits(members_per_page=1, commit_size_bytes=300_000)
        chance = random.Random(1)
        some = tuple(classic(f"m{number}", chance.randbytes(70_000)) for number in range(9))
        record = dataclasses.replace(group(()), consumer=None, members=some)
        await storage(store, None, limits).save(record)
        assert max(_size(writes) for writes in store.commits) <= 300_000
        assert await found(store) == record


def _size(writes: Sequence[Write]) -> int:
    return sum(len(json.dumps(write.body)) for write in writes)


class TestReading:
    async def test_a_damaged_page_fails_its_group_alone(self, store: MemoryMetadataStore) -> None:
        await storage(store, None).save(group(members(5)))
        other = dataclasses.replace(group(()), group_id="g/000000")
        await store.commit([put(other)])
        page = page_item_id(SHARD, "g", 1)
        item = await store.get(page)
        assert item is not None
        await store.commit([Write(page, {**item.body, "members": ["x"]}, item.version)])
        groups = await read_groups(store, SHARD)
        assert isinstance(groups["g"], TidelogError)
        assert isinstance(groups["g/000000"], StoredGroup)

    async def test_pages_of_a_group_whose_id_goes_on_with_a_slash_are_not_taken_for_its_own(
        self,
        store: MemoryMetadataStore,
    ) -> None:
        page = MemberPage(
            shard=SHARD, group_id="g/1", number=0, stamp=0, members={0: member("other")}
        )
        await store.commit([put(page)])
        await storage(store, None).save(group(members(1)))
        stored = await read_group(store, SHARD, "g")
        assert stored is not None
        assert stored.record.member_count == 1

    async def test_a_group_that_changes_while_it_is_read_is_read_again(
        self, store: MemoryMetadataStore
    ) -> None:
        coordinator = storage(store, None)
        await coordinator.save(group(members(9)))
        after = group([*members(8, epoch=2), member("m8", 3)], 3)
        listed = store.list
        left = 2

        async def changing(collection: str, *, prefix: str = "") -> list[Item]:
            nonlocal left
            items = await listed(collection, prefix=prefix)
            left -= 1
            if left == 1:
                await coordinator.save(group(members(9, epoch=2), 2))
                await coordinator.save(after)
            return items

        store.list = changing  # type: ignore[method-assign]
        stored = await read_group(store, SHARD, "g")
        assert stored is not None
        assert dataclasses.replace(stored.record, stamp=0) == after
