from __future__ import annotations

import json
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

from tidelog_console.pages.jobs import TOPICS_MAX
from tidelog_console.receipts import RECEIPTS_MAX, Receipts
from tidelog_core.erasure.receipt import ErasureReceipt, PartitionErasure
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectMeta
from tidelog_core.tier.keys import erasure_receipt_key, topic_prefix

TOPIC_ID = uuid4()
PREFIX = topic_prefix("c", "t", TOPIC_ID)


class CountingStore(MemoryObjectStore):
    """Counts what costs on S3."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = self.lists = 0

    async def get(self, key: str) -> bytes:
        self.gets += 1
        return await super().get(key)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        self.lists += 1
        async for one in super().list(prefix, start_after=start_after):
            yield one


async def put(
    store: MemoryObjectStore, requested_ms: int, *problems: str, topic_id: UUID = TOPIC_ID
) -> UUID:
    erasure_id = uuid4()
    partition = PartitionErasure(
        partition=0, up_to=1, erased=(), replicas=(), problems=tuple(problems)
    )
    receipt = ErasureReceipt(
        erasure_id=erasure_id,
        topic="t",
        topic_id=topic_id,
        key_sha256="0" * 64,
        requested_ms=requested_ms,
        ended_ms=requested_ms + 1,
        partitions=(partition,),
    )
    data = json.dumps(receipt.document()).encode()
    await store.put(erasure_receipt_key("c", "t", topic_id, erasure_id), data)
    return erasure_id


async def test_receipts_are_read_once_and_listed_rarely() -> None:
    store = CountingStore()
    old, new = await put(store, 1), await put(store, 2, "broker 2 is not done")
    receipts = Receipts(store)
    for _ in range(10):
        found = await receipts.of_topic(PREFIX)
    assert [one.erasure_id for one in found] == [str(new), str(old)]
    assert [one.is_done for one in found] == [False, True]
    assert found[0].problems == ("broker 2 is not done",)
    assert (store.lists, store.gets) == (1, 2)


async def test_a_receipt_that_is_written_again_is_read_again() -> None:
    """An erasure that goes on in steps writes its receipt after each of them."""
    store = CountingStore()
    erasure_id = await put(store, 1, "broker 2 is not done")
    receipts = Receipts(store, listed_seconds=0)
    assert not (await receipts.of_topic(PREFIX))[0].is_done
    key = erasure_receipt_key("c", "t", TOPIC_ID, erasure_id)
    document = json.loads(await store.get(key))
    document["partitions"][0]["problems"] = []
    await store.replace(key, json.dumps(document).encode())
    assert (await receipts.of_topic(PREFIX))[0].is_done


async def test_a_damaged_receipt_says_so() -> None:
    store = CountingStore()
    key = erasure_receipt_key("c", "t", TOPIC_ID, uuid4())
    await store.put(key, b'{"kind": "erasure"}')
    (found,) = await Receipts(store).of_topic(PREFIX)
    assert "no receipt of an erasure" in found.problems[0]


async def test_other_objects_are_no_receipts() -> None:
    store = CountingStore()
    await store.put(f"{PREFIX}erasure-notes.txt", b"not json")
    assert await Receipts(store).of_topic(PREFIX) == []


async def test_a_page_with_as_many_receipts_as_may_be_reads_them_once() -> None:
    store = CountingStore()
    topics = [uuid4() for _ in range(TOPICS_MAX)]
    for topic_id in topics:
        for number in range(RECEIPTS_MAX):
            await put(store, number, topic_id=topic_id)
    receipts = Receipts(store)
    for _ in range(2):
        for topic_id in topics:
            assert len(await receipts.of_topic(topic_prefix("c", "t", topic_id))) == RECEIPTS_MAX
    assert store.gets == TOPICS_MAX * RECEIPTS_MAX
