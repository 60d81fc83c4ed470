"""What is read to be kept."""

from __future__ import annotations

from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_node.diskless.recovery.range_reader import range_reader

from tests.support.store_lender import StoreLender


async def test_what_is_read_outlives_the_loan() -> None:
    store = MemoryObjectStore()
    await store.put("c/wal/1", b"0123456789")
    read = range_reader(StoreLender(store))
    assert await read("c/wal/1", 2, 5) == b"234"
    assert await read("c/wal/1", 8, 50) == b"89"
